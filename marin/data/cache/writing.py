"""Writes token caches: the tokens chunk by chunk, then the documents' ends, and last the ledger.

The same rows give the same files, however they are cut into blocks. Memory is bounded by one outer chunk of tokens (0.5 GB,
and what it is compressed to) and by eight bytes a document.
"""

import array
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from marin.data.cache.ledger import content_digest, write_ledger
from marin.data.zarr_store import OURS, Chunking, StoredArray
from marin.errors import DataError
from marin.storage import files

_ROWS = 1024


class TokenBlock(NamedTuple):
    """The next tokens, and the lengths of the next documents; in the end both cover the same documents."""

    tokens: Int32[np.ndarray, " n"]
    lengths: Int64[np.ndarray, " d"]


def write_cache(
    path: str, rows: Iterable[Sequence[int]], *, tokenizer_digest: str, vocab_size: int, chunking: Chunking = OURS
) -> None:
    """Writes the rows, one a document, as a cache at `path`, in place of what is there.

    Raises:
        DataError: there are no rows, or an id lies outside the vocabulary.
    """
    write_token_blocks(
        path, _blocks_of(rows), tokenizer_digest=tokenizer_digest, vocab_size=vocab_size, chunking=chunking
    )


def write_token_blocks(
    path: str,
    blocks: Iterable[TokenBlock],
    *,
    tokenizer_digest: str,
    vocab_size: int,
    documents_digest: str | None = None,
    chunking: Chunking = OURS,
) -> None:
    """`write_cache` from arrays.

    Args:
        documents_digest: names what the tokens were made from; recorded in the ledger.
    Raises:
        DataError: there are no documents, or an id lies outside the vocabulary.
    """
    files.remove_tree(path)
    data = StoredArray.create(files.join(path, "input_ids", "data"), np.dtype(np.int32), chunking)
    ends = array.array("q", [0])
    digest = hashlib.sha256()
    written = 0
    for chunk in _chunks(blocks, ends, chunking.outer):
        if int(chunk.min()) < 0 or int(chunk.max()) >= vocab_size:
            raise DataError(f"{path}: a token id lies outside range({vocab_size}), the tokenizer's vocabulary")
        digest.update(np.ascontiguousarray(chunk, "<i4").data)
        data.write(written, chunk)
        written += len(chunk)
        del chunk  # before the next one is filled
    num_rows = len(ends) - 1
    if num_rows == 0:
        raise DataError(f"{path}: there are no documents to tokenize: check the step that makes them")
    assert ends[-1] == written, (ends[-1], written)
    ends[0] = num_rows
    offsets = np.frombuffer(ends, np.int64)
    stored = StoredArray.create(files.join(path, "input_ids", "offsets"), np.dtype(np.int64), chunking)
    for start in range(0, len(offsets), chunking.outer):
        stored.write(start, offsets[start : start + chunking.outer])
    files.sync_tree(path)
    write_ledger(
        path,
        num_rows,
        tokenizer_digest=tokenizer_digest,
        vocab_size=vocab_size,
        content_digest=content_digest(digest, offsets),
        documents_digest=documents_digest,
    )


def _blocks_of(rows: Iterable[Sequence[int]]) -> Iterator[TokenBlock]:
    source = iter(rows)
    while batch := list(itertools.islice(source, _ROWS)):
        tokens = np.fromiter(itertools.chain.from_iterable(batch), np.int32)
        yield TokenBlock(tokens, np.array([len(row) for row in batch], np.int64))


def _chunks(blocks: Iterable[TokenBlock], ends: "array.array[int]", size: int) -> Iterator[Int32[np.ndarray, " n"]]:
    """The tokens in pieces of one outer chunk, so that no chunk file is written twice; appends where documents end."""
    buffer = np.empty(size, np.int32)  # takes memory as it is filled
    filled = 0
    for block in blocks:
        ends.frombytes((np.cumsum(block.lengths) + ends[-1]).astype(np.int64).tobytes())
        rest = block.tokens
        while len(rest):
            taken = min(len(rest), size - filled)
            buffer[filled : filled + taken] = rest[:taken]
            filled, rest = filled + taken, rest[taken:]
            if filled == size:
                yield buffer
                del buffer
                buffer = np.empty(size, np.int32)
                filled = 0
    if filled:
        yield buffer[:filled]
