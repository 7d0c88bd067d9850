"""Token caches as the text that they were made from, a page of documents at a time.

The ids of one page are read, whatever the size of the cache. Text needs the tokenizer: it is looked for in the record of
the step that made the cache, and, when the cache names the tokenizer's digest, among the prefix's other outputs. One of
another digest is not used: it would show text that never was. Without a tokenizer the ids are shown.
"""

import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Iterable

import numpy as np
from starlette.exceptions import HTTPException

from marin.data.cache import LEDGER, SPLIT, TokenCache
from marin.data.tokenizer import TOKENIZER_FILE, Tokenizer
from marin.errors import MarinError
from marin.site.browser import roots
from marin.site.browser.roots import Place
from marin.site.browser.text import SEARCH_SECONDS

PAGE = 20
TEXT_TOKENS = 2048
_SEARCH_DOCUMENTS = 256
_SEARCH_TOKENS = 1_000_000  # of a longer document only its beginning is searched
_TOKENIZER_BYTES = 64_000_000
_MOST_FILES = 20_000


@dataclasses.dataclass(frozen=True)
class TokenDocument:
    """Document `number`, from 1. `text` is of its first 2,048 tokens; None without a tokenizer."""

    number: int
    num_tokens: int
    ids: tuple[int, ...]
    text: str | None


@dataclasses.dataclass(frozen=True)
class TokenPage:
    """Documents from `first` on; `following` is the one to go on at, None at the end."""

    num_documents: int
    num_tokens: int
    vocab_size: int | None
    tokenizer: Place | None
    tokenizer_note: str
    documents: tuple[TokenDocument, ...]
    first: int
    following: int | None


def cache_at(place: Place) -> Place | None:
    """The directory of the cache at `place` or in `place/train`; None if there is none."""
    for parts in (place.parts, (*place.parts, SPLIT)):
        try:
            below = roots.resolve(place.root, parts)
        except HTTPException:
            continue
        if os.path.isfile(os.path.join(below.real, LEDGER)) and os.path.isdir(os.path.join(below.real, "input_ids")):
            return below
    return None


def read_documents(place: Place, candidates: Iterable[Place], first: int = 1, query: str = "") -> TokenPage:
    """A page of the cache at `place`; `candidates` are the `tokenizer.json` files to try, best first.

    Raises:
        HTTPException: 422, when the cache is incomplete or damaged; 403, when a file of it lies elsewhere.
    """
    _check_files(place)
    try:
        cache = TokenCache.open(place.real)
        tokenizer, where, note = _tokenizer(cache, candidates)
        first = min(max(first, 1), cache.num_documents)
        documents, following = _read(cache, tokenizer, first, query)
    except MarinError as error:
        raise HTTPException(422, str(error).replace(place.root.path.rstrip("/") + "/", "")) from None
    return TokenPage(cache.num_documents, len(cache), cache.vocab_size, where, note, tuple(documents), first, following)


def _read(
    cache: TokenCache, tokenizer: Tokenizer | None, first: int, query: str
) -> tuple[list[TokenDocument], int | None]:
    wanted = query.casefold()
    found: list[TokenDocument] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    start = first
    while start <= cache.num_documents:
        stop = min(start + (_SEARCH_DOCUMENTS if wanted else PAGE), cache.num_documents + 1)
        ends = cache.offsets.read(start - 1, stop).astype(np.int64)
        if start == 1:
            ends[0] = 0  # this entry holds the number of documents
        if (np.diff(ends) < 0).any() or int(ends[-1]) > len(cache):
            raise HTTPException(422, "The document offsets of this cache are not in order: it is damaged.")
        for number, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist()), start=start):
            ids = cache.data.read(begin, min(end, begin + (_SEARCH_TOKENS if wanted else TEXT_TOKENS)))
            text = tokenizer.decode(ids.tolist()) if tokenizer else None
            if wanted and wanted not in (text if text is not None else " ".join(map(str, ids.tolist()))).casefold():
                continue
            if len(ids) > TEXT_TOKENS and tokenizer:
                text = tokenizer.decode(ids[:TEXT_TOKENS].tolist())
            found.append(TokenDocument(number, end - begin, tuple(ids[:TEXT_TOKENS].tolist()), text))
            if len(found) == PAGE:
                return found, number + 1 if number < cache.num_documents else None
        start = stop
        if wanted and time.monotonic() > deadline:
            return found, start if start <= cache.num_documents else None
    return found, None


def _tokenizer(cache: TokenCache, candidates: Iterable[Place]) -> tuple[Tokenizer | None, Place | None, str]:
    digest = cache.tokenizer_digest
    other = False
    for place in candidates:
        data = roots.read_start(place, _TOKENIZER_BYTES)
        if data is None:
            continue
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            other = True
            continue
        try:
            tokenizer = _loaded(data)
        except MarinError:
            continue
        if (cache.vocab_size or 0) <= tokenizer.vocab_size:
            return tokenizer, place, ""
    if other:
        return None, None, "The tokenizer at hand is another than the one that made this cache, so ids are shown."
    return None, None, f"No {TOKENIZER_FILE} was found through the step that made this cache, so ids are shown."


@functools.lru_cache(maxsize=4)
def _loaded(data: bytes) -> Tokenizer:
    return Tokenizer(data, TOKENIZER_FILE)


def _check_files(place: Place) -> None:
    """TensorStore opens a cache's files by itself, so links among them are looked at before."""
    seen = 0
    for directory, folders, names in os.walk(place.real):
        for name in (*folders, *names):
            seen += 1
            path = os.path.join(directory, name)
            if os.path.islink(path):
                real = os.path.realpath(path)
                if not real.startswith(place.root.path.rstrip("/") + "/"):
                    raise HTTPException(403, "A file of this token cache is a link that leads out of the folder.")
        if seen > _MOST_FILES:
            raise HTTPException(422, f"This token cache has more than {_MOST_FILES:,} files.")
