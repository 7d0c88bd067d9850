"""What the Pareto chart draws, against a plain computation."""

from hypothesis import given, settings
from hypothesis import strategies as st

from marin.site.leaderboard.measures import MEASURES
from marin.site.leaderboard.pareto import Point, earlier_frontiers
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
