"""The Pareto chart of a track: cost against quality, the frontier, and the frontiers of earlier days behind it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from marin.site import wording
from marin.site.leaderboard import labels
from marin.site.leaderboard.drawing import CHARACTER_WIDTH, LABEL_SIZE, LIGHT, Shape, finish, in_every_shape
from marin.site.leaderboard.frame import Frame, cost_axis, make_frame, quality_axis
from marin.site.leaderboard.measures import Measure
from marin.speedrun.board.pareto import frontier_history

_EARLIER_FRONTIERS = 5
_CELL = 3.5  # pixels: points that are nearer than this are drawn once


@dataclasses.dataclass(frozen=True)
class Point:
    """An entry on the chart; `state` is "frontier", "other" or "held"."""

    name: str
    cost: float
    quality: float
    date: str | None
    state: str


@dataclasses.dataclass(frozen=True)
class Axes:
    """What the two axes show."""

    cost: Measure
    quality: Measure
    gate: float | None = None  # a level of the quality that every entry must reach


def draw(points: Sequence[Point], axes: Axes, references: Mapping[str, float] | None = None) -> dict[str, str]:
    """SVG text by shape and scheme, such as "wide-light"; `references` are named levels of quality, such as a compressor's."""
    earlier = [line for _, line in earlier_frontiers(points, axes.quality)]
    return in_every_shape(lambda shape: _specification(points, axes, shape, dict(references or {}), earlier))


def describe(points: Sequence[Point], axes: Axes) -> str:
    """The chart in words, for those who cannot see it."""
    frontier = _frontier(points)
    text = (
        f"Scatter chart of {axes.cost.title.lower()} against {axes.quality.title.lower()} for {len(points)} "
        f"{'entry' if len(points) == 1 else 'entries'}."
    )
    if not frontier:
        return text
    ends = [frontier[0]] if len(frontier) == 1 else [frontier[0], frontier[-1]]
    named = " to ".join(
        f"{wording.clean(one.name, 80)} ({axes.quality.text(one.quality)} for {axes.cost.text(one.cost)})"
        for one in ends
    )
    reach = f"; it reaches from {named}" if len(ends) > 1 else f": {named}"
    return f"{text} {len(frontier)} on the Pareto frontier{reach}. The table below has every value."


def earlier_frontiers(points: Sequence[Point], quality: Measure) -> list[tuple[str, list[Point]]]:
    """The frontier as it was on up to five earlier days on which it changed, oldest first, the present one left out."""
    sign = -1.0 if quality.higher_is_better else 1.0
    dated = [one for one in points if one.date is not None and one.state != "held"]
    history = frontier_history([
        ((one.date or "")[:10], str(number), one.cost, sign * one.quality) for number, one in enumerate(dated)
    ])  # fmt: skip
    changes: list[tuple[str, list[Point]]] = []
    last: list[tuple[float, float]] = []
    for change in history:
        corners = {(one.cost, one.quality): one for one in (dated[int(number)] for number in change.members)}
        if list(corners) != last:  # who joins an equal point changes nothing that is drawn
            changes.append((change.date, list(corners.values())))
            last = list(corners)
    before = changes[:-1]
    if len(before) <= _EARLIER_FRONTIERS:
        return before
    end = len(before) - 1
    return [before[round(k * end / (_EARLIER_FRONTIERS - 1))] for k in range(_EARLIER_FRONTIERS)]


def _frontier(points: Sequence[Point]) -> list[Point]:
    return sorted((one for one in points if one.state == "frontier"), key=lambda one: one.cost)


