"""Bits per byte: sum of nats / (ln 2 x sum of bytes), over a fixed stream of named documents.

The stream is every document in order, each after a beginning-of-document token, cut into windows of the model's context;
a position attends only within its own document. Each token is predicted exactly once, also the token that begins the next
document, which says where the one before ended: it costs nats and brings no bytes. Nats are summed in float64 from
float32 losses of single tokens, so that neither the batch size nor the number of devices changes what is added up.

Beside it stands Levanter's figure for published rows: per batch nats / bytes, averaged over batches by their tokens.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int

from marin.data.documents import Document, read_documents
from marin.data.tokenizer import Tokenizer
from marin.errors import DataError
from marin.nn.loss import cross_entropy
from marin.nn.precision import Precision

_LN2 = math.log(2.0)
# Tokens whose logits exist at once.
_BLOCK = 2048


@dataclasses.dataclass(frozen=True)
class EvalSet:
    """Named documents, identified by the digest of their texts in order."""

    name: str
    documents: tuple[Document, ...]

    @staticmethod
    def read(name: str, path: str) -> "EvalSet":
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

    @property
    def num_bytes(self) -> int:
        return sum(len(document.text.encode()) for document in self.documents)

    def text_bytes(self) -> bytes:
        return b"".join(document.text.encode() for document in self.documents)

    def stream(self, tokenizer: Tokenizer, context_length: int) -> "EvalStream":
        """The set as windows of tokens."""
        pieces: list[int] = []
        segments: list[int] = []
        for index, ids in enumerate(tokenizer.encode_batch([document.text for document in self.documents])):
            pieces += [tokenizer.bos_id, *ids]
            segments += [index] * (len(ids) + 1)
        return EvalStream(
            np.array(pieces, np.int32),
            np.array(segments, np.int32),
            tokenizer.token_bytes,
            context_length,
            self.num_bytes,
        )


@dataclasses.dataclass(frozen=True)
class EvalStream:
    """Tokens of a set, and the bytes that each stands for."""

    tokens: Int[np.ndarray, " N"]
    segments: Int[np.ndarray, " N"]
    token_bytes: Int[np.ndarray, " V"]
    context_length: int
    num_bytes: int

    @property
    def num_windows(self) -> int:
        return -(-(len(self.tokens) - 1) // self.context_length)

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[tuple[np.ndarray, ...]]:
        """(inputs, targets, segment ids, valid), each [batch_size, context_length]; the last rows are padded."""
        length = self.context_length
        for start in range(
            0, self.num_windows if limit is None else min(self.num_windows, limit * batch_size), batch_size
        ):
            rows = np.zeros((3, batch_size, length), np.int32)
            valid = np.zeros((batch_size, length), bool)
            for row in range(min(batch_size, self.num_windows - start)):
                begin = (start + row) * length
                end = min(begin + length, len(self.tokens) - 1)
                size = end - begin
                rows[0, row, :size] = self.tokens[begin:end]
                rows[1, row, :size] = self.tokens[begin + 1 : end + 1]
                rows[2, row, :size] = self.segments[begin:end]
                valid[row, :size] = True
            yield rows[0], rows[1], rows[2], valid


@dataclasses.dataclass(frozen=True)
class BitsPerByte:
    """A measurement. `value` is the project's metric; `levanter` the mean that published rows use."""

    set_name: str
    digest: str
    value: float
    levanter: float
    nats: float
    num_bytes: int
    num_tokens: int
    num_documents: int


def bits_per_byte(
    model: Any,
    eval_set: EvalSet,
    tokenizer: Tokenizer,
    context_length: int,
    *,
    precision: Precision,
    batch_size: int = 16,
    max_batches: int | None = None,
) -> BitsPerByte:
    """Scores a model on a set; `max_batches` limits it to the beginning, for a look during training.

    Raises:
        DataError: if the tokenizer's bytes do not add up to the documents', or a loss is not finite.
    """
    stream = eval_set.stream(tokenizer, context_length)
    counted = int(stream.token_bytes[stream.tokens].sum())
    if counted != stream.num_bytes:
        raise DataError(
            f"the tokens of `{eval_set.name}` stand for {counted:,} bytes, its documents have {stream.num_bytes:,}: "
            "the tokenizer does not keep every byte, so bits per byte has no meaning"
        )
    nats = 0.0
    num_bytes = num_tokens = 0
    levanter_sum = 0.0
    arrays, static = eqx.partition(precision.cast(model), eqx.is_array)
    score = _scorer(static)
    for tokens, targets, segments, valid in stream.batches(batch_size, max_batches):
        loss = np.asarray(score(arrays, tokens, targets, segments), np.float64)
        batch_nats = float(loss[valid].sum())
        batch_bytes, batch_tokens = int(stream.token_bytes[targets[valid]].sum()), int(valid.sum())
        nats, num_bytes, num_tokens = nats + batch_nats, num_bytes + batch_bytes, num_tokens + batch_tokens
        levanter_sum += batch_tokens * batch_nats / (_LN2 * max(batch_bytes, 1))
    if not math.isfinite(nats):
        raise DataError(
            f"the model's loss on `{eval_set.name}` is not finite: its weights are damaged or training diverged"
        )
    return BitsPerByte(
        set_name=eval_set.name,
        digest=eval_set.digest,
        value=nats / (_LN2 * num_bytes),
        levanter=levanter_sum / num_tokens,
        nats=nats,
        num_bytes=num_bytes,
        num_tokens=num_tokens,
        num_documents=len(eval_set.documents),
    )


@functools.lru_cache(maxsize=4)
def _scorer(static: Any) -> Any:
    """The compiled loss of each token, once for a model structure."""

    @jax.jit
    def score(arrays: Any, tokens_BT: Any, targets_BT: Any, segment_ids_BT: Any) -> Any:
        model = eqx.combine(arrays, static)
        x_BTD = model.activations(tokens_BT, segment_ids_BT)
        return cross_entropy(x_BTD, model.lm_head_DV, targets_BT, block=_BLOCK, softcap=model.logit_softcap)

    return score
