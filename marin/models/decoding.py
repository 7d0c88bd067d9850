"""A model's activations a few tokens at a time, with the keys and values of the tokens before kept.

    cache = init_cache(model, rows, max_length)
    x_BTD, cache = prefill(model, prompts, cache, lengths)     # the cache must be empty
    x_BTD, cache = extend(model, next_tokens, cache)           # again and again

Rows may differ in length: `num_new_B` says how many of a row's new tokens count, and what follows them is padding that
leaves no trace. The activations of tokens that count are those that the model has for the whole row, up to rounding. A
layer with a window keeps only as many keys as its window, in a ring; one without keeps `max_length`. Positions at or
beyond `max_length` would be lost, so the caller keeps `lengths + new <= max_length`.

`Gpt` and `LlamaModel` can be decoded; another model is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin.errors import ConfigError
from marin.models.gpt import Gpt, GptStreams, norm, smeared_after
from marin.models.llama import LlamaModel
from marin.nn import Linear, rotary_angles, rotary_angles_at
from marin.nn.attention_cached import (
    LayerCache,
    NewTokens,
    attend_to_cache,
    attend_to_cache_and_stage,
    attend_without_cache,
    commit,
    empty_layer_cache,
)


class KvCache(NamedTuple):
    """What a model keeps of the tokens that it has seen; every array's first dimension is the row.

    `previous_BD` is the normalized embedding of each row's last token, for a model that smears; None for others.
    """

    layers: tuple[LayerCache, ...]
    lengths_B: Int[Array, " B"]
    previous_BD: Float[Array, "B D"] | None

    @property
    def num_rows(self) -> int:
        return int(self.lengths_B.shape[0])


class Burst(NamedTuple):
    """A cache with room beside it for the next few tokens of every row, which are fed one at a time.

    The cache itself is not touched until `end_burst` writes all of them, which is far cheaper than once a token. The
    cosines and sines of all positions stand here because XLA would compute them again wherever a layer rotates by them.
    """

    cache: KvCache
    stages: tuple[LayerCache, ...]
    angles_BN: tuple[Float[Array, "B N half"], Float[Array, "B N half"]]
    step: Int[Array, ""]
    fed_B: Int[Array, " B"]


# Attention of one layer's queries to what the layer keeps and to the new keys: (layer, q, k, v) to the result.
_Attend = Callable[[int, Array, Array, Array], Array]


def can_decode(model: Any) -> bool:
    """Whether the functions here know the model, whose own methods they do not call: a subclass may have changed them."""
    return type(model) in (Gpt, LlamaModel)


def check_can_decode(model: Any) -> None:
    """Raises:
    ConfigError: for a model that this module does not know.
    """
    if not can_decode(model):
        raise ConfigError(
            f"a {type(model).__name__} cannot be decoded with a cache: only Gpt and LlamaModel of marin.models can; export the"
            " run with `marin export` and give that folder, if it has Llama's parameters"
        )


def init_cache(model: Any, batch_size: int, max_length: int) -> KvCache:
    """An empty cache for rows of at most `max_length` tokens, in the type of the model's weights.

    Raises:
        ConfigError: for a model that this module does not know.
    """
    check_can_decode(model)
    dtype = model.embedding.weight_VD.dtype
    config = model.config
    kv_heads = config.kv_heads if isinstance(model, Gpt) else config.num_kv_heads
    layers = tuple(
        empty_layer_cache(batch_size, min(window or max_length, max_length), kv_heads, _head_dim(model), dtype)
        for window in layer_windows(model)
    )
    smears = isinstance(model, Gpt) and model.smear_gate_I is not None
    previous = jnp.zeros((batch_size, config.hidden_dim), dtype) if smears else None
    return KvCache(layers, jnp.zeros((batch_size,), jnp.int32), previous)


def extend(
    model: Any, tokens_BT: Int[Array, "B T"], cache: KvCache, num_new_B: Int[Array, " B"] | None = None
) -> tuple[Float[Array, "B T D"], KvCache]:
    """The activations of new tokens after those in the cache, and the cache with them.

    Args:
        num_new_B: how many of each row's tokens count, from its first on; None for all. May be 0.
    Raises:
        ConfigError: for a model that this module does not know.
    """
    check_can_decode(model)
    positions_BT = cache.lengths_B[:, None] + jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None, :]
    angles_BT = rotary_angles_at(model.config.rope, positions_BT, _head_dim(model))
    return _run(model, tokens_BT, angles_BT, cache, num_new_B, attend_to_cache)


def prefill(
    model: Any, tokens_BT: Int[Array, "B T"], cache: KvCache, num_new_B: Int[Array, " B"] | None = None
) -> tuple[Float[Array, "B T D"], KvCache]:
    """`extend` for a cache in which nothing is yet: the keys in it are not looked at, which saves their scores."""
    check_can_decode(model)
    angles_T = rotary_angles(model.config.rope, tokens_BT.shape[1], _head_dim(model))
    return _run(model, tokens_BT, angles_T, cache, num_new_B, attend_without_cache)


def begin_burst(model: Any, cache: KvCache, num_tokens: int) -> Burst:
    """Room for the next `num_tokens` tokens.

    Raises:
        ConfigError: for a model that this module does not know.
    """
    check_can_decode(model)

    def stage(layer: LayerCache) -> LayerCache:
        rows, kv_heads, _, head_dim = layer.keys_BKSC.shape
        return empty_layer_cache(rows, num_tokens, kv_heads, head_dim, layer.keys_BKSC.dtype)

    stages = tuple(stage(layer) for layer in cache.layers)
    positions_BN = cache.lengths_B[:, None] + jnp.arange(num_tokens, dtype=jnp.int32)[None, :]
    angles_BN = rotary_angles_at(model.config.rope, positions_BN, _head_dim(model))
    return Burst(cache, stages, angles_BN, jnp.zeros((), jnp.int32), jnp.zeros_like(cache.lengths_B))


def extend_burst(
    model: Any, tokens_B: Int[Array, " B"], burst: Burst, active_B: Bool[Array, " B"]
) -> tuple[Float[Array, "B D"], Burst]:
    """The activations of one more token of each row; a row that is not active is not fed, then and for the rest."""
    cache = burst.cache
    stages = list(burst.stages)
    windows = layer_windows(model)
    num_new_B = active_B.astype(jnp.int32)
    cos_B1, sin_B1 = (jax.lax.dynamic_slice_in_dim(part, burst.step, 1, axis=1) for part in burst.angles_BN)

    def attend_in(layer: int, q_BTHC: Array, k_BTKC: Array, v_BTKC: Array) -> Array:
        new = NewTokens(q_BTHC, k_BTKC, v_BTKC, cache.lengths_B, num_new_B, windows[layer], _sink(model, layer))
        out_BTHC, stages[layer] = attend_to_cache_and_stage(new, cache.layers[layer], stages[layer], burst.step)
        return out_BTHC

    x_BTD, previous_BD = _activations(model, tokens_B[:, None], (cos_B1, sin_B1), attend_in, cache, num_new_B)
    after = burst._replace(
        cache=cache._replace(previous_BD=previous_BD),
        stages=tuple(stages),
        step=burst.step + 1,
        fed_B=burst.fed_B + num_new_B,
    )
    return x_BTD[:, 0], after


def end_burst(burst: Burst) -> KvCache:
    """The cache with all tokens that were fed."""
    cache = burst.cache
    layers = tuple(
        commit(layer, stage, cache.lengths_B, burst.fed_B)
        for layer, stage in zip(cache.layers, burst.stages, strict=True)
    )
    return KvCache(layers, cache.lengths_B + burst.fed_B, cache.previous_BD)


def resize(cache: KvCache, rows: Int[Array, " R"], max_length: int, windows: Sequence[int | None]) -> KvCache:
    """The cache of these rows with room for `max_length` tokens, no fewer than any of them has; row -1 is an empty one.

    Args:
        windows: of each layer (`layer_windows`).
    """
    from_row = jnp.maximum(rows, 0)

    def fitted(kept: Array, window: int | None) -> Array:
        slots = min(window or max_length, max_length)  # a ring with room for all that there is has not begun again
        return jnp.pad(kept[from_row, :, :slots], ((0, 0), (0, 0), (0, max(slots - kept.shape[2], 0)), (0, 0)))

    layers = tuple(
        LayerCache(fitted(layer.keys_BKSC, window), fitted(layer.values_BKSC, window))
        for layer, window in zip(cache.layers, windows, strict=True)
    )
    lengths_B = jnp.where(rows >= 0, cache.lengths_B[from_row], 0)
    previous_BD = cache.previous_BD
    if previous_BD is not None:
        previous_BD = jnp.where(rows[:, None] >= 0, previous_BD[from_row], jnp.zeros((), previous_BD.dtype))
    return KvCache(layers, lengths_B, previous_BD)


def repeat_rows(cache: KvCache, num: int) -> KvCache:
    """Each row `num` times, one after the other, so that several continuations share what came before."""
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, num, axis=0), cache)


class _Part(eqx.Module):
    """Some of the outputs of a product that several projections share; the compiler takes it once for all of them."""

    joined: Linear
    outputs: slice = eqx.field(static=True)

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... o"]:
        return self.joined(x)[..., self.outputs]


def joined_projections(model: Any) -> list[Linear]:
    """Each layer's projections to queries, keys and values as one, for `with_joined_projections`."""

    def join(*parts: Array) -> Array:
        return jnp.concatenate(parts, axis=-1)

    return [jax.tree.map(join, *_projections(block.attention)) for block in model.blocks]


