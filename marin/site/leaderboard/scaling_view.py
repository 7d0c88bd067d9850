"""The scaling view of a track: its families' fits, as lines of a table and as a chart with the intervals of their projections."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard.api import FamilyScaling
from marin.site.leaderboard.drawing import LIGHT, WIDE, Shape, finish, in_every_shape, says
from marin.site.leaderboard.frame import cost_axis, make_frame, quality_axis
from marin.site.leaderboard.measures import MEASURES, Measure
from marin.site.leaderboard.summary import EntrySummary
from marin.speedrun.board.entries import submission_of
from marin.speedrun.results import plain_name
from marin.speedrun.statistics.scaling import FARTHEST, Fitter, Point, ScalingFit, rank_families
from marin.speedrun.tracks import Track

_FEWEST = 2
_MOST = 40  # families that are fitted: each takes some milliseconds, and a longer table is not read
_SHOWN = len(LIGHT.families)


def fits_of(
    track: Track, entries: Sequence[EntrySummary], fitted: Fitter | None = None
) -> tuple[tuple[ScalingFit, ...], int]:
    """The fits of a track's families to a budget of up to one and a half orders beyond the largest, and how many families have none.

    A family is what lies in one folder, or the runs of one file, as `marin submit` gathers the sizes of an idea. It is one author's: a run that
    another puts beside it would change its fit. Where there are very many families, those that
    reached the largest budgets are fitted. Nothing is where nothing scales.

    Args:
        fitted: as of `rank_families`.
    """
    if track.objective != "pareto" or track.higher_is_better:
        return (), 0
    of_authors: dict[tuple[str, str], list[Point]] = {}
    authors: dict[str, dict[str, str]] = {}  # of each family: as they are compared, and as they are written
    for entry in entries:
        cost, quality = entry["values"].get(track.cost), entry["values"].get(track.metric)
        if entry["rank"] is None or cost is None or quality is None:
            continue
        if 0 < cost < math.inf and 0 < quality < math.inf:
            author, family = plain_name(entry["author"]), submission_of(entry["name"])
            authors.setdefault(family, {}).setdefault(author, entry["author"])
            of_authors.setdefault((family, author), []).append(Point(entry["key"], cost, quality))
    families = {
        family if len(authors[family]) == 1 else f"{family} by {authors[family][author]}": points
        for (family, author), points in of_authors.items()
    }
    large = sorted(
        (name for name, points in families.items() if len(points) >= _FEWEST),
        key=lambda name: (-max(point.cost for point in families[name]), name),
    )
    largest = {name: families[name] for name in sorted(large[:_MOST])}
    if not largest:
        return (), 0
    return rank_families(largest, target_of(largest.values()), fitted), len(large) - len(largest)


def target_of(families: Iterable[Sequence[Point]]) -> float:
    """The budget that fits are read off at: the last power of ten to which a family with the largest may be projected and ranked."""
    largest = max(point.cost for points in families for point in points)
    return float(10.0 ** min(math.floor(math.log10(FARTHEST) + math.log10(largest)), 300))


def document_of(fit: ScalingFit) -> FamilyScaling:
    interval = fit.projection_interval
    return FamilyScaling(
        family=fit.family,
        rank=fit.rank,
        keys=[point.key for point in fit.points],
        parameters=fit.parameters,
        unit=fit.unit,
        a=fit.a,
        b=fit.b,
        c=fit.c,
        r_squared=fit.r_squared,
        target=fit.budget,
        projected=fit.projection,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        refused=fit.refusal,
    )


def shown_fits(fits: Sequence[ScalingFit]) -> list[ScalingFit]:
    """Those that the chart has colours for: ranked ones first."""
    return [fit for fit in fits if fit.projection is not None][:_SHOWN]


def numbered(fits: Sequence[ScalingFit]) -> tuple[list[ScalingFit], tuple[str, ...]]:
    """The fits with numbers in place of their points' keys, and the keys by number."""
    keys: list[str] = []
    made = []
    for fit in fits:
        start = len(keys)
        keys += [point.key for point in fit.points]
        points = [dataclasses.replace(point, key=str(start + place)) for place, point in enumerate(fit.points)]
        made.append(dataclasses.replace(fit, points=tuple(points)))
    return made, tuple(keys)


