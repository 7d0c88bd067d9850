"""Distributions, tests and plans against SciPy and against simulation."""

import math
import random
import statistics as reference

import pytest
import scipy.stats
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from marin.errors import ConfigError
from marin.speedrun.statistics.distributions import (
    expected_best_of,
    f_cdf,
    normal_cdf,
    normal_quantile,
    t_cdf,
    t_power,
    t_quantile,
)
from marin.speedrun.statistics.means import (
    Noise,
    Sample,
    beats,
    beats_bound,
    missing_seeds,
    sample_of,
    spread_of,
    too_close,
    too_far,
)
from marin.speedrun.statistics.power import p_if_best_of, plan_runs

_DF = st.one_of(st.integers(1, 200).map(float), st.floats(1, 1e6))
_VALUES = st.lists(st.floats(-100, 100).map(lambda x: round(x, 6)), min_size=2, max_size=20)
CORE = Noise(sd=0.0052, runs=7, source="test")


# --- distributions ------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.floats(-40, 40), _DF)
def test_t_and_normal_cdf_agree_with_scipy(x: float, df: float) -> None:
    assert t_cdf(x, df) == pytest.approx(scipy.stats.t.cdf(x, df), rel=1e-7, abs=1e-15)
    assert normal_cdf(x) == pytest.approx(scipy.stats.norm.cdf(x), rel=1e-9, abs=1e-300)


@settings(max_examples=100)
@given(st.floats(1e-6, 1 - 1e-6), _DF)
def test_t_and_normal_quantiles_agree_with_scipy(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-7, abs=1e-9)
    assert normal_quantile(p) == pytest.approx(scipy.stats.norm.ppf(p), rel=1e-9, abs=1e-12)


@settings(max_examples=100)
@given(st.floats(0, 50), st.integers(1, 40), st.one_of(st.integers(1, 200), st.just(10**9)))
def test_f_cdf_agrees_with_scipy(x: float, df1: int, df2: int) -> None:
    assert f_cdf(x, df1, df2) == pytest.approx(scipy.stats.f.cdf(x, df1, df2), rel=1e-5, abs=1e-9)


@settings(max_examples=60)
@given(st.floats(0, 6), st.one_of(st.integers(1, 60), st.floats(1, 3)), st.sampled_from([0.05, 0.01, 0.001]))
@example(6.0, 1.1, 0.05)  # two runs against many, as Welch's test has it
def test_t_power_agrees_with_scipys_non_central_t(shift: float, df: float, p_value: float) -> None:
    expected = scipy.stats.nct.sf(scipy.stats.t.ppf(1 - p_value, df), df, shift)
    assert t_power(shift, df, p_value) == pytest.approx(expected, abs=1e-6)


def test_expected_best_of_agrees_with_order_statistics_by_simulation() -> None:
    source = random.Random(1)
    for k in (2, 5, 10):
        mean = reference.fmean(max(source.gauss(0, 1) for _ in range(k)) for _ in range(20_000))
        assert expected_best_of(k) == pytest.approx(mean, abs=0.03)
    assert expected_best_of(1) == 0


# --- samples and tests --------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(_VALUES)
def test_spread_agrees_with_scipys_interval(values: list[float]) -> None:
    assume(reference.stdev(values) > 1e-3)
    found = spread_of(values, noise=None)
    error = scipy.stats.sem(values)
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=reference.fmean(values), scale=error)
    assert (found.standard_error, found.low, found.high) == pytest.approx((error, low, high), rel=1e-6, abs=1e-9)
    assert (found.n, found.noise_from) == (len(values), "runs")


@settings(max_examples=60)
@given(_VALUES, st.floats(-100, 100), st.booleans())
def test_beats_bound_agrees_with_scipys_one_sided_t_test(values: list[float], bound: float, higher: bool) -> None:
    assume(reference.stdev(values) > 1e-3)
    found = beats_bound(sample_of(values), bound, higher_is_better=higher, noise=None)
    expected = scipy.stats.ttest_1samp(values, bound, alternative="greater" if higher else "less")
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)


@settings(max_examples=60)
@given(_VALUES, _VALUES, st.booleans())
def test_beats_agrees_with_scipys_welch_test(ours: list[float], theirs: list[float], higher: bool) -> None:
    assume(min(reference.stdev(ours), reference.stdev(theirs)) > 1e-3)
    found = beats(sample_of(ours), sample_of(theirs), higher_is_better=higher, noise=None)
    expected = scipy.stats.ttest_ind(ours, theirs, equal_var=False, alternative="greater" if higher else "less")
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-10)


@settings(max_examples=100)
@given(_VALUES, st.floats(0.8, 10), st.floats(-100, 100), st.floats(1, 5))
def test_a_larger_noise_never_makes_a_claim_of_two_runs_or_more_surer(
    values: list[float], part: float, bound: float, factor: float
) -> None:
    sample = sample_of(values)
    sd = part * max(sample.sd or 0, 0.01)
    small, large = Noise(sd, None, "test"), Noise(sd * factor, None, "test")
    assume(not too_far(sample, small))  # by which they are not judged
    tests = [beats_bound(sample, bound, higher_is_better=True, noise=noise) for noise in (small, large)]
    assume(tests[0].difference > 0)
    assert tests[0].p_value is not None and tests[1].p_value is not None
    assert tests[1].p_value >= tests[0].p_value - 1e-12


