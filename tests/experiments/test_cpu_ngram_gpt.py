"""The submission of the ten minutes' track: what its n-grams are, and that its model is what its config says."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speedrun.cpu_nanochat import main as reference
from experiments.speedrun.cpu_ngram_gpt.main import SEEDS, NgramGptConfig, ngram_buckets, speedrun_config
from marin.errors import ConfigError
from marin.models.lm import count_parameters

CONFIG = NgramGptConfig(
    seq_len=16, hidden_dim=32, num_layers=2, num_heads=2, window_pattern="L", num_buckets=(64, 32), ngram_dim=8
)


def test_an_ngram_is_a_token_and_those_before_it_in_its_document():
    tokens = jnp.array([[5, 7, 9, 7, 9, 5, 7, 9]])
    segments = jnp.array([[0, 0, 0, 0, 0, 1, 1, 1]])
    pairs, triples = (np.asarray(ngram_buckets(tokens, segments, length, 2**20))[0] for length in (2, 3))
    assert pairs[1] == pairs[6] and pairs[2] == pairs[4] == pairs[7]  # 5 7, and 7 9, wherever they stand
    assert pairs[0] == pairs[5]  # the first of a row and of a document
    assert len(set(pairs.tolist())) == 4
    assert triples[2] == triples[7] and triples[1] == triples[6] and triples[2] != triples[4]  # 5 7 9, and 9 7 9
    assert len(set(triples.tolist())) == 5
    later = tokens.at[0, 4].set(11)
    for length, before in ((2, pairs), (3, triples)):
        assert (np.asarray(ngram_buckets(later, segments, length, 2**20))[0][:4] == before[:4]).all()


def test_ngrams_spread_over_the_rows():
    first, second, third = np.meshgrid(np.arange(256), np.arange(256), np.arange(8))
    tokens = jnp.asarray(np.stack([first.ravel(), second.ravel(), third.ravel()], axis=1))
    for length, each in ((2, 64 * 8), (3, 64 * 8)):
        used = np.bincount(np.asarray(ngram_buckets(tokens, None, length, 1024))[:, length - 1], minlength=1024)
        # Pairs are there eight times over: 64 a row with a standard deviation of 8 if they were drawn by chance, times 8.
        assert used.sum() == 1024 * each and used.min() > 0.375 * each and used.max() < 1.625 * each


def test_embeddings_of_ngrams_reach_the_logits_and_learn():
    model = CONFIG.build(61, key=jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 61)

    def total(model):
        return jnp.sum(jnp.square(model.activations(tokens, None)[..., :3]))

    gradients = eqx.filter_grad(total)(model)
    assert all(float(jnp.abs(table.weight_VD).max()) > 0 for table in gradients.ngram_embeddings)
    assert CONFIG.total_trainable_params(61) == count_parameters(model)
    plain = dataclasses.replace(CONFIG, num_buckets=(64,))
    assert CONFIG.total_trainable_params(61) - plain.total_trainable_params(61) == 32 * 8 + 8 * 32
    assert CONFIG.flops_per_token(61, 16) - plain.flops_per_token(61, 16) == 2 * 8 * 32
    with pytest.raises(ConfigError, match="`num_buckets` has 3 tables"):
        dataclasses.replace(CONFIG, num_buckets=(4, 4, 4))


def test_every_layer_sees_the_last_keys_alone_so_that_it_can_be_scored_in_a_longer_context():
    config = dataclasses.replace(CONFIG, seq_len=64, attention_window=8)
    model = config.build(61, key=jax.random.key(0))
    flat, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    noisy = [leaf + 0.3 * jax.random.normal(jax.random.key(i), leaf.shape) for i, leaf in enumerate(flat)]
    model = eqx.combine(jax.tree.unflatten(structure, noisy), model)
    tokens = jax.random.randint(jax.random.key(1), (1, 64), 0, 61)

    def last(tokens):
        return model.activations(tokens, None)[0, -1]

    # Two layers of 8 keys see 15 tokens, and the triple and the smear of the first of them those before it.
    np.testing.assert_array_equal(last(tokens.at[0, : 64 - 17].set(0)), last(tokens))
    assert float(jnp.abs(last(tokens.at[0, 64 - 10].set(0)) - last(tokens)).max()) > 0
    # Where a row stands in a longer one makes no difference.
    np.testing.assert_allclose(model.activations(tokens[:, -32:], None)[0, -1], last(tokens), atol=1e-4)
    assert config.flops_per_token(61, 64) == config.flops_per_token(61, 8)


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
