"""Attention of new tokens to keys and values that were kept of the tokens before, and keeping those of the new ones.

A layer's cache holds `S` keys a row: the key of position p lies in slot p mod S. Where S is the layer's window, an old key
makes room exactly when no later query may see it; where S is the longest row, nothing is ever overwritten. Keys of
padding are not written at all.

A single new token is written first and then sees the ring. Several see the ring as it was and, apart, each other: one
softmax over both, so that no copy of the cache is made to put them together. Tokens that are made one after the other do
the same with a small `stage` for their keys, so that the ring itself is written once for all of them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin.nn.attention_reference import MASKED

# Queries whose scores exist at once.
_BLOCK = 128
# Keys and values [B, K, S, C], and which query sees which key [B or 1, T or 1, S].
_Keys = tuple[Array, Array, Array]


class LayerCache(NamedTuple):
    """The keys and values of a layer."""

    keys_BKSC: Float[Array, "B K S C"]
    values_BKSC: Float[Array, "B K S C"]


def empty_layer_cache(rows: int, length: int, kv_heads: int, head_dim: int, dtype: jnp.dtype) -> LayerCache:
    shape = (rows, kv_heads, length, head_dim)
    return LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


class NewTokens(NamedTuple):
    """The tokens that come next in each row, as a layer's attention has them.

    Args:
        lengths_B: how many tokens were before them.
        num_new_B: how many of them count; results of the others mean nothing.
        window: how many keys a query sees, its own among them; None for all.
        sink_H: a logit for each head that takes part in the softmax and attends to nothing.
    """

    q_BTHC: Float[Array, "B T H C"]
    k_BTKC: Float[Array, "B T K C"]
    v_BTKC: Float[Array, "B T K C"]
    lengths_B: Int[Array, " B"]
    num_new_B: Int[Array, " B"]
    window: int | None = None
    sink_H: Float[Array, " H"] | None = None


def attend_to_cache(new: NewTokens, cache: LayerCache) -> tuple[Float[Array, "B T H C"], LayerCache]:
    """Attention of the new tokens to those in the cache and to each other; the cache with the new keys."""
    written = _write(cache, new)
    if new.q_BTHC.shape[1] == 1:
        old_BS = _positions(written, new.lengths_B + new.num_new_B)
        mask = _sees_old(new.lengths_B[:, None], old_BS, new.window)
        return _softmax_sum(new.q_BTHC, [(written.keys_BKSC, written.values_BKSC, mask)], new.sink_H), written
    old_BS = _positions(cache, new.lengths_B)

    def before(start: int, stop: int) -> list[_Keys]:
        query_Bt = new.lengths_B[:, None] + jnp.arange(start, stop, dtype=jnp.int32)[None, :]
        return [(cache.keys_BKSC, cache.values_BKSC, _sees_old(query_Bt, old_BS, new.window))]

    return _in_blocks(new, before), written


def attend_without_cache(new: NewTokens, cache: LayerCache) -> tuple[Float[Array, "B T H C"], LayerCache]:
    """The same for a cache that holds nothing yet."""
    return _in_blocks(new, lambda start, stop: []), _write(cache, new)


def attend_to_cache_and_stage(
    new: NewTokens, cache: LayerCache, stage: LayerCache, index: Int[Array, ""]
) -> tuple[Float[Array, "B 1 H C"], LayerCache]:
    """Attention of one token to a cache of `lengths_B`, the `index` tokens in the stage, and itself; the stage with it."""
    at = (0, 0, index, 0)
    stage = LayerCache(
        jax.lax.dynamic_update_slice(stage.keys_BKSC, jnp.swapaxes(new.k_BTKC, 1, 2).astype(stage.keys_BKSC.dtype), at),
        jax.lax.dynamic_update_slice(
            stage.values_BKSC, jnp.swapaxes(new.v_BTKC, 1, 2).astype(stage.values_BKSC.dtype), at
        ),
    )
    staged_N = jnp.arange(stage.keys_BKSC.shape[2], dtype=jnp.int32)
    sees_staged = staged_N <= index
    if new.window is not None:
        sees_staged = sees_staged & (index - staged_N < new.window)
    sees_cached = _sees_old((new.lengths_B + index)[:, None], _positions(cache, new.lengths_B), new.window)
    parts = [
        (cache.keys_BKSC, cache.values_BKSC, sees_cached),
        (stage.keys_BKSC, stage.values_BKSC, sees_staged[None, None, :]),
    ]
    return _softmax_sum(new.q_BTHC, parts, new.sink_H), stage


def commit(
    cache: LayerCache, stage: LayerCache, lengths_B: Int[Array, " B"], num_new_B: Int[Array, " B"]
) -> LayerCache:
    """The cache with the first `num_new_B` tokens of the stage."""
    keys, values = jnp.swapaxes(stage.keys_BKSC, 1, 2), jnp.swapaxes(stage.values_BKSC, 1, 2)
    return _put(cache, keys, values, lengths_B, num_new_B)


def _in_blocks(new: NewTokens, before: Callable[[int, int], list[_Keys]]) -> Float[Array, "B T H C"]:
    """Attention a block of queries at a time, to the new keys and to those that `before` gives for queries `start..stop`."""
    num_tokens = new.q_BTHC.shape[1]
    k_BKTC, v_BKTC = jnp.swapaxes(new.k_BTKC, 1, 2), jnp.swapaxes(new.v_BTKC, 1, 2)
    outputs = []
    for start in range(0, num_tokens, _BLOCK):
        stop = min(start + _BLOCK, num_tokens)
        parts = [*before(start, stop), _among(k_BKTC, v_BKTC, start, stop, new.window)]
        outputs.append(_softmax_sum(new.q_BTHC[:, start:stop], parts, new.sink_H))
    return jnp.concatenate(outputs, axis=1)


def _among(k_BKTC: Array, v_BKTC: Array, start: int, stop: int, window: int | None) -> _Keys:
    """The new keys that queries `start..stop` of the new tokens may see, with their values and who sees which."""
    first = 0 if window is None else max(0, start - window + 1)
    query_t1, key_1s = jnp.arange(start, stop)[:, None], jnp.arange(first, stop)[None, :]
    mask = query_t1 >= key_1s
    if window is not None:
        mask = mask & (query_t1 - key_1s < window)
    return k_BKTC[:, :, first:stop], v_BKTC[:, :, first:stop], mask[None]


def _positions(cache: LayerCache, lengths_B: Int[Array, " B"]) -> Int[Array, "B S"]:
    """The position whose key lies in each slot of a row of this length; below zero where none does."""
    slots = cache.keys_BKSC.shape[2]
    last_B1 = lengths_B[:, None] - 1
    return last_B1 - (last_B1 - jnp.arange(slots, dtype=jnp.int32)[None, :]) % slots


def _sees_old(query_Bt: Int[Array, "B t"], position_BS: Int[Array, "B S"], window: int | None) -> Bool[Array, "B t S"]:
    mask = jnp.broadcast_to((position_BS >= 0)[:, None, :], (*query_Bt.shape, position_BS.shape[1]))
    return mask if window is None else mask & (query_Bt[:, :, None] - position_BS[:, None, :] < window)


def _softmax_sum(q_BTHC: Array, parts: list[_Keys], sink_H: Array | None) -> Float[Array, "B T H C"]:
    """Attention to several groups of keys (keys, values, who sees which) under one softmax, in float32."""
    rows, num_queries, num_heads, head_dim = q_BTHC.shape
    kv_heads = parts[0][0].shape[1]
    group = num_heads // kv_heads
    q_BKRC = jnp.moveaxis(q_BTHC.reshape(rows, num_queries, kv_heads, group, head_dim), 1, 3)
    q_BKRC = q_BKRC.reshape(rows, kv_heads, group * num_queries, head_dim)
    scores = []
    for keys, _, mask in parts:
        score = jnp.einsum("bkrc,bksc->bkrs", q_BKRC, keys.astype(q_BKRC.dtype), preferred_element_type=jnp.float32)
        score = score.reshape(rows, kv_heads, group, num_queries, -1) * (1.0 / math.sqrt(head_dim))
        scores.append(jnp.where(mask[:, None, None], score, MASKED))
    tops = [jnp.max(score, axis=-1, keepdims=True) for score in scores]
    if sink_H is not None:
        sink = sink_H.astype(jnp.float32).reshape(1, kv_heads, group, 1, 1)
        tops.append(jnp.broadcast_to(sink, tops[0].shape))
    top = jax.tree.reduce(jnp.maximum, tops)
    weights = [jnp.exp(score - top) for score in scores]
    total = sum(jnp.sum(weight, axis=-1, keepdims=True) for weight in weights)
    if sink_H is not None:
        total = total + jnp.exp(sink - top)
    out: Array | None = None
    for weight, (_, values, _) in zip(weights, parts, strict=True):
        flat = (weight / total).astype(values.dtype).reshape(rows, kv_heads, group * num_queries, -1)
        part = jnp.einsum("bkrs,bksc->bkrc", flat, values)
        out = part if out is None else out + part
    assert out is not None
    out_BKGTC = out.reshape(rows, kv_heads, group, num_queries, head_dim)
    return jnp.moveaxis(out_BKGTC, 3, 1).reshape(rows, num_queries, num_heads, head_dim)


def _write(cache: LayerCache, new: NewTokens) -> LayerCache:
    return _put(cache, new.k_BTKC, new.v_BTKC, new.lengths_B, new.num_new_B)


def _put(cache: LayerCache, k_BTKC: Array, v_BTKC: Array, lengths_B: Array, num_new_B: Array) -> LayerCache:
    """The cache with the last of the new keys that it has room for; those of padding are left out."""
    slots = cache.keys_BKSC.shape[2]
    rows, num_tokens = k_BTKC.shape[:2]
    new_1T = jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
    kept_BT = (new_1T < num_new_B[:, None]) & (new_1T >= num_new_B[:, None] - slots)
    slot_BT = jnp.where(kept_BT, (lengths_B[:, None] + new_1T) % slots, slots)
    row_B1 = jnp.arange(rows, dtype=jnp.int32)[:, None]

    def put(kept: Array, new: Array) -> Array:
        return kept.at[row_B1, :, slot_BT].set(new.astype(kept.dtype), mode="drop")

    return LayerCache(put(cache.keys_BKSC, k_BTKC), put(cache.values_BKSC, v_BTKC))
