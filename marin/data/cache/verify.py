"""Checks a token cache whole: ledger, declarations, files, document ends, ids and digests; goes on after a finding.

A cache written here records the digest of every file, so each flipped bit is found. One from elsewhere records none:
every chunk is read, and damage shows where a chunk cannot be decompressed, ids leave the vocabulary, or ends are out of
order. Damage that decompresses to other ids of the vocabulary stays unseen there, and the outcome says so.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from marin.data.cache.ledger import content_digest, find_cache, read_ledger, recorded, recorded_files
from marin.data.cache.reading import TokenCache
from marin.errors import CacheError, StorageError
from marin.storage import files

_READ_TOKENS = 4 * 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """One check and what came of it."""

    ok: bool
    text: str


def verify_cache(path: str) -> Iterator[Finding]:
    """The checks of the cache at `path` or in `path/train`, one after the other; it is whole if all are `ok`."""
    path = find_cache(path)
    try:
        ledger = read_ledger(path)
    except CacheError as error:
        yield Finding(False, str(error))
        return
    yield Finding(True, f"ledger: finished, {ledger['total_num_rows']:,} documents")
    stated = recorded_files(ledger)
    problems = [_file_problem(files.join(path, name), digest) for name, digest in stated.items()]
    yield from (Finding(False, problem) for problem in problems if problem)
    if stated and not any(problems):
        yield Finding(True, f"files: {len(stated)}, all with the digests that the ledger records")
    try:
        cache = TokenCache.open(path)
        offsets = cache.document_offsets
    except CacheError as error:
        yield Finding(False, str(error))
        return
    yield Finding(True, f"documents: {cache.num_documents:,}, their ends are in order, {len(cache):,} tokens")
    tokens = hashlib.sha256()
    unread = 0
    lowest, highest = 0, 0
    for start in range(0, len(cache), _READ_TOKENS):
        stop = min(start + _READ_TOKENS, len(cache))
        try:
            block = cache.data.read(start, stop)
        except CacheError as error:
            unread += 1
            yield Finding(False, f"tokens {start:,} to {stop:,}: {error}")
            continue
        tokens.update(np.ascontiguousarray(block, "<i4").data)
        lowest, highest = min(lowest, int(block.min())), max(highest, int(block.max()))
    if unread:
        return
    limit = cache.vocab_size
    if lowest < 0 or (limit is not None and highest >= limit):
        yield Finding(False, f"ids: from {lowest:,} to {highest:,}, the ledger says there are {limit}")
    elif limit is not None:
        yield Finding(True, f"ids: all below {limit:,}, the vocabulary that the ledger states")
    else:
        yield Finding(True, f"ids: the highest is {highest:,}; the ledger states no vocabulary")
    found, expected = content_digest(tokens, offsets), recorded(ledger, "digest")
    if expected is None:
        yield Finding(True, f"digest: {found}; every chunk can be read, but the ledger records none to compare it with")
    elif found != expected:
        yield Finding(False, f"digest: the content has {found}, the ledger says {expected}: it is damaged")
    else:
        yield Finding(True, f"digest: {found}, as the ledger says")


def _file_problem(path: str, digest: str) -> str | None:
    try:
        found = files.sha256_file(path)
    except StorageError as error:
        return str(error)
    return None if found == digest else f"{path} is not the file that was written: its SHA-256 is {found}, not {digest}"
