"""Evaluation sets: named documents with a digest, and the one stream of tokens that a tokenizer makes of them.

The stream is every document in order, each after a beginning-of-document token, cut into windows of the context length.
Each token but the very first is a target exactly once, also the token that begins the next document, which says where the
one before ended and brings no bytes. Which tokens there are, their bytes, and which stand together in a window depend on
the documents, the tokenizer and the context length alone, never on the batch size or on the number of devices.

Bytes are those of the documents' UTF-8 text, and the tokens of each document are held against it byte for byte: a
tokenizer that takes two texts for one, as by a letter in place of each that it does not know, would leave a model less to
predict.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from marin.data.batches import in_batches
from marin.data.documents import Document, read_documents
from marin.data.tokenizer import Tokenizer
from marin.data.tokenizer.loaded import BATCH_CHARS
from marin.errors import ConfigError, DataError


@dataclass(frozen=True)
class EvalSet:
    """Named documents, identified by the digest of their texts in order."""

    name: str
    documents: tuple[Document, ...]

    @staticmethod
    def read(name: str, path: str) -> "EvalSet":
        """The documents of a `.jsonl.zst` file or a document set.

        Raises:
            DataError: they cannot be read, or have no text.
        """
        documents = tuple(read_documents(path))
        if not any(document.text for document in documents):
            raise DataError(f"the evaluation set {path} has no text: build it again")
        return EvalSet(name, documents)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over each document's length and UTF-8 bytes, in order."""
        sha = hashlib.sha256()
        for document in self.documents:
            encoded = document.text.encode()
            sha.update(len(encoded).to_bytes(8, "big") + encoded)
        return sha.hexdigest()

    @functools.cached_property
    def num_bytes(self) -> int:
        return sum(len(document.text.encode()) for document in self.documents)

    def text_bytes(self) -> bytes:
        return b"".join(document.text.encode() for document in self.documents)

    def stream(self, tokenizer: Tokenizer, context_length: int) -> "EvalStream":
        """The set as windows of tokens, which are made once: a set is scored many times while a model trains.

        Raises:
            DataError: the tokens of a document do not stand for exactly its bytes, in their order.
        """
        key = tokenizer.digest, context_length
        if key not in self._streams:
            self._streams[key] = self._make_stream(tokenizer, context_length)
        return self._streams[key]

    @functools.cached_property
    def _streams(self) -> "dict[tuple[str, int], EvalStream]":
        return {}

    def _make_stream(self, tokenizer: Tokenizer, context_length: int) -> "EvalStream":
        if context_length < 1:
            raise ConfigError(f"`context_length` is {context_length}: use at least 1")
        token_bytes, bos = tokenizer.token_bytes, np.array([tokenizer.bos_id], np.int32)
        text_of = tokenizer.token_texts.__getitem__
        texts = in_batches((document.text for document in self.documents), len, BATCH_CHARS)
        encoded = (ids for batch in texts for ids in tokenizer.encode_arrays(batch))
        pieces: list[np.ndarray] = []
        for document, ids in zip(self.documents, encoded, strict=True):
            said, text = b"".join(map(text_of, ids.tolist())), document.text.encode()
            if said != text:
                raise DataError(
                    f"the tokens of document {document.id!r} of `{self.name}` stand for {_first_difference(said, text)}:"
                    " the tokenizer does not keep every byte, so bits per byte has no meaning"
                )
            pieces += [bos, ids]
        sizes = [1 + len(ids) for ids in pieces[1::2]]
        segments = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return EvalStream(np.concatenate(pieces), segments, token_bytes, context_length, self.num_bytes)


def _first_difference(said: bytes, text: bytes) -> str:
    """Two texts that differ, in words."""
    if len(said) != len(text):
        return f"{len(said):,} bytes, its text has {len(text):,}"
    place = next(place for place, (one, other) in enumerate(zip(said, text, strict=True)) if one != other)
    near = slice(max(0, place - 8), place + 8)
    return f"{said[near]!r} at byte {place:,}, where its text has {text[near]!r}"


@dataclass(frozen=True)
class EvalStream:
    """Tokens of a set, the document that each belongs to, and the bytes that each stands for."""

    tokens: Int[np.ndarray, " N"]
    segments: Int[np.ndarray, " N"]
    token_bytes: Int[np.ndarray, " V"]
    context_length: int
    num_bytes: int

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over tokens, documents and the context length: two runs with one digest are scored on the same targets."""
        sha = hashlib.sha256(f"context {self.context_length}".encode())
        for array in (self.tokens, self.segments):
            sha.update(array.astype("<i4").tobytes())
        return sha.hexdigest()

    @property
    def num_targets(self) -> int:
        return len(self.tokens) - 1

    @property
    def num_windows(self) -> int:
        return -(-self.num_targets // self.context_length)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        """(inputs, targets, segment ids, valid), each [batch_size, context_length]; the last rows are padded.

        Args:
            limit: batches after which to stop.
        """
        stop = self.num_windows if limit is None else min(self.num_windows, limit * batch_size)
        for start in range(0, stop, batch_size):
            yield self.windows(range(start, min(start + batch_size, self.num_windows)), batch_size)

    def windows(self, numbers: Sequence[int], num_rows: int) -> tuple[np.ndarray, ...]:
        """The windows of these numbers as a batch of `num_rows` rows, as `batches` gives them."""
        length = self.context_length
        rows = np.zeros((3, num_rows, length), np.int32)
        valid = np.zeros((num_rows, length), bool)
        for row, number in enumerate(numbers):
            begin = number * length
            end = min(begin + length, self.num_targets)
            size = end - begin
            rows[0, row, :size] = self.tokens[begin:end]
            rows[1, row, :size] = self.tokens[begin + 1 : end + 1]
            rows[2, row, :size] = self.segments[begin:end]
            valid[row, :size] = True
        return rows[0], rows[1], rows[2], valid
