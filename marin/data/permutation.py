"""A keyed bijection of `range(length)`, computed one index at a time, so that shuffling needs no state or memory.

A balanced Feistel network permutes the next larger power of four; values that fall outside `range(length)` are sent
through again until they fall inside (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002),
which takes at most 4 passes on average. It shuffles data; it is not meant to keep secrets.
"""

import functools
import hashlib
from typing import Any, overload

import numpy as np
from jaxtyping import Int64, Integer, UInt64

_ROUNDS = 6
# The multipliers of MurmurHash3's 64-bit finalizer.
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


@overload
def permute(index: int, length: int, seed: int) -> int: ...
@overload
def permute(index: Integer[np.ndarray, "..."], length: int, seed: int) -> Int64[np.ndarray, "..."]: ...
def permute(index: Any, length: int, seed: int) -> Any:
    """Where the bijection of `range(length)` that `seed` names sends `index`.

    Args:
        index: one index or an array of them, each in `range(length)`.
        seed: any integer.
    Raises:
        ValueError: `length` is not positive, or an index lies outside `range(length)`.
    """
    given = np.asarray(index)
    if length < 1:
        raise ValueError(f"cannot permute range({length}): length must be positive")
    if given.size and (int(given.min()) < 0 or int(given.max()) >= length):
        raise ValueError(f"index {int(given.min())} to {int(given.max())} lies outside range({length})")
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed)
    values = np.atleast_1d(given).astype(np.uint64)
    values = _feistel(values, half_bits, keys)
    outside = values >= length
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = values >= length
    permuted = values.astype(np.int64)
    return int(permuted[0]) if given.ndim == 0 else permuted.reshape(given.shape)


def in_passes(ordinals: Int64[np.ndarray, " n"], length: int, seed: int, purpose: str) -> Int64[np.ndarray, " n"]:
    """The items of `range(length)` at these places of an endless order, in which each pass has every item once, shuffled anew.

    Args:
        purpose: names the passes, as for `derive_seed`.
    """
    passes, places = np.divmod(ordinals, length)
    chosen = np.empty_like(places)
    for number in np.unique(passes):
        here = passes == number
        chosen[here] = permute(places[here], length, derive_seed(seed, purpose, int(number)))
    return chosen


def derive_seed(seed: int, purpose: str, number: int) -> int:
    """A seed of its own for the `number`-th use of `seed` for `purpose`, independent of every other."""
    return int.from_bytes(hashlib.sha256(f"marin {seed} {purpose} {number}".encode()).digest()[:8], "little")


def _feistel(values: UInt64[np.ndarray, " n"], half_bits: int, keys: tuple[np.uint64, ...]) -> UInt64[np.ndarray, " n"]:
    shift = np.uint64(half_bits)
    mask = np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        mixed = (right ^ key) * _MIX_1
        mixed ^= mixed >> _SHIFT
        mixed *= _MIX_2
        mixed ^= mixed >> _SHIFT
        left, right = right, left ^ (mixed & mask)
    return (left << shift) | right


@functools.lru_cache(maxsize=64)
def _round_keys(seed: int) -> tuple[np.uint64, ...]:
    return tuple(np.uint64(derive_seed(seed, "feistel round", r)) for r in range(_ROUNDS))
