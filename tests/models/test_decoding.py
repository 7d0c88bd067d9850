"""Decoding with a cache gives what the model gives for the whole row, over windows, grouped heads, and rows of all lengths."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from chat_server import model_of

from marin.errors import ConfigError
from marin.models import GptConfig, LlamaConfig
from marin.models.decoding import (
    begin_burst,
    end_burst,
    extend,
    extend_burst,
    init_cache,
    joined_projections,
    layer_windows,
    prefill,
    repeat_rows,
    resize,
    with_joined_projections,
)
from marin.models.gpt import Gpt
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
    "gpt-plain": dataclasses.replace(GPT, smear=False, backout=False, value_embeddings=False),
    "llama": LLAMA,
    "llama-tied": dataclasses.replace(
        LLAMA, tie_word_embeddings=True, use_attention_sink=True, input_embedding_norm=True
    ),
}
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (3, LENGTH)).astype(np.int32)


def whole(model, tokens_BT):
    return np.asarray(eqx.filter_jit(lambda m, tokens: m.activations(tokens, None))(model, jnp.asarray(tokens_BT)))


def assert_same(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_extend_in_pieces_of_all_sizes_equals_the_whole_row(name):
    model = model_of(CONFIGS[name], VOCAB)
    run = eqx.filter_jit(extend)
    expected = whole(model, TOKENS)
    cache, at = init_cache(model, 3, LENGTH), 0
    for size in (7, 1, 1, 7, 1, 7, 1, 7, 1, 7):  # beyond each window and one by one
        x_BTD, cache = run(model, TOKENS[:, at : at + size], cache)
        assert_same(x_BTD, expected[:, at : at + size])
        at += size
    assert at == LENGTH


@pytest.mark.parametrize("name", ["gpt-grouped", "llama"])
def test_rows_of_different_lengths_with_padding_equal_each_row_alone(name):
    model = model_of(CONFIGS[name], VOCAB)
    expected = whole(model, TOKENS)
    lengths, then = np.array([9, 2, 17]), np.array([1, 6, 0])
    padded = np.where(np.arange(17)[None] < lengths[:, None], TOKENS[:, :17], 7)
    fed = eqx.filter_jit(extend)
    x_BTD, cache = eqx.filter_jit(prefill)(model, padded, init_cache(model, 3, LENGTH), jnp.asarray(lengths, jnp.int32))
    for row, length in enumerate(lengths):
        assert_same(x_BTD[row, :length], expected[row, :length])
    more = np.stack([TOKENS[row, length : length + 6] for row, length in enumerate(lengths)])
    x_BTD, cache = fed(
        model, np.where(np.arange(6)[None] < then[:, None], more, 3), cache, jnp.asarray(then, jnp.int32)
    )
    for row, (length, new) in enumerate(zip(lengths, then, strict=True)):
        assert_same(x_BTD[row, :new], expected[row, length : length + new])
    np.testing.assert_array_equal(cache.lengths_B, lengths + then)
    at = lengths + then
    for _ in range(4):
        x_BTD, cache = fed(model, TOKENS[np.arange(3), at][:, None], cache)
        assert_same(x_BTD[:, 0], expected[np.arange(3), at])
        at = at + 1


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_repeated_row_continues_as_rows_of_their_own(name):
    model = model_of(CONFIGS[name], VOCAB)
    endings = TOKENS[:, 20:25]
    rows = np.concatenate([np.repeat(TOKENS[:1, :11], 3, axis=0), endings], axis=1)
    _, cache = eqx.filter_jit(prefill)(model, TOKENS[:1, :11], init_cache(model, 1, LENGTH))
    x_BTD, _ = eqx.filter_jit(extend)(model, endings, repeat_rows(cache, 3))
    assert_same(x_BTD, whole(model, rows)[:, 11:])


def test_a_burst_equals_the_row_and_rows_may_leave_it_early():
    model = model_of(GPT, VOCAB)
    expected = whole(model, TOKENS)
    _, cache = eqx.filter_jit(prefill)(model, TOKENS[:, :10], init_cache(model, 3, LENGTH))
    step, end = eqx.filter_jit(extend_burst), eqx.filter_jit(end_burst)
    leaves_after = np.array([6, 0, 3])
    at = np.array([10, 10, 10])
    for _ in range(2):
        burst = begin_burst(model, cache, 6)  # more than a window of four
        for index in range(6):
            active = jnp.asarray(index < leaves_after)
            tokens = TOKENS[np.arange(3), np.minimum(at + index, LENGTH - 1)]
            x_BD, burst = step(model, tokens, burst, active)
            for row in np.flatnonzero(index < leaves_after):
                assert_same(x_BD[row], expected[row, at[row] + index])
        cache, at = end(burst), at + leaves_after
        np.testing.assert_array_equal(cache.lengths_B, at)


@pytest.mark.parametrize(
    "config", [CONFIGS["gpt-grouped"], dataclasses.replace(LLAMA, use_bias=True)], ids=["gpt", "llama"]
)
def test_joined_projections_are_the_same_model_without_its_own(config):
    model = model_of(config, VOCAB)
    expected = whole(model, TOKENS)[:, :10]
    joined = joined_projections(model)
    assert all(together.weight_IO.shape == (32, 32 + 2 * 16) for together in joined)

    def own(m):
        attentions = [block.attention for block in m.blocks]
        return [getattr(a, name).weight_IO for a in attentions for name in ("query", "key", "value")]

    emptied = eqx.tree_at(own, model, replace_fn=jnp.zeros_like)
    x_BTD, _ = eqx.filter_jit(prefill)(
        with_joined_projections(emptied, joined), TOKENS[:, :10], init_cache(model, 3, LENGTH)
    )
    assert_same(x_BTD, expected)


def test_a_cache_grows_and_its_rows_are_moved():
    model = model_of(GPT, VOCAB)
    expected = whole(model, TOKENS)
    _, cache = eqx.filter_jit(prefill)(model, TOKENS[:, :10], init_cache(model, 3, 12))
    grown = resize(cache, jnp.asarray([2, -1, 0, -1]), LENGTH, layer_windows(model))
    np.testing.assert_array_equal(grown.lengths_B, [10, 0, 10, 0])
    tokens = np.zeros((4, 5), np.int32)
    tokens[0], tokens[2], tokens[1] = TOKENS[2, 10:15], TOKENS[0, 10:15], TOKENS[1, :5]
    x_BTD, _ = eqx.filter_jit(extend)(model, tokens, grown)
    for row, (source, start) in {0: (2, 10), 2: (0, 10), 1: (1, 0)}.items():
        assert_same(x_BTD[row], expected[source, start : start + 5])


def test_a_windowed_layer_keeps_only_its_window():
    cache = init_cache(model_of(GPT, VOCAB), 2, LENGTH)
    assert [layer.keys_BKSC.shape[2] for layer in cache.layers] == [4, 4, LENGTH]


def test_long_prompts_are_attended_in_blocks_that_equal_the_whole():
    model = model_of(dataclasses.replace(GPT, seq_len=400), VOCAB)  # windows of 100, blocks of 128
    tokens = np.random.default_rng(1).integers(0, VOCAB, (1, 300)).astype(np.int32)
    expected = whole(model, tokens)
    x_BTD, cache = eqx.filter_jit(prefill)(model, tokens[:, :150], init_cache(model, 1, 300))
    assert_same(x_BTD, expected[:, :150])
    x_BTD, _ = eqx.filter_jit(extend)(model, tokens[:, 150:], cache)
    assert_same(x_BTD, expected[:, 150:])


def test_a_model_of_another_kind_is_refused_with_what_to_do():
    class Other(eqx.Module):
        pass

    class Changed(Gpt):  # the cache would know nothing of what it changes
        def embedded(self, tokens_BT, segment_ids_BT):
            return 2 * super().embedded(tokens_BT, segment_ids_BT)

    gpt = model_of(GPT, VOCAB)
    changed = Changed(**{field.name: getattr(gpt, field.name) for field in dataclasses.fields(gpt)})
    for model in (Other(), changed):
        with pytest.raises(ConfigError, match=f"{type(model).__name__} cannot be decoded with a cache.*marin export"):
            init_cache(model, 1, 8)
    assert np.abs(whole(changed, TOKENS) - whole(gpt, TOKENS)).max() > 1e-3