@settings(max_examples=60)
@given(_VALUES, st.floats(0.01, 0.1), st.booleans())
def test_runs_that_lie_further_apart_than_the_noise_model_says_are_judged_by_themselves(
    values: list[float], part: float, known: bool
) -> None:
    sample = sample_of(values)
    assume(sample.sd is not None and sample.sd > 1e-3)
    noise = Noise(part * (sample.sd or 0) / 10, None if known else 12, "test")
    assert too_far(sample, noise)
    for found, alone in (
        (beats_bound(sample, sample.mean - 1, higher_is_better=True, noise=one) for one in (noise, None)),
        (spread_of(values, noise=one) for one in (noise, None)),
    ):
        assert found == alone


def test_one_run_is_held_against_runs_of_a_wider_spread_by_that_spread() -> None:
    """By the noise model alone it would stand eight standard errors above them."""
    wide, one = sample_of([1.0, 2.0, 3.0, 4.0]), sample_of([4.0])
    found = beats(one, wide, higher_is_better=True, noise=Noise(0.15, None, "test"))
    assert found.standard_error == pytest.approx((wide.sd or 0) * math.sqrt(1 + 1 / 4)) and found.df == 3
    assert found.p_value == pytest.approx(scipy.stats.t.sf(1.5 / (found.standard_error or 1), 3))


def test_runs_of_the_fourth_nanochat_row_are_0_3_standard_errors_above_the_bar() -> None:
    row = Sample(n=7, mean=0.25714, sd=0.0052)
    found = beats_bound(row, 0.256525, higher_is_better=True, noise=None)
    assert found.standard_error is not None and found.p_value is not None
    assert found.difference / found.standard_error == pytest.approx(0.31, abs=0.005)
    assert found.p_value == pytest.approx(0.38, abs=0.005)


def test_one_run_is_tested_by_the_noise_model_and_by_nothing_without_one() -> None:
    one = sample_of([0.27])
    found = beats_bound(one, 0.256525, higher_is_better=True, noise=CORE)
    assert found.p_value == pytest.approx(scipy.stats.t.sf((0.27 - 0.256525) / 0.0052, 6), rel=1e-7)
    untold = beats_bound(one, 0.256525, higher_is_better=True, noise=None)
    assert untold.p_value is None and not untold.passes(0.01)
    assert "seeds" in (untold.reason or "")


def test_two_single_runs_have_the_degrees_of_freedom_of_the_one_noise_model_that_both_are_judged_by() -> None:
    """Their difference over the model's spread is Student's t with those of the model, which are there once."""
    noise = Noise(0.5, 10, "a test")
    found = beats(sample_of([3.0]), sample_of([1.0]), higher_is_better=True, noise=noise)
    assert found.p_value == pytest.approx(scipy.stats.t.sf(2.0 / (0.5 * math.sqrt(2)), 9), rel=1e-6)


@settings(max_examples=60)
@given(_VALUES, st.floats(-100, 100), st.booleans())
def test_one_run_without_a_noise_model_is_challenged_by_the_spread_of_the_challengers_runs(
    values: list[float], other: float, higher: bool
) -> None:
    """As in the two-sample test with a pooled deviation, to which one run adds nothing."""
    assume(reference.stdev(values) > 1e-3)
    found = beats(sample_of(values), sample_of([other]), higher_is_better=higher, noise=None)
    expected = scipy.stats.ttest_ind(values, [other], equal_var=True, alternative="greater" if higher else "less")
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-10)
    assert "one run" in (found.assumed or "")


def test_of_two_single_runs_without_a_noise_model_neither_beats_the_other_nor_does_one_run_beat_several() -> None:
    one, several = sample_of([9.0]), sample_of([1.0, 2.0, 3.0])
    for record in (sample_of([1.0]), several):
        found = beats(one, record, higher_is_better=True, noise=None)
        assert found.p_value is None and "run it with more seeds" in (found.reason or "")


def test_a_record_of_equal_values_can_be_beaten_and_counts_as_one_run_and_a_stated_mean_as_its_runs() -> None:
    challenger = sample_of([9.0, 9.5, 10.0])
    for record, n in ((sample_of([8.0, 8.0, 8.0, 8.0]), 1), (sample_of([8.0], stated_runs=4), 4)):
        found = beats(challenger, record, higher_is_better=True, noise=None)
        error = 0.5 * math.sqrt(1 / 3 + 1 / n)
        assert (found.standard_error, found.df) == (pytest.approx(error), 2)
        assert found.p_value == pytest.approx(scipy.stats.t.sf(1.5 / error, 2))


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (3, 1), (2, 3)])
def test_equal_runs_pass_no_more_often_than_p_where_the_noise_was_measured_from_few_runs(
    ours: int, theirs: int
) -> None:
    source = random.Random(8)
    passed = 0
    for _ in range(8000):
        noise = Noise(reference.stdev(source.gauss(0.0, 1.0) for _ in range(5)), 5, "a test")
        samples = [sample_of([source.gauss(0.0, 1.0) for _ in range(n)]) for n in (ours, theirs)]
        passed += beats(*samples, higher_is_better=True, noise=noise).passes(0.01)
    assert passed / 8000 < 0.0133  # three standard errors above


