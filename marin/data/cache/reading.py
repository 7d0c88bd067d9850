"""Opens token caches, ours and those of others, and reads parts of them.

Both arrays are declared 2^54 long and only their beginning exists; a chunk that is missing reads as zeros. So opening
checks that each chunk file that must be there is there, and that the offsets agree with the ledger. A small cache is read
into memory when it is first used, and checked against the digest that it records. A large one is read part by part;
`marin cache verify` checks it whole.
"""

import functools
import hashlib
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from marin.data.cache.ledger import LEDGER, NEXT_STEP, content_digest, find_cache, metadata, read_ledger, recorded
from marin.data.zarr_store import StoredArray
from marin.errors import CacheError
from marin.storage import files

# Below this size the tokens are read once and kept, so that a batch costs a memory copy and no decompression.
IN_MEMORY_BYTES = 128_000_000
_READ_TOKENS = 4 * 1024 * 1024


class TokenCache:
    """A finished cache, opened for reading."""

    def __init__(self, path: str, ledger: dict[str, Any], data: StoredArray, offsets: StoredArray, num_tokens: int):
        self.path = path
        self.num_documents: int = ledger["total_num_rows"]
        self.ledger = ledger
        self.data = data
        self.offsets = offsets
        """As they are stored: entry 0 holds the number of documents, entry i where document i - 1 ends."""
        self._num_tokens = num_tokens

    @staticmethod
    def open(path: str) -> "TokenCache":
        """Opens the cache at `path`, or in `path/train`.

        Raises:
            CacheError: there is none, it is unfinished, or a part of it is missing.
        """
        path = find_cache(path)
        ledger = read_ledger(path)
        data = StoredArray.open(files.join(path, "input_ids", "data"))
        offsets = StoredArray.open(files.join(path, "input_ids", "offsets"))
        num_rows = ledger["total_num_rows"]
        offsets.require(num_rows + 1)
        ends = offsets.read(0, 1), offsets.read(num_rows, num_rows + 1)
        if num_rows == 0 or int(ends[0][0]) != num_rows:
            raise CacheError(
                f"{path}: {LEDGER} counts {num_rows} documents, the offsets {int(ends[0][0])}: {NEXT_STEP}"
            )
        data.require(int(ends[1][0]))
        return TokenCache(path, ledger, data, offsets, int(ends[1][0]))

    def __len__(self) -> int:
        """The number of tokens."""
        return self._num_tokens

    @property
    def tokens(self) -> "_Tokens":
        """The tokens of all documents as one sequence; `tokens[i:j]` reads that part."""
        return _Tokens(self)

    @functools.cached_property
    def document_offsets(self) -> Int64[np.ndarray, " N+1"]:
        """Document i is `tokens[document_offsets[i] : document_offsets[i + 1]]`."""
        offsets = self.offsets.read(0, self.num_documents + 1).astype(np.int64)
        offsets[0] = 0
        if (np.diff(offsets) < 0).any() or offsets[-1] != self._num_tokens:
            raise CacheError(f"{self.path}: the document offsets are not in order: {NEXT_STEP}")
        offsets.setflags(write=False)
        return offsets

    @property
    def vocab_size(self) -> int | None:
        """As the ledger states it; None if it does not."""
        value = metadata(self.ledger, "preprocessor_metadata").get("vocab_size")
        return value if isinstance(value, int) else None

    @property
    def tokenizer_digest(self) -> str | None:
        """SHA-256 of the `tokenizer.json` that made the cache; None if the cache does not say."""
        return recorded(self.ledger, "tokenizer_digest")

    @property
    def states_digest(self) -> bool:
        """Whether `digest` is known without reading all tokens."""
        return recorded(self.ledger, "digest") is not None

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 that names the content: as recorded, or for a cache from elsewhere computed by reading it all."""
        return recorded(self.ledger, "digest") or self.compute_digest()

    def compute_digest(self) -> str:
        """The digest of what is stored, read in blocks; `digest` if nothing is damaged."""
        tokens = hashlib.sha256()
        for start in range(0, self._num_tokens, _READ_TOKENS):
            block = self._read(start, min(start + _READ_TOKENS, self._num_tokens))
            tokens.update(np.ascontiguousarray(block, "<i4").data)
        return content_digest(tokens, self.document_offsets)

    def windows(self, starts_B: Int64[np.ndarray, " B"], length: int) -> Int32[np.ndarray, "B length"]:
        """`tokens[start : start + length]` for each start; every window must lie inside the cache."""
        if len(starts_B) and not (int(starts_B.min()) >= 0 and int(starts_B.max()) + length <= self._num_tokens):
            raise IndexError(
                f"windows of {length} from {int(starts_B.min())} to {int(starts_B.max())} "
                f"leave range({self._num_tokens})"
            )
        if self._fits_in_memory:
            return self._in_memory[starts_B[:, None] + np.arange(length)]
        return self.data.read_many([(int(start), int(start) + length) for start in starts_B]).astype(
            np.int32, copy=False
        )

    @property
    def _fits_in_memory(self) -> bool:
        return self._num_tokens * 4 <= IN_MEMORY_BYTES

    @functools.cached_property
    def _in_memory(self) -> Int32[np.ndarray, " N"]:
        tokens = self.data.read(0, self._num_tokens).astype(np.int32, copy=False)
        stated = recorded(self.ledger, "digest")
        if stated is not None:
            found = content_digest(hashlib.sha256(np.ascontiguousarray(tokens, "<i4").data), self.document_offsets)
            if found != stated:
                raise CacheError(
                    f"{self.path}: the content has digest {found}, its ledger says {stated}, so "
                    f"the cache is damaged: {NEXT_STEP}"
                )
        tokens.setflags(write=False)
        return tokens

    def _read(self, start: int, stop: int) -> Int32[np.ndarray, " n"]:
        if self._fits_in_memory:
            return self._in_memory[start:stop]
        return self.data.read(start, stop).astype(np.int32, copy=False)


class _Tokens:
    """`cache.tokens`: slices of the token stream."""

    def __init__(self, cache: TokenCache):
        self._cache = cache

    def __len__(self) -> int:
        return len(self._cache)

    def __getitem__(self, part: slice) -> Int32[np.ndarray, " n"]:
        if not isinstance(part, slice):
            raise TypeError(f"tokens[{part!r}]: take a slice, such as tokens[0:1024]")
        start, stop, stride = part.indices(len(self))
        if stride != 1:
            raise ValueError(f"tokens[::{stride}]: only consecutive tokens can be read")
        return self._cache._read(start, max(start, stop))
