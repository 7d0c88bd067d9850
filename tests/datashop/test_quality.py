"""A classifier's figures are the libraries', also within each resample of the bootstrap; nothing is guessed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from marin.datashop.quality import measure_quality
from marin.datashop.resampling import Resampled
from marin.errors import DataError

UNIT = (0.0, 1.0)


def drawn_pairs(num: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels from 0 to 5 that agree somewhat, with many equal ones."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 6, num).astype(np.float64)
    scores = np.clip(np.round(labels + generator.normal(0, 1.5, num), 1), 0, 5)
    return scores, labels


@settings(max_examples=10)
@given(num=st.integers(5, 60), seed=st.integers(0, 10_000))
def test_resampled_figures_are_those_of_the_libraries_on_the_resampled_documents(num: int, seed: int) -> None:
    scores, labels = drawn_pairs(num, seed)
    order = np.lexsort((labels, scores))
    scores, labels = scores[order], labels[order]
    resampled = Resampled(scores, labels, 3, seed)
    rows: list[np.ndarray] = []
    resampled._each(lambda counts: (rows.extend(counts), counts[:, 0])[1])
    wanted, says_so = labels >= 3, scores >= 3
    rounded = labels.astype(np.int64), np.rint(scores).astype(np.int64)
    found = {
        "auc": resampled.auc(wanted),
        "ap": resampled.average_precision(wanted),
        "f1": resampled.f1(wanted, says_so),
        "macro": resampled.macro_f1(*rounded),
        "spearman": resampled.spearman(),
    }
    for number, counts in enumerate(rows):
        again = np.repeat(np.arange(num), counts.astype(int))
        y, x, p = wanted[again], scores[again], says_so[again]
        if y.any() and not y.all():
            assert found["auc"][number] == pytest.approx(roc_auc_score(y, x))
            assert found["ap"][number] == pytest.approx(average_precision_score(y, x))
        else:
            assert np.isnan(found["auc"][number])
        if y.any() or p.any():
            assert found["f1"][number] == pytest.approx(f1_score(y, p, zero_division=0.0))
        macro = f1_score(rounded[0][again], rounded[1][again], average="macro", zero_division=0.0)
        assert found["macro"][number] == pytest.approx(macro)
        if np.ptp(x) and np.ptp(labels[again]):
            assert found["spearman"][number] == pytest.approx(spearmanr(x, labels[again]).statistic)


def test_quality_states_the_libraries_figures_with_intervals_around_them() -> None:
    scores, labels = drawn_pairs(400, 1)
    quality = measure_quality(scores, labels, 3.0, scale=(0.0, 5.0), seed=0)
    assert quality.auc.value == pytest.approx(roc_auc_score(labels >= 3, scores))
    assert quality.average_precision.value == pytest.approx(average_precision_score(labels >= 3, scores))
    assert quality.spearman.value == pytest.approx(spearmanr(scores, labels).statistic)
    assert quality.prior == pytest.approx((labels >= 3).mean())
    for estimate in (quality.auc, quality.average_precision, quality.f1, quality.macro_f1, quality.spearman):
        assert estimate.low is not None and estimate.value is not None and estimate.high is not None
        assert estimate.low < estimate.value < estimate.high
    assert np.sum(quality.confusion) == 400 and len(quality.confusion) == 6
    assert [sum(row) for row in quality.confusion] == list(quality.histogram.values())
    assert sum(entry.num_documents for entry in quality.calibration) == 400
    assert all(entry.low <= entry.label <= entry.high for entry in quality.calibration)
    assert quality.roc[0] == (0, 0) and quality.roc[-1] == (1, 1)


@pytest.mark.slow
def test_interval_of_auc_covers_the_truth_about_as_often_as_it_says() -> None:
    """Scores of the two sides are normal at a distance of 1: the true AUC is Phi(1 / sqrt 2)."""
    truth, covered = 0.5 * (1 + math.erf(0.5)), 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        labels = (np.arange(200) % 2).astype(np.float64)
        auc = measure_quality(generator.normal(labels, 1), labels, 0.5, scale=UNIT, seed=seed).auc
        assert auc.low is not None and auc.high is not None
        covered += auc.low <= truth <= auc.high
    assert 52 <= covered  # 57 of 60 are expected


def test_order_of_the_documents_changes_nothing() -> None:
    scores, labels = drawn_pairs(150, 2)
    shuffled = np.random.default_rng(0).permutation(150)
    first = measure_quality(scores, labels, 3.0, scale=(0.0, 5.0), seed=4)
    assert first == measure_quality(scores[shuffled], labels[shuffled], 3.0, scale=(0.0, 5.0), seed=4)
    assert first.auc != measure_quality(scores, labels, 3.0, scale=(0.0, 5.0), seed=5).auc


def test_scores_of_a_perfect_and_of_an_ignorant_classifier() -> None:
    labels = np.array([0.0, 1.0] * 50)
    perfect = measure_quality(labels, labels, 0.5, scale=UNIT, seed=0)
    assert (perfect.auc.value, perfect.average_precision.low, perfect.f1.value) == (1, 1, 1)
    ignorant = measure_quality(np.full(100, 0.3), labels, 0.5, scale=UNIT, seed=0)
    assert (ignorant.auc.value, ignorant.average_precision.value) == (0.5, 0.5)
    assert ignorant.spearman.value is None and len(ignorant.calibration) == 1


def test_labels_on_one_side_leave_the_figures_undefined() -> None:
    quality = measure_quality(np.array([0.1, 0.9, 0.4]), np.zeros(3), 0.5, scale=UNIT, seed=0)
    assert quality.auc.value is None and quality.average_precision.value is None and quality.f1.value is None
    assert quality.roc == () and quality.lopsided is not None
    assert "not defined" in quality.summary()


def test_lopsided_labels_are_warned_of_and_balanced_ones_are_not() -> None:
    rare = np.array([1.0] * 5 + [0.0] * 500)
    warning = measure_quality(rare, rare, 0.5, scale=UNIT, seed=0).lopsided
    assert warning is not None and "only 5 of 505" in warning
    even = np.array([1.0, 0.0] * 100)
    assert measure_quality(even, even, 0.5, scale=UNIT, seed=0).lopsided is None


@pytest.mark.parametrize(
    ("scores", "labels"), [([], []), ([0.1], [1.0, 0.0]), ([math.nan], [1.0]), ([0.5], [math.inf])]
)
def test_bad_pairs_are_refused(scores: list[float], labels: list[float]) -> None:
    with pytest.raises(DataError):
        measure_quality(np.array(scores), np.array(labels), 0.5, scale=UNIT, seed=0)
