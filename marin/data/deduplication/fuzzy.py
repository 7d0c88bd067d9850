"""Fuzzy deduplication: of documents that are nearly the same, the first is kept.

1. Each shard is sketched (`minhash`), in parallel; a killed run goes on at the shard.
2. Band by band, documents with the same hash are candidates. A candidate pair is a duplicate when the Jaccard
   similarity of its shingles, computed and not estimated, reaches the threshold. Connected components of duplicates are
   groups: if A is like B and B like C, all three are one group, also across shards.
3. Of each group the first document in the order of the input is kept, the others are dropped, shard by shard.

Memory: one part of one band's hashes (`buckets`), and a cache of shingles of fixed size. On disk, while it runs: about
0.9 bytes for each byte of text.

Pairs that are in one group already are not compared. In a band a document is compared with at most 64 others, and with
at most 4 of a group: so where thousands of documents share a band and are no duplicates, which boilerplate does, a pair
can be missed; the other bands find it with the probability that `MinHashSettings.recall` says.
"""

import functools
import itertools
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int64, UInt32

from marin.data.deduplication.buckets import Bucket, buckets, first_of_equals
from marin.data.deduplication.components import Components
from marin.data.deduplication.minhash import MinHashSettings, jaccard, sketch_shard
from marin.data.deduplication.repeats import Repeats, drop_repeats
from marin.data.scratch import Scratch
from marin.data.shards import DocumentSet, transform_shards
from marin.execution.step import ExecutorStep, Input, placement, this_output_path

_MAX_COMPARISONS = 64
_MAX_OF_GROUP = 4
_CACHE_BYTES = 64_000_000
_BLOCK = 1 << 20
_MINHASH = MinHashSettings()


@dataclass(frozen=True)
class FuzzyConfig:
    """Args:
    documents: a document set.
    minhash: what counts as nearly the same.
    num_workers: processes; 0 is one a processor.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    minhash: MinHashSettings = _MINHASH
    output_path: str = this_output_path()
    num_workers: int = placement(default=0)


def dedup_fuzzy_documents_step(name: str, documents: Input, *, minhash: MinHashSettings = _MINHASH) -> ExecutorStep:
    """The step `deduplicated/{name}`: of documents that are nearly the same, the first."""
    return ExecutorStep(
        name=f"deduplicated/{name}",
        fn=dedup_fuzzy_documents,
        config=FuzzyConfig(documents, minhash),
        description=f"fuzzy deduplication at a Jaccard similarity of {minhash.threshold}",
    )


def dedup_fuzzy_documents(config: FuzzyConfig) -> None:
    """Writes the documents that are not nearly the same as an earlier one.

    Raises:
        DataError: the documents cannot be read.
    """
    source = DocumentSet.open(str(config.documents))
    settings = config.minhash
    with Scratch(config.output_path, "sketches", source, f"minhash {settings}") as scratch:
        scratch.compute(lambda shard, index: sketch_shard(shard, settings), config.num_workers)
        repeats = Repeats(scratch, [shard.num_documents for shard in source.shards])
        groups = _Groups(scratch, repeats, settings.threshold)
        for band in range(settings.bands):
            for bucket in buckets(scratch, band, repeats.bases, has_extras=False):
                groups.connect(bucket)
        groups.write()
        transform_shards(
            source,
            config.output_path,
            functools.partial(drop_repeats, repeats, "near duplicate"),
            stage="dedup_fuzzy_documents",
            settings=asdict(settings) | {"source_digest": source.digest},
            num_workers=config.num_workers,
        )


class _Groups:
    """Groups of near-duplicates, as far as the buckets so far show them."""

    def __init__(self, scratch: Scratch, repeats: Repeats, threshold: float):
        self._repeats, self._threshold = repeats, threshold
        self._shingles = _ShingleCache(scratch, repeats)
        self._num_documents = int(repeats.bases[-1])
        self._components = Components(scratch.file("components.npy"), self._num_documents)

    def connect(self, bucket: Bucket) -> None:
        """Compares the documents that have the same hash."""
        repeats, firsts = first_of_equals(bucket)
        shared = np.unique(np.concatenate([np.flatnonzero(repeats), firsts[repeats]]))
        if not len(shared):
            return
        # Runs of equal hashes; those that are within one group already have nothing left to find.
        positions, run_of = bucket.positions[shared], firsts[shared]
        roots = self._components.roots(positions)
        starts = np.flatnonzero(np.concatenate([[True], run_of[1:] != run_of[:-1]]))
        stops = np.append(starts[1:], len(shared))
        is_open = np.minimum.reduceat(roots, starts) != np.maximum.reduceat(roots, starts)
        for start, stop in zip(starts[is_open].tolist(), stops[is_open].tolist(), strict=True):
            self._connect_run(positions[start:stop].tolist())

    def _connect_run(self, positions: list[int]) -> None:
        members: dict[int, list[int]] = {}  # by the root of their group, of those that were looked at
        for position in positions:
            num_comparisons = 0
            root = self._components.root(position)
            others = itertools.islice((other for other in members if other != root), _MAX_COMPARISONS)
            for other in list(others):  # a list, as joining changes `members`; no longer than can be compared
                candidates = members[other][:_MAX_OF_GROUP]
                num_comparisons += len(candidates)
                if num_comparisons > _MAX_COMPARISONS:
                    break
                if any(self._are_similar(position, candidate) for candidate in candidates):
                    self._components.join(position, other)
                    joined = members.pop(other) + members.pop(root, [])
                    root = self._components.root(position)
                    members[root] = joined
            members.setdefault(root, []).append(position)

    def _are_similar(self, one: int, other: int) -> bool:
        return jaccard(self._shingles[one], self._shingles[other]) >= self._threshold

    def write(self) -> None:
        """Notes for every document that is not the first of its group which one is."""
        self._repeats.begin()
        for start in range(0, self._num_documents, _BLOCK):
            positions: Int64[np.ndarray, " n"] = np.arange(start, min(start + _BLOCK, self._num_documents))
            roots = self._components.roots(positions)
            is_repeat = roots != positions
            self._repeats.add(positions[is_repeat], roots[is_repeat])


class _ShingleCache:
    """The shingles of documents by position; those that were used last stay in memory."""

    def __init__(self, scratch: Scratch, repeats: Repeats):
        self._scratch, self._repeats = scratch, repeats
        self._kept: OrderedDict[int, UInt32[np.ndarray, " n"]] = OrderedDict()
        self._num_bytes = 0

    def __getitem__(self, position: int) -> UInt32[np.ndarray, " n"]:
        found = self._kept.get(position)
        if found is not None:
            self._kept.move_to_end(position)
            return found
        index, row = self._repeats.place_of(position)
        start, stop = self._scratch.read(index, "shingle-ends", row, row + 2).tolist()
        found = self._kept[position] = self._scratch.read(index, "shingles", start, stop)
        self._num_bytes += found.nbytes
        while self._num_bytes > _CACHE_BYTES and len(self._kept) > 2:
            self._num_bytes -= self._kept.popitem(last=False)[1].nbytes
        return found
