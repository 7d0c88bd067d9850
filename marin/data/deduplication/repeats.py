"""Which rows of each shard repeat an earlier one, and of which: kept on disk between finding and dropping them.

A row is a document or a paragraph, whatever the shard's hashes were made of. Positions count rows from the first of the
first shard, so the smaller position is the earlier row.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from marin.data.documents import Document, Dropped
from marin.data.scratch import Scratch

_PAIR = np.dtype([("row", "<i8"), ("first", "<i8")])


class Repeats:
    """Pairs of a row and the position of the earlier one that it repeats, in a file a shard."""

    def __init__(self, scratch: Scratch, counts: list[int]):
        self.bases: Int64[np.ndarray, " S+1"] = np.concatenate([[0], np.cumsum(np.array(counts, np.int64))])
        """The position of each shard's first row; the last is the number of rows."""
        self._scratch = scratch

    def begin(self) -> None:
        """Forgets what an earlier attempt has found."""
        for index in range(len(self.bases) - 1):
            self._scratch.file(f"repeats-{index:05d}").write_bytes(b"")

    def add(self, positions: Int64[np.ndarray, " n"], firsts: Int64[np.ndarray, " n"]) -> None:
        """Notes that each position repeats the one that is its first."""
        order = np.argsort(positions)
        positions, firsts = positions[order], firsts[order]
        cuts = np.searchsorted(positions, self.bases)
        for index in np.flatnonzero(np.diff(cuts)).tolist():
            pairs = np.empty(cuts[index + 1] - cuts[index], _PAIR)
            pairs["row"] = positions[cuts[index] : cuts[index + 1]] - self.bases[index]
            pairs["first"] = firsts[cuts[index] : cuts[index + 1]]
            with open(self._scratch.file(f"repeats-{index:05d}"), "ab") as stream:
                pairs.tofile(stream)

    def of_shard(self, index: int) -> dict[int, int]:
        """The first position of each row of the shard that repeats one."""
        pairs = np.fromfile(self._scratch.file(f"repeats-{index:05d}"), _PAIR)
        return dict(zip(pairs["row"].tolist(), pairs["first"].tolist(), strict=True))

    def id_at(self, position: int) -> str:
        """The id of the document at a position, where rows are documents and the pass keeps their ids as `ids`."""
        index, row = self.place_of(position)
        return self._scratch.read_string(index, "ids", row)

    def place_of(self, position: int) -> tuple[int, int]:
        """The index of the shard that holds a position, and which of its rows it is."""
        index = int(np.searchsorted(self.bases, position, side="right")) - 1
        return index, position - int(self.bases[index])


def drop_repeats(
    repeats: Repeats, reason: str, index: int, documents: Iterator[Document]
) -> Iterator[Document | Dropped]:
    """A shard's documents without those that repeat an earlier one, where rows are documents."""
    first_of = repeats.of_shard(index)
    for row, document in enumerate(documents):
        if row in first_of:
            yield Dropped(document.id, reason, f"of document {repeats.id_at(first_of[row])}")
        else:
            yield document
