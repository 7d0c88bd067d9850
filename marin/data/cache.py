"""Token caches in Levanter's layout: two zarr3 arrays through TensorStore, and a ledger that is written last.

    train/shard_ledger.json        row count, `is_finished`, metadata; there is no cache without a finished one
    train/input_ids/data/          the token ids of all documents, one after the other
    train/input_ids/offsets/       [0] is the number of documents, [i] is where document i - 1 ends

Both arrays are declared 2^54 long and only their beginning exists; a chunk that is missing reads as zeros. So opening
checks that each chunk file that must be there is there, and that the offsets agree with the ledger. Caches written here
also record the digest of their content in the ledger's metadata, where Levanter ignores it, and reading one into memory
checks it. Caches from elsewhere are read as they are.
"""

import array
import functools
import hashlib
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from marin.data.tokenizer import Tokenizer, text_batches
from marin.data.zarr_store import OUTER_CHUNK, StoredArray
from marin.errors import CacheError, DataError, StorageError
from marin.execution.step import ExecutorStep, InputName, this_output_path
from marin.storage import files

LEDGER = "shard_ledger.json"
SPLIT = "train"
# Below this size the tokens are read once and kept, so that a batch costs a memory copy and no decompression.
IN_MEMORY_BYTES = 256_000_000
_READ_TOKENS = 16 * 1024 * 1024
_NEXT_STEP = "remove the directory and run the step that writes it again"


@dataclass(frozen=True)
class TokenizeConfig:
    """Args:
    documents: a `.jsonl.zst` path.
    tokenizer: a `tokenizer.json`, or a directory with one.
    """

    documents: str | InputName
    tokenizer: str | InputName | ExecutorStep
    output_path: str = this_output_path()


def tokenize_step(name: str, documents: str | InputName, tokenizer: str | InputName | ExecutorStep) -> ExecutorStep:
    """The step `tokenized/{name}`, whose cache lies in `train` below its output path."""
    return ExecutorStep(
        name=f"tokenized/{name}",
        fn=tokenize,
        config=TokenizeConfig(documents, tokenizer),
        description="documents as a token cache in Levanter's layout",
    )


def tokenize(config: TokenizeConfig) -> None:
    """Encodes the documents, each as BOS and its tokens, into `{output_path}/train`.

    Raises:
        DataError: the documents or the tokenizer cannot be read.
    """
    tokenizer = Tokenizer.load(str(config.tokenizer))
    rows = (
        [tokenizer.bos_id, *ids]
        for texts in text_batches(str(config.documents))
        for ids in tokenizer.encode_batch(texts)
    )
    write_cache(
        files.join(config.output_path, SPLIT), rows, tokenizer_digest=tokenizer.digest, vocab_size=tokenizer.vocab_size
    )


def write_cache(path: str, rows: Iterable[list[int]], *, tokenizer_digest: str, vocab_size: int) -> None:
    """Writes the rows as a cache at `path`, in place of what is there.

    Memory is bounded by one outer chunk of tokens (0.5 GB), however many rows there are.
    """
    files.remove_tree(path)
    data = StoredArray.create(files.join(path, "input_ids", "data"), np.dtype(np.int32))
    offsets = array.array("q", [0])
    token_digest = hashlib.sha256()
    written = 0
    for block in _blocks(rows, offsets):
        if int(block.min()) < 0 or int(block.max()) >= vocab_size:
            raise DataError(f"{path}: a token id lies outside range({vocab_size}), the tokenizer's vocabulary")
        token_digest.update(block.astype("<i4").tobytes())
        data.write(written, block)
        written += len(block)
    num_rows = len(offsets) - 1
    if num_rows == 0:
        raise DataError(f"{path}: there are no documents to tokenize: check the step that makes them")
    offsets[0] = num_rows
    offsets_array = np.frombuffer(offsets, np.int64)
    StoredArray.create(files.join(path, "input_ids", "offsets"), np.dtype(np.int64)).write(0, offsets_array)
    files.sync_tree(path)
    files.write_json(
        files.join(path, LEDGER),
        {
            "total_num_rows": num_rows,
            "shard_rows": {"": num_rows},
            "is_finished": True,
            "finished_shards": [""],
            "field_counts": {},
            "metadata": {
                "preprocessor_metadata": {
                    "tokenizer": f"sha256:{tokenizer_digest}",
                    "vocab_size": vocab_size,
                    "return_attention_mask": False,
                    "padding": False,
                    "max_length": None,
                    "append_bos": True,
                    "append_eos": False,
                },
                "marin": {
                    "digest": _content_digest(token_digest.hexdigest(), offsets_array),
                    "tokenizer_digest": tokenizer_digest,
                },
            },
        },
    )


