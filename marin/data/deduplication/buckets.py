"""Finds equal hashes among any number of shards with bounded memory.

Each shard keeps its hashes sorted, and where in that order each of 4,096 equal parts of the 64-bit range begins. Equal
hashes lie in the same part, so the parts of all shards are read together, as many at once as fit, and sorted. Nothing
else is held, whatever the size of the corpus.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from marin.data.scratch import Scratch

_PARTS = 4096
# 40 bytes each while they are sorted.
_MAX_HASHES = 2_000_000


@dataclass(frozen=True)
class Bucket:
    """All hashes of one part of the range.

    Args:
        hashes: sorted.
        extras: the value kept with each hash.
        positions: of each hash, ascending among equal hashes: its row, counted from the first row of the first shard.
    """

    hashes: UInt64[np.ndarray, " n"]
    extras: UInt64[np.ndarray, " n"]
    positions: Int64[np.ndarray, " n"]


def sorted_hashes(
    hashes: UInt64[np.ndarray, "K n"],
    *,
    rows: Int64[np.ndarray, " n"] | None = None,
    extras: UInt64[np.ndarray, "K n"] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of one shard, for `buckets`: K tables of hashes of the same rows.

    Args:
        rows: ascending; by default 0, 1, 2, ...
        extras: kept with the hashes, such as 64 more bits of a longer hash.
    """
    order = np.argsort(hashes, axis=1, kind="stable")
    found = np.take_along_axis(hashes, order, axis=1)
    edges = np.arange(1, _PARTS, dtype=np.uint64) << np.uint64(64 - 12)
    bounds = [np.concatenate([[0], np.searchsorted(table, edges), [len(table)]]) for table in found]
    arrays = {
        "hashes": found.ravel(),
        "rows": (order if rows is None else rows[order]).astype(np.uint32).ravel(),
        "bounds": np.array(bounds, np.int64),
    }
    return arrays if extras is None else arrays | {"extras": np.take_along_axis(extras, order, axis=1).ravel()}


def buckets(scratch: Scratch, table: int, bases: Int64[np.ndarray, " S+1"], *, has_extras: bool) -> Iterator[Bucket]:
    """All hashes of one table of all shards, part by part.

    Args:
        bases: the position of each shard's first row.
    """
    shards = range(len(scratch.source.shards))
    bounds = np.stack([scratch.read(index, "bounds", table, table + 1)[0] for index in shards])
    offsets = table * bounds[:, -1]
    before = bounds.sum(axis=0)
    start = 0
    while start < _PARTS:
        stop = max(int(np.searchsorted(before, before[start] + _MAX_HASHES, side="right")) - 1, start + 1)
        pieces = []
        for index in shards:
            part = (int(offsets[index] + bounds[index, start]), int(offsets[index] + bounds[index, stop]))
            hashes = scratch.read(index, "hashes", *part)
            extras = scratch.read(index, "extras", *part) if has_extras else hashes
            pieces.append((hashes, extras, scratch.read(index, "rows", *part) + bases[index]))
        hashes, extras, positions = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        order = np.lexsort((extras, hashes)) if has_extras else np.argsort(hashes, kind="stable")
        yield Bucket(hashes[order], extras[order], positions[order])
        start = stop


def first_of_equals(bucket: Bucket) -> tuple[Bool[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Whether each entry repeats an earlier one (hash and extra alike), and the index of the first of its equals."""
    repeats = np.zeros(len(bucket.hashes), bool)
    repeats[1:] = (bucket.hashes[1:] == bucket.hashes[:-1]) & (bucket.extras[1:] == bucket.extras[:-1])
    return repeats, np.maximum.accumulate(np.where(repeats, 0, np.arange(len(repeats))))