def _specification(
    points: Sequence[Point], axes: Axes, shape: Shape, references: dict[str, float], earlier: Sequence[Sequence[Point]]
) -> dict[str, Any]:
    import altair as alt

    scheme = LIGHT
    levels = references | ({} if axes.gate is None else {f"gate {axes.gate:g}": axes.gate})
    logarithmic = axes.quality.logarithmic and all(one.quality > 0 for one in points)
    points = _within_reach(points, logarithmic)
    frame = make_frame(
        shape, [one.cost for one in points], [one.quality for one in points] + list(levels.values()), logarithmic=logarithmic
    )  # fmt: skip
    frontier = _frontier(points)
    kind: Literal["log", "linear"] = "log" if frame.quality_is_logarithmic else "linear"
    x = alt.X("x:Q", title=f"{axes.cost.title} (log)", scale=alt.Scale(type="log", domain=list(frame.cost), nice=False),
              axis=cost_axis(frame, axes.cost.unit))  # fmt: skip
    y = alt.Y("y:Q", title=axes.quality.axis_title, scale=alt.Scale(type=kind, domain=list(frame.quality), nice=False),
              axis=quality_axis(frame))  # fmt: skip

    # Rows stay out of what Altair copies and checks at each of its steps, which takes a multiple of the drawing for thousands of them.
    tables: dict[str, list[dict[str, Any]]] = {}

    def chart(values: list[dict[str, Any]]) -> Any:
        name = f"rows-{len(tables)}"
        tables[name] = values
        return alt.Chart(alt.NamedData(name=name))

    def marks(group: Sequence[Point]) -> Any:
        return chart([{"x": one.cost, "y": one.quality} for one in group])

    def line(group: Sequence[Point], colour: str, width: float) -> Any:
        return marks(group).mark_line(interpolate="step-after", color=colour, strokeWidth=width, opacity=0.9)

    named = [labels.Named(one.name, *frame.pixels(one.cost, one.quality)) for one in frontier]
    shown = {state: _thinned([one for one in points if one.state == state], frame) for state in ("other", "held")}
    positions = _near(
        named, [frame.pixels(one.cost, one.quality) for one in (*shown["other"], *shown["held"], *frontier)]
    )
    placed = labels.place(named, positions, _reference_boxes(levels, frame), frame)
    layers = _reference_layers(levels, frame, chart)
    layers += [line(group, scheme.earlier, 1) for group in earlier]
    layers += [
        marks(shown["other"]).mark_point(filled=True, size=shape.point_size, color=scheme.point, opacity=0.5),
        marks(shown["held"]).mark_point(shape="cross", angle=45, filled=True, size=shape.point_size, color=scheme.held),
        line(frontier, scheme.accent, 1.75),
        chart([_leader(label, frame) for label in placed])
        .mark_rule(color=scheme.muted, strokeWidth=0.75, opacity=0.7)
        .encode(x2="x2:Q", y2="y2:Q"),
        marks(frontier).mark_point(
            filled=True, size=shape.point_size + 16, color=scheme.accent, opacity=1, stroke=scheme.halo, strokeWidth=1
        ),
    ]
    for align in ("right", "left"):
        layers.append(
            chart([_text(label, frame) for label in placed if label.align == align])
            .mark_text(align=align, baseline="middle", color=scheme.text, fontSize=LABEL_SIZE)
            .encode(text="text:N")
        )
    made = finish(alt.layer(*layers).encode(x=x, y=y), shape)
    # Nothing of it is said point by point: to describe thousands of them takes as long as to draw them.
    return made | {"datasets": tables, "config": made["config"] | {"aria": False}}


def _within_reach(points: Sequence[Point], logarithmic: bool) -> Sequence[Point]:
    """Those without a rank no further from the others than a quarter of their span: no refuted figure may flatten the chart."""
    counted = [one for one in points if one.state != "held"]
    if not counted:
        return points
    costs = _reach([one.cost for one in counted], True)
    qualities = _reach([one.quality for one in counted], logarithmic)
    return [
        one
        if one.state != "held"
        else dataclasses.replace(one, cost=_clamped(one.cost, costs), quality=_clamped(one.quality, qualities))
        for one in points
    ]


def _reach(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """`reachOf` of static/chart.js."""
    low, high = min(values), max(values)
    if not logarithmic:
        room = max((high - low) / 4, 0.05 * abs(high))
        return low - room, high + room
    room = max(math.log(high / low) / 4, 0.1)
    return low / math.exp(room), high * math.exp(room)


def _clamped(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


def _near(named: Sequence[labels.Named], positions: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that a label of the frontier could meet, which are few where the points are many."""
    if len(positions) < 300:
        return list(positions)
    cells = {(int(one.x // 40) + i, int(one.y // 40) + j) for one in named for i in range(-6, 7) for j in (-1, 0, 1)}
    return [(x, y) for x, y in positions if (int(x // 40), int(y // 40)) in cells]


def _thinned(points: Sequence[Point], frame: Frame) -> list[Point]:
    """One of all points that lie on the same spot, so that ten thousand entries do not make a picture of megabytes."""
    spots: dict[tuple[int, int], Point] = {}
    for one in points:
        x, y = frame.pixels(one.cost, one.quality)
        spots.setdefault((round(x / _CELL), round(y / _CELL)), one)
    return list(spots.values())


def _reference_boxes(levels: Mapping[str, float], frame: Frame) -> list[labels.Box]:
    boxes = []
    for name, level in levels.items():
        x, y = frame.pixels(frame.cost[1], level)
        boxes.append((x - CHARACTER_WIDTH * len(name) - 8, y - 16, x, y))
    return boxes


def _reference_layers(levels: Mapping[str, float], frame: Frame, chart: Any) -> list[Any]:
    import altair as alt

    layers = []
    above = -math.inf
    for name, level in sorted(levels.items(), key=lambda item: -item[1]):
        height = frame.pixels(frame.cost[1], level)[1]
        below = height - above < 16  # the name over this line would run into the line over it
        above = height
        ends = [{"x": edge, "y": level} for edge in frame.cost]
        layers.append(chart(ends).mark_line(color=LIGHT.muted, strokeDash=[4, 4], strokeWidth=1, opacity=0.8))
        layers.append(
            chart([{"x": frame.cost[1], "y": level, "text": name}])
            .mark_text(align="right", baseline="top" if below else "bottom", dx=-4, dy=4 if below else -3)
            .encode(text="text:N", color=alt.value(LIGHT.muted), size=alt.value(LABEL_SIZE))
        )
    return layers


def _text(label: labels.Label, frame: Frame) -> dict[str, Any]:
    x, y = frame.values(*label.end)
    return {"x": x, "y": y, "text": label.text}


def _leader(label: labels.Label, frame: Frame) -> dict[str, Any]:
    nearer = label.end[0] + (2 if label.align == "right" else -2)
    (x, y), (x2, y2) = frame.values(*label.point), frame.values(nearer, label.end[1])
    return {"x": x, "y": y, "x2": x2, "y2": y2}