def describe(track: Track, fits: Sequence[ScalingFit]) -> str:
    ranked = [fit for fit in fits if fit.rank is not None]
    text = f"Chart of {len(shown_fits(fits))} of {len(fits)} families with their fitted curves."
    if not ranked:
        return f"{text} None has points that support a ranking."
    best = ranked[0]
    return (
        f"{text} {wording.clean(best.family, 80)} is projected best: {wording.bits(best.projection)} at "
        f"{MEASURES[track.cost].text(best.budget)}. The table below has every fit."
    )


def draw(cost: str, metric: str, fits: Sequence[ScalingFit]) -> dict[str, str]:
    """SVG text by shape and scheme; `cost` and `metric` are the track's."""
    return in_every_shape(lambda shape: _specification(MEASURES[cost], MEASURES[metric], shown_fits(fits), shape))


def _specification(cost: Measure, quality: Measure, fits: Sequence[ScalingFit], shape: Shape) -> dict[str, Any]:
    import altair as alt

    budget = fits[0].budget
    costs = [point.cost for fit in fits for point in fit.points]
    qualities = [point.quality for fit in fits for point in fit.points] + [fit.projection or 1.0 for fit in fits]
    frame = make_frame(shape, [*costs, budget], qualities, logarithmic=True)
    names = _names(fits)
    legend = alt.Legend(
        title=None, orient="right" if shape is WIDE else "bottom", columns=1, labelColor=LIGHT.text, labelLimit=215, symbolType="circle"
    )  # fmt: skip
    x = alt.X("x:Q", title=f"{cost.title} (log)", scale=alt.Scale(type="log", domain=list(frame.cost), nice=False),
              axis=cost_axis(frame, cost.unit))  # fmt: skip
    y = alt.Y("y:Q", title=quality.axis_title, scale=alt.Scale(type="log", domain=list(frame.quality), nice=False),
              axis=quality_axis(frame))  # fmt: skip
    colour = alt.Color(
        "family:N", scale=alt.Scale(domain=names, range=list(LIGHT.families[: len(names)])), legend=legend
    )

    def chart(values: list[dict[str, Any]]) -> Any:
        return alt.Chart(alt.InlineData(values=values)).encode(x=x, y=y, color=colour)

    curves: list[dict[str, Any]] = []
    projections: list[dict[str, Any]] = []
    for name, fit in zip(names, fits, strict=True):
        start = min(point.cost for point in fit.points)
        for k in range(41):
            at = start * (budget / start) ** (k / 40)
            value = fit.at(at)
            if value is not None and frame.quality[0] <= value <= frame.quality[1]:
                curves.append({"x": at, "y": value, "family": name})
        interval = fit.projection_interval
        if interval is not None and interval.low > 0:
            low, high = max(interval.low, frame.quality[0]), min(interval.high, frame.quality[1])
            projections.append({"x": budget * 0.97 ** len(projections), "y": low, "high": high, "family": name})
    points = [
        {"x": point.cost, "y": point.quality, "family": name,
         "says": says(point.key, fit.family, f"{quality.text(point.quality)} · {cost.text(point.cost)}")}
        for name, fit in zip(names, fits, strict=True) for point in fit.points
    ]  # fmt: skip
    layers = [
        chart(curves).mark_line(strokeWidth=1.5, opacity=0.85),
        chart(projections).mark_rule(strokeWidth=4, opacity=0.5).encode(y2="high:Q"),
        chart(points).mark_point(filled=True, size=shape.point_size, opacity=1).encode(description="says:N"),
    ]
    # Vega measures the legend in its own font, and a reader's may be wider: 6 pixels a letter at this size, not 5.
    right = 4 + (round(1.3 * max(map(len, names))) if shape is WIDE else 0)
    return finish(alt.layer(*layers), shape, width=shape.width - (250 if shape is WIDE else 0), right=right)


def _names(fits: Sequence[ScalingFit]) -> list[str]:
    """The families as the legend names them: with their rank if they have one, by the end of a long name, and never two alike."""
    names: list[str] = []
    for fit in fits:
        rank = "" if fit.rank is None else f"{fit.rank}  "
        name = f"{rank}{wording.short_name(wording.clean(fit.family, 120), 32)}"
        names.append(name if name not in names else f"{name} ({len(names)})")
    return names