class TokenCache:
    """A finished cache, opened for reading."""

    def __init__(self, path: str, ledger: dict[str, Any], data: StoredArray, offsets: StoredArray, num_tokens: int):
        self.path = path
        self.num_documents: int = ledger["total_num_rows"]
        self._ledger = ledger
        self._data = data
        self._offsets = offsets
        self._num_tokens = num_tokens

    @staticmethod
    def open(path: str) -> "TokenCache":
        """Opens the cache at `path`, or in `path/train`.

        Raises:
            CacheError: there is none, it is unfinished, or a part of it is missing.
        """
        if not files.exists(files.join(path, LEDGER)) and files.exists(files.join(path, SPLIT, LEDGER)):
            path = files.join(path, SPLIT)
        ledger = _read_ledger(path)
        data = StoredArray.open(files.join(path, "input_ids", "data"))
        offsets = StoredArray.open(files.join(path, "input_ids", "offsets"))
        num_rows = ledger["total_num_rows"]
        offsets.require(num_rows + 1)
        ends = offsets.read(0, 1), offsets.read(num_rows, num_rows + 1)
        if num_rows == 0 or int(ends[0][0]) != num_rows:
            raise CacheError(
                f"{path}: {LEDGER} counts {num_rows} documents, the offsets {int(ends[0][0])}: {_NEXT_STEP}"
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
        offsets = self._offsets.read(0, self.num_documents + 1).astype(np.int64)
        offsets[0] = 0
        if (np.diff(offsets) < 0).any() or offsets[-1] != self._num_tokens:
            raise CacheError(f"{self.path}: the document offsets are not in order: {_NEXT_STEP}")
        offsets.setflags(write=False)
        return offsets

    @property
    def vocab_size(self) -> int | None:
        """As the ledger states it; None if it does not."""
        value = self._metadata("preprocessor_metadata").get("vocab_size")
        return value if isinstance(value, int) else None

    @property
    def tokenizer_digest(self) -> str | None:
        """SHA-256 of the `tokenizer.json` that made the cache; None if the cache does not say."""
        value = self._metadata("marin").get("tokenizer_digest")
        return value if isinstance(value, str) else None

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 that names the content: as recorded, or for a cache from elsewhere computed by reading it all."""
        return self._recorded_digest or self.compute_digest()

    def compute_digest(self) -> str:
        """The digest of what is stored, read in blocks; `digest` if nothing is damaged."""
        token_digest = hashlib.sha256()
        for start in range(0, self._num_tokens, _READ_TOKENS):
            token_digest.update(self._read(start, min(start + _READ_TOKENS, self._num_tokens)).astype("<i4").tobytes())
        return _content_digest(token_digest.hexdigest(), self.document_offsets)

    def windows(self, starts_B: Int64[np.ndarray, " B"], length: int) -> Int32[np.ndarray, "B length"]:
        """`tokens[start : start + length]` for each start; every window must lie inside the cache."""
        if len(starts_B) and not (int(starts_B.min()) >= 0 and int(starts_B.max()) + length <= self._num_tokens):
            raise IndexError(
                f"windows of {length} from {int(starts_B.min())} to {int(starts_B.max())} "
                f"leave range({self._num_tokens})"
            )
        if self._fits_in_memory:
            return self._in_memory[starts_B[:, None] + np.arange(length)]
        return self._data.read_many([(int(start), int(start) + length) for start in starts_B]).astype(
            np.int32, copy=False
        )

    @property
    def _fits_in_memory(self) -> bool:
        return self._num_tokens * 4 <= IN_MEMORY_BYTES

    @functools.cached_property
    def _in_memory(self) -> Int32[np.ndarray, " N"]:
        tokens = self._data.read(0, self._num_tokens).astype(np.int32, copy=False)
        if self._recorded_digest is not None:
            found = _content_digest(hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(), self.document_offsets)
            if found != self._recorded_digest:
                raise CacheError(
                    f"{self.path}: the content has digest {found}, its ledger says {self._recorded_digest}, so "
                    f"the cache is damaged: {_NEXT_STEP}"
                )
        tokens.setflags(write=False)
        return tokens

    def _read(self, start: int, stop: int) -> Int32[np.ndarray, " n"]:
        if self._fits_in_memory:
            return self._in_memory[start:stop]
        return self._data.read(start, stop).astype(np.int32, copy=False)

    @property
    def _recorded_digest(self) -> str | None:
        value = self._metadata("marin").get("digest")
        return value if isinstance(value, str) else None

    def _metadata(self, key: str) -> dict[str, Any]:
        value = (self._ledger.get("metadata") or {}).get(key)
        return value if isinstance(value, dict) else {}


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


def _blocks(rows: Iterable[list[int]], offsets: "array.array[int]") -> Iterator[Int32[np.ndarray, " n"]]:
    """The rows end to end in pieces of one outer chunk, so that no chunk file is written twice; notes row ends."""
    pieces: list[np.ndarray] = []
    size = total = 0
    for row in rows:
        piece = np.array(row, np.int32)
        total += len(piece)
        offsets.append(total)
        while size + len(piece) >= OUTER_CHUNK:
            room = OUTER_CHUNK - size
            yield np.concatenate([*pieces, piece[:room]])
            pieces, size, piece = [], 0, piece[room:]
        pieces.append(piece)
        size += len(piece)
    if size:
        yield np.concatenate(pieces)


def _content_digest(token_digest: str, offsets: Int64[np.ndarray, " N+1"]) -> str:
    ends = hashlib.sha256(offsets[1:].astype("<i8").tobytes()).hexdigest()
    return hashlib.sha256(f"tokens {token_digest} ends {ends}".encode()).hexdigest()


def _read_ledger(path: str) -> dict[str, Any]:
    where = files.join(path, LEDGER)
    if not files.exists(where):
        raise CacheError(
            f"{path} is no finished token cache ({LEDGER} is missing): run the step that writes it, or give the "
            f"directory that holds {posixpath.join(SPLIT, LEDGER)}"
        )
    try:
        ledger = files.read_json(where)
    except StorageError as error:
        raise CacheError(str(error)) from None
    rows = ledger.get("total_num_rows") if isinstance(ledger, dict) else None
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
        raise CacheError(f"{where}: `total_num_rows` is {rows!r}, expected a count: {_NEXT_STEP}")
    if ledger.get("is_finished") is not True:
        raise CacheError(
            f"{where}: `is_finished` is {ledger.get('is_finished')!r}, so the cache was never completed: {_NEXT_STEP}"
        )
    return dict(ledger)
