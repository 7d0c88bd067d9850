"""Scaling fits: against SciPy, against known curves, and what is refused."""

import dataclasses
import pathlib

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.speedrun.board.kept_fits import KeptFits
from marin.speedrun.statistics import scaling_fit
from marin.speedrun.statistics.scaling import Point, ScalingFit, num_budgets, rank_families
from marin.speedrun.statistics.scaling_fit import fit_family

BUDGET = 1e22


def _curve(a: float, b: float, c: float, *, points: int = 8, noise: float = 0.0, seed: int = 0) -> list[Point]:
    costs = np.geomspace(1e18, 1e21, points)
    errors = 1 + noise * np.random.default_rng(seed).normal(size=points)
    qualities = (a * (costs / 1e20) ** -b + c) * errors
    return [
        Point(f"run-{i}", float(cost), float(value))
        for i, (cost, value) in enumerate(zip(costs, qualities, strict=True))
    ]


@settings(max_examples=30)
@given(st.floats(0.1, 1), st.floats(0.05, 0.6), st.floats(0.2, 1))
def test_an_exact_curve_is_found_again(a: float, b: float, c: float) -> None:
    fit = fit_family("family", _curve(a, b, c), BUDGET)
    assert fit.parameters == 3
    assert (fit.b, fit.c) == pytest.approx((b, c), rel=1e-3)
    assert fit.projection == pytest.approx(a * 100**-b + c, rel=1e-5)
    assert fit.r_squared == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_fit_agrees_with_scipys_curve_fit(seed: int) -> None:
    points = _curve(0.4, 0.2, 0.6, noise=2e-3, seed=seed)
    fit = fit_family("family", points, BUDGET)
    x = np.array([point.cost for point in points]) / fit.unit
    y = np.array([point.quality for point in points])
    (a, b, c), _ = scipy.optimize.curve_fit(
        lambda x, a, b, c: a * x**-b + c, x, y, p0=(0.4, 0.2, 0.6), sigma=y, xtol=1e-12
    )
    assert (fit.a, fit.b, fit.c) == pytest.approx((a, b, c), rel=1e-4)


@pytest.mark.parametrize("points", [5, 12])
def test_the_intervals_hold_the_truth_about_as_often_as_they_say(points: int) -> None:
    truth = 0.4 * 100**-0.2 + 0.6
    held = 0
    for seed in range(60):
        fit = fit_family("family", _curve(0.4, 0.2, 0.6, points=points, noise=2e-3, seed=seed), BUDGET)
        assert fit.projection_interval is not None
        held += fit.projection_interval.low <= truth <= fit.projection_interval.high
    assert held / 60 > 0.85


def test_equal_points_give_equal_fits_in_any_order() -> None:
    points = _curve(0.4, 0.2, 0.6, noise=2e-3)
    assert fit_family("family", points, BUDGET) == fit_family("family", points[::-1], BUDGET)


@settings(max_examples=20)
@given(st.floats(1e-3, 1e3))
def test_another_unit_of_cost_changes_no_projection(factor: float) -> None:
    points = _curve(0.4, 0.2, 0.6, noise=2e-3)
    scaled = [dataclasses.replace(point, cost=point.cost * factor) for point in points]
    fit, other = fit_family("family", points, BUDGET), fit_family("family", scaled, BUDGET * factor)
    assert (other.b, other.c, other.projection) == pytest.approx((fit.b, fit.c, fit.projection), rel=1e-6)
    assert other.refusal == fit.refusal


@pytest.mark.parametrize(
    ("points", "words", "parameters"),
    [
        (_curve(0.4, 0.2, 0.6, points=1), "a line needs two", 0),
        ([Point("a", 1.8e14, 0.94), Point("b", 1.9e14, 1.06), Point("c", 2.1e14, 0.98)], "did no better", 0),
        (_curve(0.4, 0.2, 0.6, points=4), "cannot support three parameters", 2),
        ([*_curve(0.4, 0.2, 0.6, points=4), *_curve(0.4, 0.2, 0.6, points=4)], "cannot support three parameters", 2),
        (_curve(0.4, 0.2, 0.6, points=8, noise=0.02), "interval", 3),
        (
            [dataclasses.replace(p, cost=1e20 * (1 + i / 5)) for i, p in enumerate(_curve(0.4, 0.2, 0.6))],
            "span a factor of",
            3,
        ),
        ([dataclasses.replace(p, cost=p.cost / 1e4) for p in _curve(0.4, 0.2, 0.6)], "beyond the largest budget", 3),
    ],
)
def test_points_that_cannot_support_a_projection_are_refused_with_the_reason(
    points: list[Point], words: str, parameters: int
) -> None:
    fit = fit_family("family", points, BUDGET)
    assert fit.refusal is not None and words in fit.refusal
    assert fit.parameters == parameters
    if parameters == 2:
        assert fit.c == 0 and fit.c_interval is None
    assert rank_families({"family": points}, BUDGET)[0].rank is None


def test_families_are_ranked_by_their_projection_and_refused_ones_follow() -> None:
    families = {
        "better": _curve(0.4, 0.2, 0.55),
        "worse": _curve(0.4, 0.2, 0.6),
        "few": _curve(0.4, 0.2, 0.1, points=3),
    }
    fits = rank_families(families, BUDGET)
    assert [(fit.family, fit.rank) for fit in fits] == [("better", 1), ("worse", 2), ("few", None)]


def test_budgets_within_five_percent_count_once_and_bad_figures_are_refused() -> None:
    assert num_budgets([1e18, 1.02e18, 1.04e18, 2e18]) == 2
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive and finite"):
            fit_family("family", [Point("a", 1.0, bad), Point("b", 2.0, 1.0)], BUDGET)


def test_kept_fits_are_those_made_anew_and_are_made_again_for_another_figure(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        scaling_fit, "fit_family", lambda family, points, budget: made.append(family) or fit_family(family, points, budget)
    )  # fmt: skip
    families = {
        "three": _curve(0.4, 0.2, 0.6, points=12, noise=2e-3, seed=1),
        "two": _curve(0.4, 0.2, 0.6, points=4, noise=2e-3, seed=2),
        "none": [Point("a", 1e18, 1.0)],
    }

    def kept() -> tuple[ScalingFit, ...]:
        fits = KeptFits(tmp_path)
        found = rank_families(families, BUDGET, fits.fit)
        fits.save()
        return found

    assert kept() == rank_families(families, BUDGET)
    made.clear()
    families["two"] = [dataclasses.replace(point, key=f"{point.key}-renamed") for point in families["two"][::-1]]
    assert kept() == rank_families(families, BUDGET)
    assert made == ["three", "two", "none"]  # those of `rank_families` without a store alone
    made.clear()
    families["two"] = [dataclasses.replace(point, quality=point.quality * 1.001) for point in families["two"]]
    kept()
    assert made == ["two"]
    lines = (tmp_path / "fits.jsonl").read_text()
    (tmp_path / "fits.jsonl").write_text(lines.replace('"parameters": 3', '"parameters": 2'))
    made.clear()
    assert kept() == rank_families(families, BUDGET)
    assert made == ["three", "three", "two", "none"]
