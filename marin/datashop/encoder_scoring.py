"""Texts to vectors and scores by an encoder, in buckets of length.

A text is cut, tokenized and padded to the least bucket that holds it, and a bucket's rows are always the same number, filled
up with empty ones. So a text goes through the same program wherever it stands, and what else is scored with it does not
change its score. While the device works on one block of texts the next one is tokenized.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float32, Float64, Int32

from marin.data.prefetch import Prefetcher
from marin.data.tokenizer.for_encoders import EncoderTokenizer
from marin.datashop.classifier import read_arrays, write_arrays
from marin.errors import ConfigError, DataError
from marin.models.encoder import Encoder, pooled
from marin.models.encoder_files import load_encoder
from marin.nn.precision import Precision, compute_on

_BUCKETS = (32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
# Tokens of a batch, by platform: a processor's cache is small, an accelerator wants wide products.
_BATCH_TOKENS = {"cpu": 4096}
_ACCELERATOR_BATCH_TOKENS = 131_072
# Texts that are tokenized at once: enough to fill the buckets, few enough to begin soon.
_BLOCK_BATCHES = 8
_MAX_BLOCK_TEXTS = 4096


@dataclasses.dataclass(frozen=True)
class TextEncoder:
    """An encoder with its tokenizer, ready to turn texts into vectors.

    Args:
        weights, static: the parts of the `Encoder`, in float32.
    """

    weights: Any
    static: Any
    tokenizer: EncoderTokenizer
    pooling: str
    max_tokens: int
    precision: Precision

    @staticmethod
    def of(
        encoder: Encoder, tokenizer: EncoderTokenizer, pooling: str, max_tokens: int, compute: str | None
    ) -> "TextEncoder":
        """Raises:
        ConfigError: texts of `max_tokens` are longer than the encoder takes, or have no room for a token.
        """
        if max_tokens > encoder.config.max_seq_len:
            raise ConfigError(
                f"`max_tokens` is {max_tokens}, the encoder takes {encoder.config.max_seq_len}: use at most that"
            )
        if max_tokens <= tokenizer.num_marks:
            raise ConfigError(f"`max_tokens` is {max_tokens}, of which marks take {tokenizer.num_marks}: use more")
        rows = encoder.embedding.weight_VD.shape[0]
        if tokenizer.vocab_size > rows:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size:,} tokens, the encoder {rows:,}: use the encoder's own tokenizer"
            )
        precision = Precision(compute or compute_on(jax.default_backend()))
        weights, static = eqx.partition(encoder, eqx.is_array)
        return TextEncoder(weights, static, tokenizer, pooling, max_tokens, precision)

    def with_weights(self, weights: Any) -> "TextEncoder":
        """The same with other weights."""
        return dataclasses.replace(self, weights=weights)

    @property
    def module(self) -> Encoder:
        """The encoder, in float32."""
        module: Encoder = eqx.combine(self.weights, self.static)
        return module

    @functools.cached_property
    def arrays(self) -> Any:
        """The weights in the format that is computed in."""
        return self.precision.cast(self.weights)

    @property
    def width(self) -> int:
        return int(self.static.config.hidden_dim)

    def vectors(self, texts: Sequence[str]) -> Float32[np.ndarray, "N D"]:
        """One vector a text."""
        result = np.zeros((len(texts), self.width), np.float32)
        block = min(_MAX_BLOCK_TEXTS, _BLOCK_BATCHES * self.rows_of(self.buckets[0]))
        starts = range(0, len(texts), block)
        waiting: list[tuple[np.ndarray, Any]] = []
        with Prefetcher(lambda start: self.encode(texts[start : start + block]), starts) as blocks:
            for start in starts:
                ids = blocks.take().item
                begun = [(start + rows, values) for rows, values in self._begin(ids)]
                _collect(waiting, result)
                waiting = begun
        _collect(waiting, result)
        return result

    def vectors_of(self, ids: Sequence[Int32[np.ndarray, " n"]]) -> Float32[np.ndarray, "N D"]:
        """One vector for each tokenized text."""
        result = np.zeros((len(ids), self.width), np.float32)
        _collect(list(self._begin(ids)), result)
        return result

    def encode(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """The ids of each text as the encoder takes them."""
        return self.tokenizer.encode(texts, self.max_tokens)

    @functools.cached_property
    def buckets(self) -> tuple[int, ...]:
        """The lengths that texts are padded to; the last is `max_tokens`."""
        return (*(length for length in _BUCKETS if length < self.max_tokens), self.max_tokens)

    def rows_of(self, bucket: int) -> int:
        """Rows of a batch of a bucket."""
        return max(1, _BATCH_TOKENS.get(jax.default_backend(), _ACCELERATOR_BATCH_TOKENS) // bucket)

    def _begin(self, ids: Sequence[np.ndarray]) -> list[tuple[np.ndarray, Any]]:
        """Starts all batches of some texts: (which of them, their vectors when the device is done), for each batch."""
        lengths = np.array([len(each) for each in ids])
        bucket_of = np.searchsorted(self.buckets, lengths)
        run = vectors_program(self.static, self.pooling)
        begun = []
        for index, bucket in enumerate(self.buckets):
            members, rows = np.flatnonzero(bucket_of == index), self.rows_of(bucket)
            for start in range(0, len(members), rows):
                chosen = members[start : start + rows]
                tokens, filled = padded([ids[row] for row in chosen], rows, bucket, self.tokenizer.pad_id)
                begun.append((chosen, run(self.arrays, tokens, filled)))
        return begun


@functools.lru_cache(maxsize=8)
def vectors_program(static: Any, pooling: str) -> Any:
    """The compiled `vectors(arrays, tokens_BT, lengths_B) -> [B, D]`, once for a structure."""

    @jax.jit
    def vectors(arrays: Any, tokens_BT: Any, lengths_B: Any) -> Any:
        return pooled(eqx.combine(arrays, static).activations(tokens_BT, lengths_B), lengths_B, pooling)

    return vectors


def padded(
    ids: Sequence[np.ndarray], rows: int, bucket: int, pad_id: int
) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, " B"]]:
    """Texts as rows of a batch and their lengths; rows that are left over have one token."""
    tokens = np.full((rows, bucket), pad_id, np.int32)
    lengths = np.ones(rows, np.int32)
    for row, each in enumerate(ids):
        tokens[row, : len(each)] = each
        lengths[row] = len(each)
    return tokens, lengths


def _collect(waiting: list[tuple[np.ndarray, Any]], result: np.ndarray) -> None:
    for rows, values in waiting:
        result[rows] = np.asarray(values)[: len(rows)]


@dataclasses.dataclass(frozen=True)
class RegressionHead:
    """`score = vector . weight + bias`, on the labels' scale."""

    weight_D: Float64[np.ndarray, " D"]
    bias: float

    def __call__(self, vectors: Float32[np.ndarray, "N D"]) -> Float64[np.ndarray, " N"]:
        # Summed row by row: a matrix product rounds a row by how many others there are.
        return np.sum(vectors.astype(np.float64) * self.weight_D, axis=1) + self.bias

    def save(self, path: str) -> None:
        write_arrays(path, weight_D=self.weight_D, bias=np.array(self.bias, np.float64))

    @staticmethod
    def load(path: str) -> "RegressionHead":
        """Raises:
        DataError: the file is not there or not one that `save` wrote.
        """
        arrays = read_arrays(path)
        try:
            return RegressionHead(arrays["weight_D"].astype(np.float64), float(arrays["bias"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{path} is no head of an encoder classifier ({error!r}): train the classifier again"
            ) from None


@dataclasses.dataclass(frozen=True)
class EncoderClassifier:
    """A trained encoder classifier; `scores` is not bounded by the scale, as what is better than the best seen is still better."""

    encoder: TextEncoder
    head: RegressionHead
    kind: ClassVar[str] = "encoder"
    documents_at_once: ClassVar[int] = 16_384

    def scores(self, texts: Sequence[str]) -> Float64[np.ndarray, " N"]:
        """A score for each text."""
        return self.head(self.encoder.vectors(texts))


def open_text_encoder(folder: str | Path, pooling: str, max_tokens: int, compute: str | None) -> TextEncoder:
    """The encoder in a folder in Hugging Face's layout.

    Raises:
        CheckpointError, DataError: encoder or tokenizer are damaged or missing.
        ConfigError: it does not take so many tokens.
    """
    _, encoder = load_encoder(folder)
    return TextEncoder.of(encoder, EncoderTokenizer.load(folder), pooling, max_tokens, compute)
