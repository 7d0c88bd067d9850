"""Choosing the next token of each row from its logits, on the device.

Nothing is sorted, which would take longer on a CPU than the model itself: the cut that `top_k` or `top_p` makes is found
by bisection over float32's bit patterns, whose order is that of the numbers. A token is then drawn by one uniform number
a row and the cumulative sum of what is left. The number is a function of the row's seed, sample and position alone.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

# Probabilities are within [0, 1], whose bit patterns are below this one.
_ONE_BITS = 0x3F800000
_BLOCK = 128


# What a program is called with: NumPy's arrays are handed over in one piece with the call, which is faster than one by one.
Given = Array | np.ndarray


class RowOptions(NamedTuple):
    """The options of each row of a batch."""

    seed_B: UInt32[Given, " B"]
    sample_B: UInt32[Given, " B"]
    drawn_B: Int[Given, " B"]
    temperature_B: Float[Given, " B"]
    top_k_B: Int[Given, " B"]
    top_p_B: Float[Given, " B"]


def choose(logits_BV: Float[Array, "B V"], options: RowOptions) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """A token for each row, and its log-probability at temperature 1."""
    logits_BV = logits_BV.astype(jnp.float32)
    greedy_B = _first_largest(logits_BV)
    random = options.temperature_B > 0
    drawn_B = jax.lax.cond(jnp.any(random), lambda: _draw(logits_BV, options, greedy_B), lambda: greedy_B)
    token_B = jnp.where(random, drawn_B, greedy_B)
    chosen_B = jnp.take_along_axis(logits_BV, token_B[:, None], axis=-1)[:, 0]
    return token_B, chosen_B - jax.nn.logsumexp(logits_BV, axis=-1)


def _first_largest(logits_BV: Array) -> Int[Array, " B"]:
    """`argmax`, which XLA's CPU takes one number at a time; a row with a NaN gets some token that exists."""
    vocab_size = logits_BV.shape[-1]
    is_top_BV = logits_BV == jnp.max(logits_BV, axis=-1, keepdims=True)
    token_1V = jnp.arange(vocab_size, dtype=jnp.int32)[None, :]
    return jnp.min(jnp.where(is_top_BV, token_1V, vocab_size - 1), axis=-1)


def _draw(logits_BV: Array, options: RowOptions, greedy_B: Array) -> Int[Array, " B"]:
    vocab_size = logits_BV.shape[-1]
    scaled_BV = logits_BV / jnp.maximum(options.temperature_B, 1e-6)[:, None]
    weight_BV = jnp.exp(scaled_BV - jnp.max(scaled_BV, axis=-1, keepdims=True))  # the likeliest token has weight 1
    top_k_B, top_p_B = jnp.minimum(options.top_k_B, vocab_size), jnp.asarray(options.top_p_B)
    weight_BV = jax.lax.cond(jnp.any(top_k_B < vocab_size), lambda: _likeliest(weight_BV, top_k_B), lambda: weight_BV)
    weight_BV = jax.lax.cond(jnp.any(top_p_B < 1), lambda: _nucleus(weight_BV, top_p_B), lambda: weight_BV)
    place = [jnp.asarray(part) for part in (options.seed_B, options.sample_B, options.drawn_B)]
    return _inverse(weight_BV, jax.vmap(_uniform)(*place), greedy_B)


def _uniform(seed: Array, sample: Array, drawn: Array) -> Float[Array, ""]:
    return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), sample), drawn))


def _likeliest(weight_BV: Array, top_k_B: Array) -> Float[Array, "B V"]:
    def enough(cut_B: Array) -> Array:
        return jnp.sum(weight_BV >= cut_B[:, None], axis=-1) >= top_k_B

    return _cut(weight_BV, _largest(enough, top_k_B.shape))


def _nucleus(weight_BV: Array, top_p_B: Array) -> Float[Array, "B V"]:
    needed_B = top_p_B * jnp.sum(weight_BV, axis=-1)

    def enough(cut_B: Array) -> Array:
        return jnp.sum(_cut(weight_BV, cut_B), axis=-1) >= needed_B

    # Where `top_p` is 1, rounding must not cut anything off.
    return jnp.where((top_p_B < 1)[:, None], _cut(weight_BV, _largest(enough, top_p_B.shape)), weight_BV)


def _cut(weight_BV: Array, cut_B: Array) -> Float[Array, "B V"]:
    return jnp.where(weight_BV >= cut_B[:, None], weight_BV, 0.0)


def _largest(enough: object, shape: tuple[int, ...]) -> Float[Array, " B"]:
    """The largest number in [0, 1] of which `enough` holds, for each row; it holds of 0."""

    def as_float(bits_B: Array) -> Array:
        return jax.lax.bitcast_convert_type(bits_B, jnp.float32)

    def halve(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        low_B, high_B = state  # enough(low), not enough(high)
        middle_B = low_B + (high_B - low_B) // 2
        good_B = enough(as_float(middle_B))  # type: ignore[operator]
        return jnp.where(good_B, middle_B, low_B), jnp.where(good_B, high_B, middle_B)

    start = jnp.zeros(shape, jnp.int32), jnp.full(shape, _ONE_BITS + 1, jnp.int32)
    return as_float(jax.lax.fori_loop(0, 30, halve, start)[0])


def _inverse(weight_BV: Array, uniform_B: Array, greedy_B: Array) -> Int[Array, " B"]:
    """The token at which the cumulative weight passes a share `uniform_B` of the whole: first its block, then itself.

    Args:
        greedy_B: the likeliest token of each row, which is never cut off.
    """
    rows, vocab_size = weight_BV.shape
    blocks = -(-vocab_size // _BLOCK)
    weight_BNb = jnp.pad(weight_BV, ((0, 0), (0, blocks * _BLOCK - vocab_size))).reshape(rows, blocks, _BLOCK)
    upto_BN = jnp.cumsum(jnp.sum(weight_BNb, axis=-1), axis=-1)
    target_B1 = (uniform_B * upto_BN[:, -1])[:, None]
    block_B = jnp.minimum(jnp.sum(upto_BN <= target_B1, axis=-1), blocks - 1)
    before_B = jnp.where(
        block_B > 0, jnp.take_along_axis(upto_BN, jnp.maximum(block_B - 1, 0)[:, None], axis=1)[:, 0], 0.0
    )
    weight_Bb = jnp.take_along_axis(weight_BNb, block_B[:, None, None], axis=1)[:, 0]
    upto_Bb = before_B[:, None] + jnp.cumsum(weight_Bb, axis=-1)
    passed_B = jnp.sum(upto_Bb <= target_B1, axis=-1)
    # Rounding may put the target at or beyond the last sum, or on a token that was cut off: the last one with a weight.
    last_B = _BLOCK - 1 - jnp.argmax(weight_Bb[:, ::-1] > 0, axis=-1)
    within_B = jnp.minimum(passed_B, last_B)
    token_B = (block_B * _BLOCK + within_B).astype(jnp.int32)
    # Sums of blocks need not rise in every last digit, so that a share of nearly 1 may find a block in which all was cut off.
    chosen_B = jnp.take_along_axis(weight_Bb, within_B[:, None], axis=1)[:, 0]
    return jnp.where(chosen_B > 0, token_B, greedy_B)
