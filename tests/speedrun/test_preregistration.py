"""The verdict on a hypothesis: the interval decides, and nothing else."""

import dataclasses
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import ConfigError
from marin.speedrun.statistics.preregistration import (
    NOT_DECIDED,
    REFUTED,
    SUPPORTED,
    Decision,
    Metric,
    Observation,
    Preregistration,
    decide,
)

LOSS = Metric("loss", "result.json:loss")
BETTER = Decision({"arm": "b"}, {"arm": "a"}, effect=0.1)
SAME = Decision({"arm": "b"}, {"arm": "a"}, claim="same", effect=0.1)


def _runs(a: list[float | None], b: list[float | None]) -> list[Observation]:
    return [
        Observation({"arm": arm, "seed": str(seed)}, value)
        for arm, values in (("a", a), ("b", b))
        for seed, value in enumerate(values)
    ]


def test_gain_whose_interval_is_above_the_effect_supports_and_below_it_refutes() -> None:
    gains = {SUPPORTED: 0.5, REFUTED: 0.0, NOT_DECIDED: 0.11}
    for outcome, gain in gains.items():
        noise = [0.00, 0.01, 0.02]
        found = decide(
            BETTER, LOSS, _runs([1.0, 1.2, 0.9], [v - gain - n for v, n in zip([1.0, 1.2, 0.9], noise, strict=True)])
        )
        assert found.outcome == outcome
        assert found.effect == pytest.approx(gain + 0.01)
        assert found.seeds == (0, 1, 2)


def test_interval_is_that_of_the_paired_t_test() -> None:
    a, b = [1.0, 1.4, 0.9, 1.1], [0.8, 1.0, 0.85, 0.9]
    found = decide(BETTER, LOSS, _runs(a, b))
    differences = [x - y for x, y in zip(a, b, strict=True)]
    half = 3.182446 * statistics.stdev(differences) / 2  # the 97.5 % quantile of t with 3 degrees of freedom
    assert found.low == pytest.approx(statistics.mean(differences) - half, abs=1e-6)
    assert found.high == pytest.approx(statistics.mean(differences) + half, abs=1e-6)


@pytest.mark.parametrize(("shift", "outcome"), [(0.0, SUPPORTED), (0.3, REFUTED), (-0.3, REFUTED), (0.1, NOT_DECIDED)])
def test_claim_that_arms_are_the_same_needs_the_whole_interval_within_the_bound(shift: float, outcome: str) -> None:
    a = [1.0, 1.1, 1.2, 1.3]
    b = [1.0 + shift + 0.01, 1.1 + shift - 0.01, 1.2 + shift + 0.005, 1.3 + shift - 0.005]
    assert decide(SAME, LOSS, _runs(a, b)).outcome == outcome


def test_metric_that_is_better_when_higher_turns_the_sign() -> None:
    accuracy = dataclasses.replace(LOSS, lower_is_better=False)
    runs = _runs([0.2, 0.25, 0.3], [0.7, 0.74, 0.81])
    assert decide(BETTER, accuracy, runs).outcome == SUPPORTED
    assert decide(BETTER, LOSS, runs).outcome == REFUTED


@pytest.mark.parametrize("bad", [None, math.nan])
def test_run_that_is_missing_or_not_finite_decides_nothing(bad: float | None) -> None:
    found = decide(BETTER, LOSS, _runs([1.0, 1.2, 0.9], [0.1, 0.2, bad]))
    assert found.outcome == NOT_DECIDED and found.low is None


def test_one_seed_and_equal_differences_decide_nothing() -> None:
    assert decide(BETTER, LOSS, _runs([1.0], [0.1])).outcome == NOT_DECIDED
    assert decide(BETTER, LOSS, _runs([1.0, 2.0], [0.5, 1.5])).outcome == NOT_DECIDED  # a copy, not another seed


def _rates(values: dict[tuple[str, float], list[float]]) -> list[Observation]:
    return [
        Observation({"arm": arm, "rate": str(rate), "seed": str(seed)}, value)
        for (arm, rate), found in values.items()
        for seed, value in enumerate(found)
    ]


def test_open_parameters_are_chosen_by_their_seeds_which_do_not_compare() -> None:
    decision = dataclasses.replace(BETTER, choose_with=(0,), effect=0.0)
    runs = _rates(
        {
            ("a", 0.1): [1.0, 1.0, 1.1, 1.2],
            ("a", 0.2): [2.0, 0.1, 0.1, 0.1],  # better on the others, but chosen is by seed 0
            ("b", 0.1): [3.0, 0.0, 0.0, 0.1],
            ("b", 0.2): [0.5, 0.5, 0.7, 0.75],
        }
    )
    found = decide(decision, LOSS, runs)
    assert found.candidate is not None and found.baseline is not None
    assert found.candidate.parameters == {"arm": "b", "rate": "0.2"}
    assert found.baseline.parameters == {"arm": "a", "rate": "0.1"}
    assert found.seeds == (1, 2, 3)
    assert found.outcome == SUPPORTED and found.effect == pytest.approx(0.45)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=6), st.floats(-100, 100))
def test_verdict_does_not_depend_on_what_both_arms_share(pairs: list[tuple[float, float]], shared: float) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    plain = decide(BETTER, LOSS, _runs(list(a), list(b)))
    moved = decide(BETTER, LOSS, _runs([x + shared for x in a], [y + shared for y in b]))
    if plain.effect is not None and moved.effect is not None:
        assert moved.effect == pytest.approx(plain.effect, abs=1e-9)
    near = [bound for bound in (plain.low, plain.high) if bound is not None and abs(bound - 0.1) < 1e-6]
    if plain.low is not None and moved.low is not None and not near:
        assert moved.outcome == plain.outcome


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"candidate": {"arm": "c"}}, "no point"),
        ({"candidate": {"size": 3}}, "size"),
        ({"choose_with": (7,)}, "7"),
    ],
)
def test_rule_that_the_sweep_cannot_answer_is_refused(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        decide(dataclasses.replace(BETTER, **changes), LOSS, _runs([1.0, 2.0], [1.0, 2.0]))  # type: ignore[arg-type]


def test_open_parameter_without_seeds_to_choose_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose_with"):
        decide(BETTER, LOSS, _rates({("a", 0.1): [1.0, 2.0], ("b", 0.1): [1.0, 2.0]}))


@pytest.mark.parametrize(
    "changes",
    [{"effect": -1.0}, {"claim": "same", "effect": 0.0}, {"claim": "worse"}, {"level": 1.0}, {"baseline": {"arm": "b"}}, {"baseline": {"seed": 1}}],
)  # fmt: skip
def test_decision_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(BETTER, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"slug": "Bad slug"}, {"number": 0}, {"question": " "}, {"hypothesis": ""}, {"stopping_rule": ""}]
)
def test_preregistration_with_an_empty_field_is_refused(changes: dict[str, object]) -> None:
    plan = Preregistration(1, "a", "Q?", "H.", LOSS, "Three seeds.", BETTER)
    with pytest.raises(ConfigError):
        dataclasses.replace(plan, **changes)  # type: ignore[arg-type]
