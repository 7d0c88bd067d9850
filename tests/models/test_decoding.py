"""Decoding with a cache gives what the model gives for the whole row, over windows, grouped heads, and rows of all lengths."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.models import GptConfig, LlamaConfig
from marin.models.decoding import extend, init_cache, prefill, put_rows, repeat_rows, take_rows
from marin.nn import RmsNormConfig

VOCAB, LENGTH = 61, 40
GPT = GptConfig(seq_len=16, hidden_dim=32, num_layers=3, num_heads=4)  # windows of 4 keys
LLAMA = LlamaConfig(
    seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2, qk_norm=RmsNormConfig()
)
CONFIGS = {
    "gpt": GPT,
    "gpt-grouped": dataclasses.replace(GPT, num_kv_heads=2),
    "gpt-one-kv-head": dataclasses.replace(GPT, num_kv_heads=1, window_pattern="SL"),
    "gpt-full": dataclasses.replace(GPT, window_pattern="L"),
    "gpt-plain": dataclasses.replace(GPT, smear=False, backout=False, value_embeddings=False),
    "llama": LLAMA,
    "llama-tied": dataclasses.replace(
        LLAMA, tie_word_embeddings=True, use_attention_sink=True, input_embedding_norm=True
    ),
}
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (3, LENGTH)).astype(np.int32)


def model_of(config):
    """A model whose every weight matters, as the first values of some are zero."""
    model = config.build(VOCAB, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [leaf + 0.2 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), model)


def whole(model, tokens_BT):
    return np.asarray(model.activations(jnp.asarray(tokens_BT), None))


def assert_same(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_extend_in_pieces_of_all_sizes_equals_the_whole_row(name):
    model = model_of(CONFIGS[name])
    run = eqx.filter_jit(extend)
    expected = whole(model, TOKENS)
    cache, at = init_cache(model, 3, LENGTH), 0
    for size in (5, 1, 1, 7, 1, 12, 3, 1, 9):  # beyond each window, within it, and one by one
        x_BTD, cache = run(model, TOKENS[:, at : at + size], cache)
        assert_same(x_BTD, expected[:, at : at + size])
        at += size
    assert at == LENGTH


@pytest.mark.parametrize("name", ["gpt-grouped", "llama"])
def test_rows_of_different_lengths_with_padding_equal_each_row_alone(name):
    model = model_of(CONFIGS[name])
    expected = whole(model, TOKENS)
    lengths, then = np.array([9, 2, 17]), np.array([1, 6, 0])
    padded = np.where(np.arange(17)[None] < lengths[:, None], TOKENS[:, :17], 7)
    x_BTD, cache = prefill(model, padded, init_cache(model, 3, LENGTH), jnp.asarray(lengths, jnp.int32))
    for row, length in enumerate(lengths):
        assert_same(x_BTD[row, :length], expected[row, :length])
    more = np.stack([TOKENS[row, length : length + 6] for row, length in enumerate(lengths)])
    x_BTD, cache = extend(
        model, np.where(np.arange(6)[None] < then[:, None], more, 3), cache, jnp.asarray(then, jnp.int32)
    )
    for row, (length, new) in enumerate(zip(lengths, then, strict=True)):
        assert_same(x_BTD[row, :new], expected[row, length : length + new])
    np.testing.assert_array_equal(cache.lengths_B, lengths + then)
    at = lengths + then
    for _ in range(8):
        x_BTD, cache = extend(model, TOKENS[np.arange(3), at][:, None], cache)
        assert_same(x_BTD[:, 0], expected[np.arange(3), at])
        at = at + 1


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_repeated_row_continues_as_rows_of_their_own(name):
    model = model_of(CONFIGS[name])
    endings = TOKENS[:, 20:25]
    rows = np.concatenate([np.repeat(TOKENS[:1, :11], 3, axis=0), endings], axis=1)
    _, cache = prefill(model, TOKENS[:1, :11], init_cache(model, 1, LENGTH))
    x_BTD, _ = extend(model, endings, repeat_rows(cache, 3))
    assert_same(x_BTD, whole(model, rows)[:, 11:])


def test_rows_taken_out_and_put_elsewhere_go_on_as_they_were():
    model = model_of(GPT)
    expected = whole(model, TOKENS)
    _, cache = prefill(model, TOKENS[:, :10], init_cache(model, 3, LENGTH))
    moved = put_rows(init_cache(model, 4, LENGTH), jnp.asarray([3, 1, 9]), take_rows(cache, jnp.asarray([0, 2, 1])))
    np.testing.assert_array_equal(moved.lengths_B, [0, 10, 0, 10])  # row 9 of 4 is left out
    tokens = np.zeros((4, 1), np.int32)
    tokens[3], tokens[1] = TOKENS[0, 10], TOKENS[2, 10]
    x_BTD, _ = extend(model, tokens, moved)
    assert_same(x_BTD[3, 0], expected[0, 10])
    assert_same(x_BTD[1, 0], expected[2, 10])


def test_a_windowed_layer_keeps_only_its_window():
    cache = init_cache(model_of(GPT), 2, LENGTH)
    assert [layer.keys_BKSC.shape[2] for layer in cache.layers] == [4, 4, LENGTH]


def test_long_prompts_are_attended_in_blocks_that_equal_the_whole():
    model = model_of(dataclasses.replace(GPT, seq_len=400))  # windows of 100, blocks of 128
    tokens = np.random.default_rng(1).integers(0, VOCAB, (1, 300)).astype(np.int32)
    expected = whole(model, tokens)
    x_BTD, cache = prefill(model, tokens[:, :150], init_cache(model, 1, 300))
    assert_same(x_BTD, expected[:, :150])
    x_BTD, _ = extend(model, tokens[:, 150:], cache)
    assert_same(x_BTD, expected[:, 150:])


def test_a_model_of_another_kind_is_refused_with_what_to_do():
    class Other(eqx.Module):
        pass

    with pytest.raises(ConfigError, match="Other cannot be decoded with a cache.*marin export"):
        init_cache(Other(), 1, 8)
