"""A linear classifier of hashed word n-grams: trains in seconds, scores thousands of documents a second on one processor.

A text is the counts of its words and word pairs (`marin.data.words`: lower case, no punctuation), each counted at its hash
modulo `num_hashes` as log(1 + count), and the whole scaled to length 1. There is no vocabulary, so the features of a document
depend on nothing else. They are made as arrays for many texts at once, many times faster than scikit-learn's
`HashingVectorizer`, which loops in Python (`benchmarks/datashop.py` measures both).

scikit-learn learns the weights: where every label is an end of the scale by logistic regression, and the score is the
probability of the upper end, laid on the scale; else by ridge regression, and the score is its prediction, cut to the scale.

Long documents are judged by their first `max_chars` characters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float64

from marin.data.words import words_of
from marin.datashop.classifier import TrainClassifierConfig, finish_classifier, read_arrays, read_sample, write_arrays
from marin.errors import ConfigError, DataError
from marin.storage import files

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WEIGHTS = "weights.npz"
_TEXTS_AT_ONCE = 128  # 2 KB each fill a processor's cache with their arrays
# Added to the hash of an n-gram, so that a word alone and the only word of a short text are different features.
_OFFSET = 0x632BE59BD9B4E019
_MASK = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class NgramConfig(TrainClassifierConfig):
    """Args:
    ngrams: the smallest and the largest number of words in a feature.
    num_hashes: features; a power of two.
    max_chars: of a document that are read.
    regularization: times half of the sum of the squared weights is added to the summed loss: the larger, the smoother.
    """

    kind: ClassVar[str] = "ngram"

    ngrams: tuple[int, int] = (1, 2)
    num_hashes: int = 1 << 18
    max_chars: int = 10_000
    regularization: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.ngrams
        if not 1 <= low <= high:
            raise ConfigError(f"config field `ngrams` is {self.ngrams}: use (fewest, most) words, such as (1, 2)")
        if self.num_hashes < 2 or self.num_hashes & (self.num_hashes - 1):
            raise ConfigError(f"config field `num_hashes` is {self.num_hashes}: use a power of two, such as {1 << 18}")
        if self.max_chars < 1 or not 0 < self.regularization < math.inf:
            raise ConfigError(
                f"config fields `max_chars` is {self.max_chars} and `regularization` is {self.regularization}: use "
                f"numbers above 0"
            )

    def train(self) -> None:
        train_ngrams(self)


def train_ngrams(config: NgramConfig) -> None:
    """Learns the labels of `config.sample`, and writes the classifier's folder.

    Raises:
        DataError: sample and labels do not belong together, or the labels cannot be learned from.
    """
    sample, threshold = read_sample(config)
    texts, labels = sample.part(held_out=False)
    features = _features(texts, config.ngrams, config.num_hashes, config.max_chars)
    values = np.unique(np.concatenate([labels, sample.part(held_out=True)[1]]))
    is_binary = set(values.tolist()) <= set(sample.scale)
    weights, bias = (_fit_logistic if is_binary else _fit_ridge)(features, labels, sample.scale, config.regularization)
    path = files.join(config.output_path, WEIGHTS)
    write_arrays(path, weights=weights.astype(np.float32), bias=np.array([bias], np.float64))
    record = {
        "ngrams": list(config.ngrams),
        "num_hashes": config.num_hashes,
        "max_chars": config.max_chars,
        "regularization": config.regularization,
        "link": "logistic" if is_binary else "identity",
        "scale": list(sample.scale),
    }
    finish_classifier(config, load(config.output_path, record), sample, threshold, record)


def load(folder: str, record: dict[str, Any]) -> "NgramClassifier":
    """The classifier in a folder; `record` is what its `classifier.json` says.

    Raises:
        DataError: record or weights are damaged.
    """
    path = files.join(folder, WEIGHTS)
    arrays = read_arrays(path)
    try:
        weights, bias = arrays["weights"], float(arrays["bias"][0])
        low, high = record["ngrams"]
        assert weights.shape == (record["num_hashes"],)
        return NgramClassifier(
            weights.astype(np.float64),
            bias,
            (low, high),
            record["max_chars"],
            record["link"] == "logistic",
            tuple(record["scale"]),
        )
    except (LookupError, ValueError, TypeError, AssertionError) as error:
        raise DataError(
            f"{path} holds no weights of an n-gram classifier ({error!r}): train the classifier again"
        ) from None


@dataclass(frozen=True)
class NgramClassifier:
    """A trained classifier; see the module's docstring."""

    weights: Float64[np.ndarray, " F"]
    bias: float
    ngrams: tuple[int, int]
    max_chars: int
    is_logistic: bool
    scale: tuple[float, float]

    kind: ClassVar[str] = "ngram"

    def scores(self, texts: Sequence[str]) -> Float64[np.ndarray, " N"]:
        """See `Classifier`."""
        found = np.empty(len(texts), np.float64)
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            part = [text[: self.max_chars] for text in texts[start : start + _TEXTS_AT_ONCE]]
            features = _block_features(part, self.ngrams, len(self.weights))
            found[start : start + len(part)] = features @ self.weights + self.bias
        low, high = self.scale
        if self.is_logistic:
            from scipy.special import expit

            return low + (high - low) * expit(found)
        return np.clip(found, low, high)


# --- features and regressions -----------------------------------------------------------------------------------------


def _features(texts: Sequence[str], ngrams: tuple[int, int], num_hashes: int, max_chars: int) -> "csr_array":
    """A row for each text, of length 1, or empty for a text without words."""
    from scipy.sparse import vstack

    parts = [
        _block_features([text[:max_chars] for text in texts[start : start + _TEXTS_AT_ONCE]], ngrams, num_hashes)
        for start in range(0, len(texts), _TEXTS_AT_ONCE)
    ]
    return parts[0] if len(parts) == 1 else vstack(parts, format="csr")


def _block_features(texts: Sequence[str], ngrams: tuple[int, int], num_hashes: int) -> "csr_array":
    from scipy.sparse import csr_array

    words = words_of(texts)
    rows, columns = [], []
    for size in range(ngrams[0], ngrams[1] + 1):
        found = words if size == 1 else words.ngrams(size)
        rows.append(np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(found.starts)))
        columns.append(
            ((found.hashes + np.uint64(_OFFSET * size & _MASK)) & np.uint64(num_hashes - 1)).astype(np.int32)
        )
    row, column = np.concatenate(rows), np.concatenate(columns)
    counts = csr_array((np.ones(len(row), np.float64), (row, column)), shape=(len(texts), num_hashes))
    counts.sum_duplicates()
    counts.data = np.log1p(counts.data)
    lengths = np.diff(counts.indptr)
    squares = np.bincount(np.repeat(np.arange(len(texts)), lengths), counts.data**2, len(texts))
    counts.data /= np.repeat(np.sqrt(squares), lengths)
    return counts


def _fit_logistic(
    features: "csr_array", labels: Float64[np.ndarray, " N"], scale: tuple[float, float], regularization: float
) -> tuple[Float64[np.ndarray, " F"], float]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1 / regularization, max_iter=200, tol=1e-3)
    model.fit(features, labels == scale[1])
    return model.coef_[0], float(model.intercept_[0])


def _fit_ridge(
    features: "csr_array", labels: Float64[np.ndarray, " N"], scale: tuple[float, float], regularization: float
) -> tuple[Float64[np.ndarray, " F"], float]:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=regularization, solver="sparse_cg", tol=1e-4)
    model.fit(features, labels)
    return model.coef_, float(model.intercept_)
