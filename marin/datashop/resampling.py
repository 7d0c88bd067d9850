"""The bootstrap over documents, for all resamples at once.

A resample is a row of counts: how often each document was drawn. With documents in the order of their scores every figure
is a few cumulative sums over rows, which is exact, also where scores or labels are equal, and hundreds of times faster than
sorting each resample again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

_CONFIDENCE = 0.95
_AT_ONCE = 4_000_000  # counts in memory at a time: 32 MB


@dataclass(frozen=True)
class Resampled:
    """Resamples of documents; the draws are made again for each figure, from one seed.

    Args:
        scores: sorted, as the documents are.
        places: of the sorted documents in another order, in which they are drawn: two classifiers that sort the same
            documents differently are then held against each other on the same draws.
    """

    scores: Float64[np.ndarray, " N"]
    labels: Float64[np.ndarray, " N"]
    num_resamples: int
    seed: int
    places: Int64[np.ndarray, " N"] | None = None

    def __post_init__(self) -> None:
        assert (np.diff(self.scores) >= 0).all()

    def auc(self, is_wanted: Bool[np.ndarray, " N"]) -> Float64[np.ndarray, " R"]:
        """Area under the ROC curve: the chance that a wanted document scores above another, half for equal scores."""
        starts = _group_starts(self.scores)

        def figure(counts_RN: Float64[np.ndarray, "R N"]) -> Float64[np.ndarray, " R"]:
            wanted_RG, other_RG = _by_group(counts_RN * is_wanted, starts), _by_group(counts_RN * ~is_wanted, starts)
            below_RG = np.cumsum(other_RG, axis=1) - other_RG / 2
            pairs_R = wanted_RG.sum(axis=1) * other_RG.sum(axis=1)
            return _divided((wanted_RG * below_RG).sum(axis=1), pairs_R)

        return self._each(figure)

    def average_precision(self, is_wanted: Bool[np.ndarray, " N"]) -> Float64[np.ndarray, " R"]:
        """Precision at each threshold, weighted by the recall that the threshold adds."""
        starts = _group_starts(self.scores)

        def figure(counts_RN: Float64[np.ndarray, "R N"]) -> Float64[np.ndarray, " R"]:
            wanted_RG = _by_group(counts_RN * is_wanted, starts)[:, ::-1]
            all_RG = np.cumsum(_by_group(counts_RN, starts)[:, ::-1], axis=1)
            precision_RG = np.cumsum(wanted_RG, axis=1) / np.maximum(all_RG, 1)
            return _divided((wanted_RG * precision_RG).sum(axis=1), wanted_RG.sum(axis=1))

        return self._each(figure)

    def f1(self, is_wanted: Bool[np.ndarray, " N"], says_so: Bool[np.ndarray, " N"]) -> Float64[np.ndarray, " R"]:
        """2 TP / (2 TP + FP + FN)."""
        return self._each(lambda counts_RN: _f1(counts_RN, is_wanted, says_so))

    def macro_f1(
        self, label_classes: Int64[np.ndarray, " N"], score_classes: Int64[np.ndarray, " N"]
    ) -> Float64[np.ndarray, " R"]:
        """The mean of F1 over the classes that occur in a resample, as a label or as a score."""
        classes = np.union1d(label_classes, score_classes)

        def figure(counts_RN: Float64[np.ndarray, "R N"]) -> Float64[np.ndarray, " R"]:
            of_classes = [_f1(counts_RN, label_classes == value, score_classes == value) for value in classes]
            return np.nanmean(np.stack(of_classes), axis=0)

        return self._each(figure)

    def spearman(self) -> Float64[np.ndarray, " R"]:
        """The correlation of ranks, equal values at their mean rank."""
        by_label = np.argsort(self.labels, kind="stable")
        back = np.argsort(by_label, kind="stable")
        score_starts, label_starts = _group_starts(self.scores), _group_starts(self.labels[by_label])

        def figure(counts_RN: Float64[np.ndarray, "R N"]) -> Float64[np.ndarray, " R"]:
            x_RN = _mid_ranks(counts_RN, score_starts)
            y_RN = _mid_ranks(counts_RN[:, by_label], label_starts)[:, back]
            size = counts_RN.sum(axis=1, keepdims=True)
            x_RN = x_RN - (counts_RN * x_RN).sum(axis=1, keepdims=True) / size
            y_RN = y_RN - (counts_RN * y_RN).sum(axis=1, keepdims=True) / size
            spread = np.sqrt((counts_RN * x_RN**2).sum(axis=1) * (counts_RN * y_RN**2).sum(axis=1))
            return _divided((counts_RN * x_RN * y_RN).sum(axis=1), spread)

        return self._each(figure)

    def mean_labels(self, starts: Int64[np.ndarray, " G"]) -> Float64[np.ndarray, "R G"]:
        """The mean label of each group of documents in the order of scores; NaN where none of it was drawn.

        Args:
            starts: where each group begins; it ends where the next one begins.
        """
        return self._each(
            lambda counts_RN: _divided(_by_group(counts_RN * self.labels, starts), _by_group(counts_RN, starts))
        )

    def _each(
        self, figure: Callable[[Float64[np.ndarray, "R N"]], Float64[np.ndarray, "R ..."]]
    ) -> Float64[np.ndarray, "R ..."]:
        generator = np.random.Generator(np.random.PCG64(self.seed))
        size = len(self.scores)
        at_once = max(_AT_ONCE // size, 1)
        found = []
        for start in range(0, self.num_resamples, at_once):
            num = min(at_once, self.num_resamples - start)
            drawn = generator.integers(0, size, (num, size))
            drawn += np.arange(num)[:, None] * size
            counts = np.bincount(drawn.ravel(), minlength=num * size).reshape(num, size)
            counts = counts if self.places is None else counts[:, self.places]
            found.append(figure(counts.astype(np.float64)))
        return np.concatenate(found)


def interval_of(resamples: Float64[np.ndarray, " R"]) -> tuple[float, float] | None:
    """The middle 95 % of the resamples in which the figure is defined; None if it is in none."""
    defined = np.sort(resamples[~np.isnan(resamples)])
    if not len(defined):
        return None
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return float(low), float(high)


def _group_starts(values: Float64[np.ndarray, " N"]) -> Int64[np.ndarray, " G"]:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


def _by_group(counts_RN: Float64[np.ndarray, "R N"], starts: Int64[np.ndarray, " G"]) -> Float64[np.ndarray, "R G"]:
    return np.add.reduceat(counts_RN, starts, axis=1)


def _mid_ranks(counts_RN: Float64[np.ndarray, "R N"], starts: Int64[np.ndarray, " G"]) -> Float64[np.ndarray, "R N"]:
    """The mean rank of each document's group within its resample."""
    groups_RG = _by_group(counts_RN, starts)
    ranks_RG = np.cumsum(groups_RG, axis=1) - groups_RG / 2
    return np.repeat(ranks_RG, np.diff([*starts.tolist(), counts_RN.shape[1]]), axis=1)


def _f1(
    counts_RN: Float64[np.ndarray, "R N"], is_wanted: Bool[np.ndarray, " N"], says_so: Bool[np.ndarray, " N"]
) -> Float64[np.ndarray, " R"]:
    both = counts_RN @ (is_wanted & says_so).astype(np.float64)
    either = counts_RN @ (is_wanted.astype(np.float64) + says_so)
    return _divided(2 * both, either)


def _divided(above: Float64[np.ndarray, "R ..."], below: Float64[np.ndarray, "R ..."]) -> Float64[np.ndarray, "R ..."]:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)
