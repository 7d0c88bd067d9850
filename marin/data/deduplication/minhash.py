"""Sketches of documents for fuzzy deduplication: shingles, MinHash signatures, bands.

A document's shingles are the hashes of its runs of `ngram_words` words (`marin.data.words`). Its MinHash signature
(Broder 1997; by rensa) has `num_hashes` entries; two documents agree in each with the probability J, the Jaccard
similarity of their shingles. The signature is cut into bands of `rows` entries, and documents that agree in a whole
band are candidates: a pair is found with the probability 1 - (1 - J^rows)^bands. `rows` is as large as lets a pair at
the threshold be found with 99.9 %; so candidates are many and are verified with their shingles.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt32, UInt64

from marin.data.batches import document_batches
from marin.data.deduplication.buckets import sorted_hashes
from marin.data.scratch import Arrays, string_arrays
from marin.data.shards import Shard
from marin.data.words import BLOCK_CHARS, Words, mixed, words_of
from marin.errors import ConfigError

_MIN_RECALL = 0.999


@dataclass(frozen=True)
class MinHashSettings:
    """Args:
    threshold: documents with at least this Jaccard similarity are duplicates; above 0.2, at most 1.
    ngram_words: words in a shingle.
    num_hashes: entries of a signature.
    seed: of the hash functions.
    """

    threshold: float = 0.8
    ngram_words: int = 5
    num_hashes: int = 128
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0.2 < self.threshold <= 1:
            raise ConfigError(
                f"config field `threshold` is {self.threshold}: use a Jaccard similarity above 0.2 and at most 1, such "
                f"as 0.8; for identical texts exact deduplication is enough"
            )
        if self.ngram_words < 1 or not 1 <= self.num_hashes <= 1024:
            raise ConfigError(
                f"config fields `ngram_words` = {self.ngram_words} and `num_hashes` = {self.num_hashes}: use at least "
                f"1 word, and 1 to 1,024 hashes, such as 5 and 128"
            )
        if self.recall(self.threshold) < _MIN_RECALL:
            raise ConfigError(
                f"config field `num_hashes` is {self.num_hashes}, with which a pair at the threshold {self.threshold} "
                f"is found with only {self.recall(self.threshold):.1%}: use more hashes"
            )

    @property
    def rows(self) -> int:
        """Signature entries in a band."""
        rows = 1
        while rows < self.num_hashes and _recall(self.threshold, rows + 1, self.num_hashes) >= _MIN_RECALL:
            rows += 1
        return rows

    @property
    def bands(self) -> int:
        return self.num_hashes // self.rows

    def recall(self, jaccard: float) -> float:
        """The probability that a pair with this similarity becomes a candidate."""
        return _recall(jaccard, self.rows, self.num_hashes)


def sketch_shard(shard: Shard, settings: MinHashSettings) -> Arrays:
    """What is kept of a shard: ids, shingles (the sorted lower halves of their hashes), and its bands' sorted hashes.

    Documents without a word have no bands, so they are nobody's duplicate.
    """
    ids: list[str] = []
    shingles: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    bands: list[np.ndarray] = []
    for block in document_batches(shard.documents(), BLOCK_CHARS):
        ids += [document.id for document in block]
        found = _distinct(words_of([document.text for document in block]).ngrams(settings.ngram_words))
        shingles.append(found.hashes.astype(np.uint32))
        counts.append(np.diff(found.starts))
        bands.append(_band_hashes(_signatures(found, settings), settings))
    num_shingles = np.concatenate(counts) if counts else np.zeros(0, np.int64)
    arrays = string_arrays("ids", ids) | {
        "shingles": np.concatenate(shingles) if shingles else np.zeros(0, np.uint32),
        "shingle-ends": np.concatenate([[0], np.cumsum(num_shingles)]),
    }
    rows = np.flatnonzero(num_shingles)
    hashes = np.concatenate(bands)[rows] if bands else np.zeros((0, settings.bands), np.uint64)
    return arrays | sorted_hashes(hashes.T, rows=rows)


def jaccard(one: UInt32[np.ndarray, " n"], other: UInt32[np.ndarray, " m"]) -> float:
    """The Jaccard similarity of two sets of shingles; of two empty ones it is 0."""
    both = np.concatenate([one, other])
    both.sort()
    common = int((both[1:] == both[:-1]).sum())
    return common / max(len(both) - common, 1)


def _distinct(shingles: Words) -> Words:
    """The lower 32 bits of each text's shingles, each once and in order.

    Two of a document's thousand shingles agree in 32 bits with a chance of 1 in 10,000; a similarity changes by 0.001.
    """
    text_of = np.repeat(np.arange(len(shingles.starts) - 1, dtype=np.uint64), np.diff(shingles.starts))
    keys = np.sort((text_of << np.uint64(32)) | (shingles.hashes & np.uint64(0xFFFFFFFF)))
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys
    starts = np.searchsorted(keys >> np.uint64(32), np.arange(len(shingles.starts), dtype=np.uint64))
    return Words(keys & np.uint64(0xFFFFFFFF), starts)


def _signatures(shingles: Words, settings: MinHashSettings) -> UInt32[np.ndarray, "T num_hashes"]:
    import rensa

    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        mixed(shingles.hashes), shingles.starts.tolist(), settings.num_hashes, settings.seed
    )
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, settings.num_hashes)


def _band_hashes(
    signatures: UInt32[np.ndarray, "T num_hashes"], settings: MinHashSettings
) -> UInt64[np.ndarray, "T bands"]:
    shaped = signatures[:, : settings.bands * settings.rows].reshape(-1, settings.bands, settings.rows)
    hashes = np.full(shaped.shape[:2], settings.rows, np.uint64)
    for row in range(settings.rows):
        hashes = mixed(hashes ^ shaped[:, :, row].astype(np.uint64))
    return hashes


def _recall(jaccard: float, rows: int, num_hashes: int) -> float:
    return float(1 - (1 - jaccard**rows) ** (num_hashes // rows))
