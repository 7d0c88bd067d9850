"""What a classifier is worth on labels that it has not seen: figures with intervals, a calibration curve, a confusion table.

A document is *wanted* if its label is at least the threshold. scikit-learn and SciPy give the figures. The intervals are
percentiles of a bootstrap over documents: each resample says how often each document was drawn, and every figure is
computed from those counts at once over all resamples (`resampling`), which gives what the libraries would give for the
resampled documents. The documents are sorted first and the draws are seeded, so the same pairs of score and label give the
same intervals in whatever order they come.

Where the held-out labels lie all on one side of the threshold a figure is None, never a guess.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from marin.datashop.labels import histogram_of, lopsided_warning
from marin.datashop.resampling import Resampled, interval_of
from marin.errors import DataError

_RESAMPLES = 500
_CURVE_POINTS = 200
_CALIBRATION_BINS = 10


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; None where it is not defined."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return estimate_text(asdict(self))


def estimate_text(estimate: Mapping[str, float | None], digits: int = 4) -> str:
    """An `Estimate`, as a file has it, for people: the figure, and its interval where there is one."""
    if estimate["value"] is None:
        return "not defined"
    interval = "" if estimate["low"] is None else f" ({estimate['low']:.{digits}f} to {estimate['high']:.{digits}f})"
    return f"{estimate['value']:.{digits}f}{interval}"


@dataclass(frozen=True)
class CalibrationBin:
    """Documents with scores near each other: what they were given, and what their labels are on the average."""

    score: float
    label: float
    low: float
    high: float
    num_documents: int


@dataclass(frozen=True)
class Quality:
    """See the module's docstring.

    Args:
        prior: the fraction of wanted documents: the average precision of a classifier that knows nothing.
        macro_f1: of labels and scores rounded to whole numbers, the mean over the classes that occur.
        confusion: rows are rounded labels, columns rounded scores, both from the bottom of the scale to its top.
        roc: (false positive rate, true positive rate); pr: (recall, precision).
        lopsided: a warning about the balance of the held-out labels.
    """

    num_documents: int
    scale: tuple[float, float]
    threshold: float
    seed: int
    prior: float
    auc: Estimate
    average_precision: Estimate
    f1: Estimate
    macro_f1: Estimate
    spearman: Estimate
    calibration: tuple[CalibrationBin, ...]
    confusion: tuple[tuple[int, ...], ...]
    histogram: Mapping[str, int]
    roc: tuple[tuple[float, float], ...]
    pr: tuple[tuple[float, float], ...]
    lopsided: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        """One line for the console."""
        return (
            f"AUC {self.auc}, average precision {self.average_precision} where the prior is {self.prior:.4f}, "
            f"F1 {self.f1} at {self.threshold:g}, Spearman {self.spearman}, {self.num_documents:,} held-out documents"
        )


def measure_quality(
    scores: Float64[np.ndarray, " N"],
    labels: Float64[np.ndarray, " N"],
    threshold: float,
    *,
    scale: tuple[float, float],
    seed: int,
) -> Quality:
    """How well scores agree with labels.

    Args:
        threshold: a label of at least this is wanted, and a score of at least this says so.
        scale: the lowest and the highest label that can be given.
        seed: of the bootstrap.
    Raises:
        DataError: there are no documents, or a score or a label is not finite.
    """
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels, np.float64)
    if scores.shape != labels.shape or scores.ndim != 1 or not len(scores):
        raise DataError(f"{scores.shape} scores and {labels.shape} labels: expected as many of both, and at least one")
    if not (np.isfinite(scores).all() and np.isfinite(labels).all()):
        raise DataError("a score or a label is not finite: look at the classifier that gave it")
    order = np.lexsort((labels, scores))
    scores, labels = scores[order], labels[order]
    is_wanted = labels >= threshold
    resampled = Resampled(scores, labels, _RESAMPLES, seed)
    classes = range(math.floor(scale[0]), math.ceil(scale[1]) + 1)
    label_classes, score_classes = (_rounded(values, classes) for values in (labels, scores))
    return Quality(
        num_documents=len(scores),
        scale=scale,
        threshold=threshold,
        seed=seed,
        prior=float(is_wanted.mean()),
        **_curve_estimates(scores, is_wanted, resampled),
        f1=_f1(scores, is_wanted, threshold, resampled),
        macro_f1=_macro_f1(label_classes, score_classes, resampled),
        spearman=_spearman(scores, labels, resampled),
        calibration=_calibration(scores, labels, resampled),
        confusion=_confusion(label_classes, score_classes, classes),
        histogram=histogram_of(labels, scale),
        **_curves(scores, is_wanted),
        lopsided=lopsided_warning(labels, threshold),
    )


def _curve_estimates(
    scores: Float64[np.ndarray, " N"], is_wanted: Bool[np.ndarray, " N"], resampled: Resampled
) -> dict[str, Any]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    if is_wanted.all() or not is_wanted.any():
        return {"auc": _UNDEFINED, "average_precision": _UNDEFINED}
    return {
        "auc": _estimate(roc_auc_score(is_wanted, scores), resampled.auc(is_wanted)),
        "average_precision": _estimate(
            average_precision_score(is_wanted, scores), resampled.average_precision(is_wanted)
        ),
    }


def _f1(
    scores: Float64[np.ndarray, " N"], is_wanted: Bool[np.ndarray, " N"], threshold: float, resampled: Resampled
) -> Estimate:
    from sklearn.metrics import f1_score

    if not is_wanted.any():
        return _UNDEFINED
    says_so = scores >= threshold
    return _estimate(f1_score(is_wanted, says_so, zero_division=0.0), resampled.f1(is_wanted, says_so))


def _macro_f1(
    label_classes: Int64[np.ndarray, " N"], score_classes: Int64[np.ndarray, " N"], resampled: Resampled
) -> Estimate:
    from sklearn.metrics import f1_score

    value = f1_score(label_classes, score_classes, average="macro", zero_division=0.0)
    return _estimate(value, resampled.macro_f1(label_classes, score_classes))


def _spearman(scores: Float64[np.ndarray, " N"], labels: Float64[np.ndarray, " N"], resampled: Resampled) -> Estimate:
    from scipy.stats import spearmanr

    if np.ptp(scores) == 0 or np.ptp(labels) == 0:
        return _UNDEFINED
    return _estimate(spearmanr(scores, labels).statistic, resampled.spearman())


def _calibration(
    scores: Float64[np.ndarray, " N"], labels: Float64[np.ndarray, " N"], resampled: Resampled
) -> tuple[CalibrationBin, ...]:
    """Bins of as many documents each as can be; equal scores are never parted."""
    cuts = np.unique(
        np.searchsorted(scores, scores[np.linspace(0, len(scores), _CALIBRATION_BINS + 1)[:-1].astype(int)])
    )
    resamples = resampled.mean_labels(cuts)
    bins = []
    for number, (start, end) in enumerate(zip(cuts, [*cuts[1:], len(scores)], strict=True)):
        mean = float(labels[start:end].mean())
        low, high = interval_of(resamples[:, number]) or (mean, mean)
        bins.append(CalibrationBin(float(scores[start:end].mean()), mean, low, high, int(end - start)))
    return tuple(bins)


def _confusion(
    label_classes: Int64[np.ndarray, " N"], score_classes: Int64[np.ndarray, " N"], classes: range
) -> tuple[tuple[int, ...], ...]:
    from sklearn.metrics import confusion_matrix

    table = confusion_matrix(label_classes, score_classes, labels=list(classes))
    return tuple(tuple(int(count) for count in row) for row in table)


def _curves(scores: Float64[np.ndarray, " N"], is_wanted: Bool[np.ndarray, " N"]) -> dict[str, Any]:
    from sklearn.metrics import precision_recall_curve, roc_curve

    if is_wanted.all() or not is_wanted.any():
        return {"roc": (), "pr": ()}
    false_rates, true_rates, _ = roc_curve(is_wanted, scores)
    precisions, recalls, _ = precision_recall_curve(is_wanted, scores)
    return {"roc": _thinned(false_rates, true_rates), "pr": _thinned(recalls[::-1], precisions[::-1])}


def _thinned(x: Float64[np.ndarray, " n"], y: Float64[np.ndarray, " n"]) -> tuple[tuple[float, float], ...]:
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _CURVE_POINTS)).round().astype(int))
    return tuple((round(float(x[index]), 6), round(float(y[index]), 6)) for index in kept)


def _rounded(values: Float64[np.ndarray, " N"], classes: range) -> Int64[np.ndarray, " N"]:
    return np.clip(np.rint(values), classes[0], classes[-1]).astype(np.int64)


_UNDEFINED = Estimate(None, None, None)


def _estimate(value: float, resamples: Float64[np.ndarray, " R"]) -> Estimate:
    interval = interval_of(resamples)
    return Estimate(float(value), *interval) if interval else Estimate(float(value), None, None)