def test_equal_values_show_nothing_without_a_noise_model() -> None:
    assert beats_bound(sample_of([1.0, 1.0, 1.0]), 2.0, higher_is_better=False, noise=None).p_value is None
    assert spread_of([1.0, 1.0], noise=None).standard_error is None


def test_a_stated_mean_of_several_runs_counts_as_so_many() -> None:
    found = spread_of([0.2626], noise=CORE, stated_runs=5)
    assert (found.n, found.sd, found.noise_from) == (5, None, "test")
    assert found.standard_error == pytest.approx(0.0052 / math.sqrt(5))


# --- the choice of runs -------------------------------------------------------------------------------------------


def test_copies_that_differ_in_the_last_digits_are_too_close_and_honest_runs_are_not() -> None:
    assert too_close(sample_of([0.2600, 0.2601, 0.2600, 0.2601]), CORE) is not None
    source = random.Random(3)
    flagged = sum(
        too_close(sample_of([source.gauss(0.26, 0.0052) for _ in range(5)]), CORE) is not None for _ in range(1000)
    )
    assert flagged / 1000 < 0.005


def test_p_of_the_best_of_several_and_missing_seeds() -> None:
    assert p_if_best_of(0.01, 10) == pytest.approx(1 - 0.99**10)
    assert p_if_best_of(0.01, 1) == pytest.approx(0.01)
    assert missing_seeds([0, 1, 4]) == (2, 3)
    assert missing_seeds([0, 1, 2]) == missing_seeds([7]) == missing_seeds([1, 20260101]) == ()


# --- plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", [None, 1, 8])
def test_planned_runs_reach_the_power_by_simulation_and_one_fewer_does_not(against: int | None) -> None:
    effect = 4.0 if against == 1 else 2.0
    plan = plan_runs(effect, sd=1.0, p_value=0.01, power=0.8, against=against)
    source = random.Random(5)

    def power(n: int) -> float:
        passed = 0
        for _ in range(1500):
            ours = sample_of([source.gauss(effect, 1.0) for _ in range(n)])
            if against is None:
                found = beats_bound(ours, 0.0, higher_is_better=True, noise=None)
            else:
                theirs = sample_of([source.gauss(0.0, 1.0) for _ in range(against)])
                found = beats(ours, theirs, higher_is_better=True, noise=None)
            passed += found.passes(0.01)
        return passed / 1500

    assert power(plan.runs) > 0.76
    assert power(plan.runs - 1) < 0.82
    assert plan.power >= 0.8


@pytest.mark.parametrize(("noise_runs", "against"), [(None, None), (7, None), (None, 3), (7, 4)])
def test_planned_power_is_that_of_the_test_with_a_noise_model(noise_runs: int | None, against: int | None) -> None:
    # Runs that lie further apart than the model says are judged by their own spread, which costs power.
    noise = Noise(1.0, noise_runs, "a test")
    plan = plan_runs(3.0, sd=1.0, noise_runs=noise_runs, known=noise_runs is None, against=against)
    source = random.Random(6)
    passed = 0
    for _ in range(6000):
        ours = sample_of([source.gauss(3.0, 1.0) for _ in range(plan.runs)])
        if against is None:
            found = beats_bound(ours, 0.0, higher_is_better=True, noise=noise)
        else:
            theirs = sample_of([source.gauss(0.0, 1.0) for _ in range(against)])
            found = beats(ours, theirs, higher_is_better=True, noise=noise)
        passed += found.passes(0.01)
    assert passed / 6000 == pytest.approx(plan.power, abs=0.015)
    assert plan.power >= 0.9


@settings(max_examples=15)
@given(st.floats(0.5, 5), st.floats(1.0, 3), st.sampled_from([None, 7]))
def test_a_larger_effect_needs_no_more_runs(effect: float, factor: float, noise_runs: int | None) -> None:
    few = plan_runs(effect * factor, sd=1.0, noise_runs=noise_runs).runs
    assert few <= plan_runs(effect, sd=1.0, noise_runs=noise_runs).runs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"effect": -1.0}, "effect"),
        ({"sd": 0.0}, "sd"),
        ({"p_value": 1.5}, "probability"),
        ({"power": 0.001}, "not above p"),
        ({"against": 0}, "at least 1"),
        ({"effect": 0.1, "against": 5}, "record's own 5 runs"),
    ],
)
def test_a_plan_of_senseless_figures_says_what_to_give(change: dict[str, float], words: str) -> None:
    figures = {"effect": 1.0, "sd": 1.0} | change
    with pytest.raises(ConfigError, match=words):
        plan_runs(**figures)  # type: ignore[arg-type]
