"""The submission of the ten minutes' track: what its pairs are, and that its model is what its config says."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speedrun.cpu_nanochat import main as reference
from experiments.speedrun.cpu_ngram_gpt.main import SEEDS, PairGptConfig, pair_buckets, speedrun_config
from marin.errors import ConfigError
from marin.models.lm import count_parameters

CONFIG = PairGptConfig(
    seq_len=16, hidden_dim=32, num_layers=2, num_heads=2, window_pattern="L", num_buckets=64, pair_dim=8
)


def test_a_pair_is_a_token_and_the_one_before_it_in_its_document():
    tokens = jnp.array([[5, 7, 9, 7, 9, 5, 7]])
    segments = jnp.array([[0, 0, 0, 0, 0, 1, 1]])
    buckets = np.asarray(pair_buckets(tokens, segments, 2**20))[0]
    assert buckets[1] == buckets[6] and buckets[2] == buckets[4]  # 5 7, and 7 9, wherever they stand
    assert buckets[0] == buckets[5]  # the first of a row and of a document
    assert len(set(buckets.tolist())) == 4
    later = tokens.at[0, 4].set(11)
    assert (np.asarray(pair_buckets(later, segments, 2**20))[0][:4] == buckets[:4]).all()


def test_pairs_spread_over_the_rows():
    first, second = np.meshgrid(np.arange(256), np.arange(256))
    tokens = jnp.asarray(np.stack([first.ravel(), second.ravel()], axis=1))
    used = np.bincount(np.asarray(pair_buckets(tokens, None, 1024))[:, 1], minlength=1024)
    # 65,536 pairs over 1,024 rows: 64 each, with a standard deviation of 8 if they were drawn by chance.
    assert used.min() > 24 and used.max() < 104


def test_embeddings_of_pairs_reach_the_logits_and_learn():
    model = CONFIG.build(61, key=jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 61)

    def total(model):
        return jnp.sum(jnp.square(model.activations(tokens, None)[..., :3]))

    gradients = eqx.filter_grad(total)(model)
    assert float(jnp.abs(gradients.pair_embedding.weight_VD).max()) > 0
    assert CONFIG.total_trainable_params(61) == count_parameters(model)
    plain = dataclasses.replace(CONFIG, num_buckets=1, pair_dim=1)
    difference = CONFIG.total_trainable_params(61) - plain.total_trainable_params(61)
    assert difference == 64 * 8 + 8 * 32 - (1 + 32)
    assert CONFIG.flops_per_token(61, 16) - plain.flops_per_token(61, 16) == 2 * 7 * 32


def test_seeds_differ_in_nothing_else_and_share_text_and_vocabulary_with_the_reference():
    configs = [speedrun_config(seed) for seed in SEEDS]
    assert len({config.train_config.seed for config in configs}) == 5
    rest = [dataclasses.replace(config, train_config=config.train_config.replace(seed=0)) for config in configs]
    assert all(config == rest[0] for config in rest)
    for depth in (2, 3, 4):
        other = reference.speedrun_config(depth)
        assert other.tokenized_dataset.name == rest[0].tokenized_dataset.name
        assert other.model_config.num_layers == depth and other.model_config.hidden_dim == 64 * depth


@pytest.mark.parametrize("text", ["", "5", "two"])
def test_a_depth_without_a_number_of_steps_is_refused(text):
    with pytest.raises(ConfigError, match="CPU_DEPTH"):
        reference.chosen_depth(text)
