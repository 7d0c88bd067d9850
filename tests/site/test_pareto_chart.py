"""What the Pareto chart draws, against a plain computation."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from marin.site.leaderboard.measures import MEASURES
from marin.site.leaderboard.pareto import Axes, Point, draw, earlier_frontiers
from marin.speedrun.board.pareto import pareto_frontier

_figures = st.integers(1, 6).map(float)
_points = st.lists(
    st.builds(
        Point,
        name=st.just("a"),
        cost=_figures,
        quality=_figures,
        date=st.none() | st.integers(1, 9).map(lambda day: f"2026-01-{day:02d} 00:00:00 UTC"),
        state=st.sampled_from(["frontier", "other", "held"]),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(_points, st.sampled_from(["bits_per_byte", "core"]))
def test_earlier_frontiers_are_those_of_the_entries_of_their_day(points: list[Point], metric: str) -> None:
    measure = MEASURES[metric]
    sign = -1.0 if measure.higher_is_better else 1.0
    counted = [one for one in points if one.date is not None and one.state != "held"]
    expected: list[tuple[str, list[tuple[float, float]]]] = []
    for day in sorted({one.date[:10] for one in counted if one.date}):
        there = [one for one in counted if one.date and one.date[:10] <= day]
        on = pareto_frontier([(one.cost, sign * one.quality) for one in there])
        line = sorted({(one.cost, one.quality) for one, is_on in zip(there, on, strict=True) if is_on})
        if not expected or line != expected[-1][1]:
            expected.append((day, line))
    found = [(day, [(one.cost, one.quality) for one in line]) for day, line in earlier_frontiers(points, measure)]
    if len(expected) <= 6:
        assert found == expected[:-1]
    else:
        assert len(found) == 5
        assert found[0] == expected[0]
        assert found[-1] == expected[-2]
        assert [item for item in expected if item in found] == found


def test_refuted_figures_do_not_flatten_the_chart() -> None:
    axes = Axes(MEASURES["training_hardware_flops"], MEASURES["bits_per_byte"])
    counted = [Point(f"size_{n}", 10.0 ** (18 + n), 1.5 - 0.2 * n, None, "frontier") for n in range(3)]

    def with_held(cost: float, quality: float) -> str:
        return draw([*counted, Point("held", cost, quality, None, "held")], axes)["wide-light"]

    beyond = {with_held(cost, quality) for cost, quality in ((1e3, 1e-9), (1e12, 1e-3))}
    assert len(beyond) == 1 and "1.1" in re.findall(">([^<]+)</text>", beyond.pop())
    assert with_held(2e18, 1.2) != with_held(3e18, 1.2)  # near the others it stands where it is
