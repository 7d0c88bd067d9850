"""The tokens of one shard of documents, as plain files between encoding and the cache.

    pieces/shard-00000.tokens      the ids, little-endian int32, each document after the beginning token
    pieces/shard-00000.lengths     the number of ids of each document, little-endian int64
    pieces/shard-00000.json        what they were made from, counts and digests; written last

A piece whose record is there, and whose files have the digests that it states, is done.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from jaxtyping import Int32

from marin.data.batches import document_batches
from marin.data.cache.writing import TokenBlock
from marin.data.documents import Document, text_bytes
from marin.data.shard_writer import shard_name
from marin.data.shards import Shard
from marin.data.tokenizer import Tokenizer
from marin.errors import DataError, StorageError
from marin.storage import files

_FORMAT = "marin token piece 1"
_BATCH_CHARS = 2_000_000
_READ_TOKENS = 4 * 1024 * 1024
_TOKENS, _LENGTHS, _RECORD = ".tokens", ".lengths", ".json"

Record = dict[str, Any]


@dataclass(frozen=True)
class PieceWriter:
    """Makes the pieces of one tokenizer below `path`; can be sent to another process.

    Args:
        num_threads: that encode one shard.
        on_batch: is told the bytes of text and the tokens of what has been encoded.
    """

    path: str
    tokenizer_path: str
    tokenizer_digest: str
    num_threads: int = 1
    on_batch: Callable[[int, int], None] | None = None

    def finished(self, index: int, shard: Shard) -> Record | None:
        """The record of a piece that is done; None if it must be made."""
        base = piece_path(self.path, index)
        try:
            record = files.read_json(base + _RECORD)
            if record["made_from"] != self._made_from(shard):
                return None
            found = {ending: files.sha256_file(base + ending) for ending in (_TOKENS, _LENGTHS)}
        except (StorageError, KeyError, TypeError):
            return None
        return dict(record) if record.get("digests") == found else None

    def write(self, entry: tuple[int, Shard]) -> Record:
        """Encodes the shard as piece number `index`, in place of what is there, and returns its record.

        Raises:
            DataError: the shard or the tokenizer is damaged.
        """
        index, shard = entry
        tokenizer = _tokenizer(self.tokenizer_path)
        if tokenizer.digest != self.tokenizer_digest:
            raise DataError(f"{self.tokenizer_path} was replaced while it was in use: run the command again")
        base = piece_path(self.path, index)
        files.remove_file(base + _RECORD)
        bos = np.array([tokenizer.bos_id], np.int32)
        digests = {_TOKENS: hashlib.sha256(), _LENGTHS: hashlib.sha256()}
        record: Record = {"made_from": self._made_from(shard), "documents": 0, "tokens": 0, "bytes": 0}
        with files.writing(base + _TOKENS) as tokens_file, files.writing(base + _LENGTHS) as lengths_file:
            for documents in document_batches(shard.documents(), _BATCH_CHARS):
                arrays = _encode(tokenizer, documents, shard, self.num_threads)
                lengths = np.fromiter((len(ids) + 1 for ids in arrays), np.int64, len(arrays))
                tokens = np.concatenate([part for ids in arrays for part in (bos, ids)])
                _append(tokens_file, digests[_TOKENS], tokens.astype("<i4", copy=False))
                _append(lengths_file, digests[_LENGTHS], lengths.astype("<i8", copy=False))
                size = sum(text_bytes(document.text) for document in documents)
                record["documents"] += len(documents)
                record["tokens"] += len(tokens)
                record["bytes"] += size
                if self.on_batch is not None:
                    self.on_batch(size, len(tokens))
        record["digests"] = {ending: digest.hexdigest() for ending, digest in digests.items()}
        files.write_json(base + _RECORD, record)
        return record

    def _made_from(self, shard: Shard) -> str:
        return f"{_FORMAT}, documents {shard.digest}, tokenizer {self.tokenizer_digest}"


def read_piece(path: str, index: int) -> Iterator[TokenBlock]:
    """A finished piece, first its lengths and then its tokens, in blocks that bound memory."""
    base = piece_path(path, index)
    yield TokenBlock(np.empty(0, np.int32), np.frombuffer(files.read_bytes(base + _LENGTHS), "<i8").astype(np.int64))
    for tokens in _read_tokens(base + _TOKENS):
        yield TokenBlock(tokens, np.empty(0, np.int64))


def piece_path(path: str, index: int) -> str:
    return files.join(path, shard_name(index))


def _read_tokens(path: str) -> Iterator[Int32[np.ndarray, " n"]]:
    with files.explained(path, "read"), files.open_for_reading(path) as stream:
        while block := stream.read(4 * _READ_TOKENS):
            yield np.frombuffer(block, "<i4").astype(np.int32, copy=False)


def _encode(tokenizer: Tokenizer, documents: list[Document], shard: Shard, num_threads: int) -> list[np.ndarray]:
    try:
        return tokenizer.encode_arrays([document.text for document in documents], num_threads)
    except DataError as error:
        raise DataError(f"{shard.path}, in documents {documents[0].id!r} to {documents[-1].id!r}: {error}") from None


def _append(file: IO[bytes], digest: "hashlib._Hash", values: np.ndarray) -> None:
    data = np.ascontiguousarray(values).data.cast("B")
    digest.update(data)
    file.write(data)


@functools.lru_cache(maxsize=1)
def _tokenizer(path: str) -> Tokenizer:
    return Tokenizer.load(path)