def with_joined_projections(model: Any, joined: Sequence[Linear]) -> Any:
    """The same model, which takes queries, keys and values as one product, and no longer reads their own matrices."""
    parts: list[_Part] = []
    for block, together in zip(model.blocks, joined, strict=True):
        first = 0
        for projection in _projections(block.attention):
            last = first + projection.weight_IO.shape[1]
            parts.append(_Part(together, slice(first, last)))
            first = last
    return eqx.tree_at(lambda m: [part for block in m.blocks for part in _projections(block.attention)], model, parts)


def _projections(attention: Any) -> tuple[Linear, Linear, Linear]:
    return attention.query, attention.key, attention.value


def _run(
    model: Any,
    tokens_BT: Array,
    angles: tuple[Array, Array],
    cache: KvCache,
    num_new_B: Array | None,
    attend: Callable[[NewTokens, LayerCache], tuple[Array, LayerCache]],
) -> tuple[Array, KvCache]:
    if num_new_B is None:
        num_new_B = jnp.full(tokens_BT.shape[:1], tokens_BT.shape[1], jnp.int32)
    windows, layers = layer_windows(model), list(cache.layers)

    def attend_in(layer: int, q_BTHC: Array, k_BTKC: Array, v_BTKC: Array) -> Array:
        new = NewTokens(q_BTHC, k_BTKC, v_BTKC, cache.lengths_B, num_new_B, windows[layer], _sink(model, layer))
        out_BTHC, layers[layer] = attend(new, layers[layer])
        return out_BTHC

    x_BTD, previous_BD = _activations(model, tokens_BT, angles, attend_in, cache, num_new_B)
    return x_BTD, KvCache(tuple(layers), cache.lengths_B + num_new_B, previous_BD)


