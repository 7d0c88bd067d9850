"""The Llama model: published sizes, causality, options that do what they say, and refusals."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.models import LlamaConfig, LmConfig, count_parameters
from marin.nn import NtkRotaryConfig, RmsNormConfig, RotaryConfig

SMALL = LlamaConfig(seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2)
VOCAB = 50


def _activations(config, tokens, segments=None, seed=0):
    @jax.jit  # one program compiles sooner than each operation alone
    def run(tokens, segments):
        return config.build(VOCAB, key=jax.random.key(seed)).activations(tokens, segments)

    return run(tokens, segments)


@pytest.mark.parametrize(
    ("shape", "parameters", "flops"),
    [  # hidden, intermediate, layers, heads, kv heads: the four published sizes
        ((512, 1792, 6, 8, 8), 154_147_328, 227_868_672),
        ((768, 2688, 12, 12, 12), 299_649_792, 555_024_384),
        ((1024, 3584, 24, 16, 8), 602_457_088, 1_349_517_312),
        ((2048, 7168, 16, 16, 8), 1_431_373_824, 2_877_292_544),
    ],
)
def test_llama_parameters_and_flops_of_published_sizes_are_the_published_figures(shape, parameters, flops):
    hidden, intermediate, layers, heads, kv_heads = shape
    config = LlamaConfig(
        seq_len=4096,
        hidden_dim=hidden,
        intermediate_dim=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
    )
    assert config.total_trainable_params(128_256) == parameters
    assert config.flops_per_token(128_256, 4096) == flops
    assert isinstance(config, LmConfig)


def test_llama_activations_depend_on_nothing_later_and_on_no_other_document():
    tokens = jax.random.randint(jax.random.key(0), (1, 16), 0, VOCAB)
    segments = jnp.array([[0] * 6 + [1] * 10])
    before = _activations(SMALL, tokens, segments)
    after = _activations(SMALL, tokens.at[0, 10].set((tokens[0, 10] + 1) % VOCAB), segments)
    changed = np.abs(np.asarray(before - after)).sum(axis=-1)[0] > 1e-6
    assert changed.tolist() == [t >= 10 for t in range(16)]
    other = _activations(SMALL, tokens.at[0, 2].set((tokens[0, 2] + 1) % VOCAB), segments)
    np.testing.assert_array_equal(before[0, 6:], other[0, 6:])


@pytest.mark.parametrize(
    "change",
    [
        {"use_bias": True},
        {"use_layer_norm_weight": False},
        {"tie_word_embeddings": True},
        {"input_embedding_norm": True},
        {"use_attention_sink": True},
        {"qk_norm": RmsNormConfig()},
        {"head_dim": 16},
        {"activation_function": "gelu"},
        {"rope": RotaryConfig(theta=100.0)},
        {"rope": RotaryConfig(factor=4.0)},
        {"layer_norm_epsilon": 0.1},
        {"initializer_range": 0.2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_llama_option_changes_the_model(change):
    config = dataclasses.replace(SMALL, **change)
    tokens = jax.random.randint(jax.random.key(0), (2, 16), 0, VOCAB)
    # Biases and sinks start at zero, scales at one: move them away from where they do nothing.
    plain, model = (
        jax.tree.map(lambda x: jnp.where((x == 0) | (x == 1), x + 0.1, x), c.build(VOCAB, key=jax.random.key(0)))
        for c in (SMALL, config)
    )
    logits = [eqx.filter_jit(lambda m: m.activations(tokens, None) @ m.lm_head_DV)(m) for m in (plain, model)]
    assert float(jnp.abs(logits[0] - logits[1]).max()) > 1e-5
    assert count_parameters(model) == config.total_trainable_params(VOCAB)


@pytest.mark.parametrize(
    "change",
    [
        {"gradient_checkpointing": False},
        {"attn_backend": "VANILLA"},
        {"flash_attention_block_size": 4},
        {"upcast_attn": True},
        {"cross_entropy_block_size": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_llama_option_that_only_changes_how_it_is_computed_changes_no_figure(change):
    tokens = jax.random.randint(jax.random.key(0), (2, 16), 0, VOCAB)

    def gradients(config):
        model = config.build(VOCAB, key=jax.random.key(0))
        return eqx.filter_jit(eqx.filter_grad(lambda m: jnp.sum(jnp.sin(m.activations(tokens, None)))))(model)

    for one, other in zip(
        jax.tree.leaves(gradients(SMALL)), jax.tree.leaves(gradients(dataclasses.replace(SMALL, **change))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_dim": 30}, "multiple of `num_heads`"),
        ({"num_kv_heads": 3}, "multiple of `num_kv_heads`"),
        ({"head_dim": 5}, "even"),
        ({"num_layers": 0}, "num_layers"),
        ({"num_layers": True}, "num_layers"),
        ({"seq_len": "16"}, "seq_len"),
        ({"activation_function": "swish"}, "silu"),
        ({"attn_backend": "NVTE"}, "JAX_FLASH"),
        ({"qk_norm": True}, "RmsNormConfig"),
        ({"tie_word_embeddings": "no"}, "`tie_word_embeddings` is 'no': use True or False"),
        ({"layer_norm_epsilon": "1e-5"}, "`layer_norm_epsilon` is '1e-5': use a number"),
        ({"initializer_range": -0.02}, "`initializer_range` is -0.02"),
        ({"rope": {"theta": 10000}}, "RotaryConfig"),
        ({"rope": NtkRotaryConfig(factor=2.0)}, "`rope` is NtkRotaryConfig.*does not tell other classes apart"),
        ({"cross_entropy_block_size": 0}, "cross_entropy_block_size"),
        ({"flash_attention_block_size": -1}, "flash_attention_block_size"),
    ],
    ids=str,
)
def test_llama_value_that_cannot_work_is_refused_by_name(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **change)