def _activations(
    model: Any, tokens_BT: Array, angles: tuple[Array, Array], attend: _Attend, cache: KvCache, num_new_B: Array
) -> tuple[Array, Array | None]:
    if isinstance(model, Gpt):
        return _gpt(model, tokens_BT, angles, attend, cache, num_new_B)
    return _llama(model, tokens_BT, angles, attend), cache.previous_BD


def _gpt(
    model: Gpt, tokens_BT: Array, angles: tuple[Array, Array], attend: _Attend, cache: KvCache, num_new_B: Array
) -> tuple[Array, Array | None]:
    previous_BD = cache.previous_BD
    x_BTD = norm(model.embedding(tokens_BT))
    if model.smear_gate_I is not None and model.smear_scale is not None and previous_BD is not None:
        with_previous_BTD = jnp.concatenate([previous_BD[:, None], x_BTD], axis=1)
        x_BTD = smeared_after(x_BTD, previous_BD, model.smear_gate_I, model.smear_scale)
        previous_BD = jnp.take_along_axis(with_previous_BTD, num_new_B[:, None, None], axis=1)[:, 0]
    streams = GptStreams(x_BTD, x_BTD, x_BTD)
    for layer, block in enumerate(model.blocks):
        x_BTD = model.layer_input(streams, layer)
        qkv = block.attention.queries_keys_values(norm(x_BTD), model.token_values(tokens_BT, layer), angles)
        x_BTD = x_BTD + block.attention.merged(attend(layer, *qkv), x_BTD.dtype)
        streams = model.after_layer(streams, layer, x_BTD + block.mlp(norm(x_BTD)))
    return model.ended(streams), previous_BD


def _llama(model: LlamaModel, tokens_BT: Array, angles: tuple[Array, Array], attend: _Attend) -> Array:
    x_BTD = model.embedding(tokens_BT)
    if model.embedding_norm is not None:
        x_BTD = model.embedding_norm(x_BTD)
    for layer, block in enumerate(model.blocks):
        q_BTHC, k_BTKC, v_BTKC = block.attention.queries_keys_values(block.attention_norm(x_BTD), angles)
        if model.config.upcast_attn:
            q_BTHC = q_BTHC.astype(jnp.float32)
        x_BTD = x_BTD + block.attention.merged(attend(layer, q_BTHC, k_BTKC, v_BTKC), x_BTD.dtype)
        x_BTD = x_BTD + block.mlp(block.mlp_norm(x_BTD))
    return model.final_norm(x_BTD)


def _sink(model: Any, layer: int) -> Array | None:
    return None if isinstance(model, Gpt) else model.blocks[layer].attention.sink_H


def layer_windows(model: Any) -> list[int | None]:
    """How many keys a query of each layer sees; None for all."""
    return [block.attention.window if isinstance(model, Gpt) else None for block in model.blocks]


def _head_dim(model: Any) -> int:
    return int(model.config.head_dim if isinstance(model, Gpt) else model.config.actual_head_dim)
