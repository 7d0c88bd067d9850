"""The Pareto chart: cost against bits per byte, drawn by Altair and turned into SVG while the site is built.

Each chart exists in a light and a dark scheme and in a wide and a narrow shape. The page shows it as an image, so that
nothing in it can run, and it needs no script. Both axes are logarithmic: the relation is close to a power law there.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marin.site import wording
from marin.speedrun.rows import Row

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_QUALITY_TICKS = (
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
    1.1,
    1.2,
    1.3,
    1.4,
    1.6,
    1.8,
    2.0,
    2.5,
    3.0,
    4.0,
    5.0,
    6.0,
    8.0,
)
_LABEL_SIZE = 11
_CHARACTER_WIDTH = 0.56 * _LABEL_SIZE  # of sans-serif fonts on the average; only collisions depend on it


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Colours of one colour scheme; text has a contrast of at least 4.5 on the page's background."""

    name: str
    text: str
    muted: str
    grid: str
    point: str
    accent: str
    held: str
    halo: str


_Box = tuple[float, float, float, float]  # left, top, right, bottom

LIGHT = Scheme("light", "#1c2126", "#59636e", "#e4e7eb", "#6b7a8a", "#0a58ca", "#b3382c", "#ffffff")
DARK = Scheme("dark", "#e6eaee", "#9aa6b2", "#2a323b", "#8b9aaa", "#7ab8ff", "#ff9b8c", "#161b21")


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    width: int
    height: int
    max_labels: int
    label_distances: tuple[int, ...]


WIDE = Shape("wide", 1010, 440, 30, (9, 16, 26, 38))
NARROW = Shape("narrow", 290, 300, 3, (9, 14))


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The mapping from (cost, bits per byte) to pixels, y downwards, which the label placement shares with the chart."""

    shape: Shape
    cost: tuple[float, float]
    quality: tuple[float, float]

    def pixels(self, cost: float, quality: float) -> tuple[float, float]:
        x = math.log(cost / self.cost[0]) / math.log(self.cost[1] / self.cost[0])
        y = math.log(quality / self.quality[0]) / math.log(self.quality[1] / self.quality[0])
        return x * self.shape.width, (1 - y) * self.shape.height

    def values(self, x: float, y: float) -> tuple[float, float]:
        cost = self.cost[0] * (self.cost[1] / self.cost[0]) ** (x / self.shape.width)
        quality = self.quality[0] * (self.quality[1] / self.quality[0]) ** (1 - y / self.shape.height)
        return cost, quality


@dataclasses.dataclass(frozen=True)
class _Label:
    text: str
    align: str  # the end of the text that is nearest to its point: "right" or "left"
    point: tuple[float, float]  # in pixels, as all that follows
    end: tuple[float, float]
    box: _Box


def plottable(rows: Sequence[Row]) -> list[Row]:
    """Rows with both coordinates on a logarithmic axis."""
    return [
        row for row in rows
        if row.bits_per_byte is not None and row.training_hardware_flops is not None
        and row.bits_per_byte > 0 and row.training_hardware_flops > 0
    ]  # fmt: skip


def describe(rows: Sequence[Row]) -> str:
    """The chart in words, for those who cannot see it."""
    points = plottable(rows)
    frontier = sorted((row for row in points if row.on_frontier), key=lambda row: row.training_hardware_flops or 0)
    text = (
        f"Scatter chart of hardware FLOPs against bits per byte for {len(points)} run{'s' if len(points) != 1 else ''}."
    )
    if not frontier:
        return text
    ends = [frontier[0]] if len(frontier) == 1 else [frontier[0], frontier[-1]]
    named = " to ".join(
        f"{wording.clean(row.run_name, 80)} ({wording.bits(row.bits_per_byte)} bits per byte for "
        f"{wording.flops(row.training_hardware_flops)} FLOPs)"
        for row in ends
    )
    reach = f"; it reaches from {named}" if len(ends) > 1 else f": {named}"
    return f"{text} {len(frontier)} on the Pareto frontier{reach}. The table below has every value."


def render(rows: Sequence[Row], scheme: Scheme, shape: Shape, references: Mapping[str, float] | None = None) -> str:
    """The chart as SVG text; `references` are named levels of bits per byte, such as what a compressor needs."""
    import vl_convert

    specification = _specification(plottable(rows), scheme, shape, dict(references or {}))
    return str(vl_convert.vegalite_to_svg(specification))


def _specification(rows: list[Row], scheme: Scheme, shape: Shape, references: dict[str, float]) -> dict[str, Any]:
    import altair as alt

    frame = _frame(rows, shape, references)
    frontier = sorted((row for row in rows if row.on_frontier), key=lambda row: row.training_hardware_flops or 0)
    others = [row for row in rows if not row.on_frontier and row.counts]
    held = [row for row in rows if not row.counts]

    x = alt.X("x:Q", title="hardware FLOPs (log)", scale=alt.Scale(type="log", domain=list(frame.cost), nice=False),
              axis=_cost_axis(frame))  # fmt: skip
    y = alt.Y("y:Q", title="bits per byte (lower is better)",
              scale=alt.Scale(type="log", domain=list(frame.quality), nice=False),
              axis=alt.Axis(values=_ticks(frame), format="~g", labelOverlap=False))  # fmt: skip

    def chart(values: list[dict[str, Any]]) -> Any:
        return alt.Chart(alt.InlineData(values=values)).encode(x=x, y=y)

    def points(group: list[Row]) -> Any:
        return chart([{"x": row.training_hardware_flops, "y": row.bits_per_byte} for row in group])

    labels = _place_labels(frontier, rows, frame, references)
    layers = []
    above = -math.inf
    for name, level in sorted(references.items(), key=lambda item: -item[1]):
        height = frame.pixels(frame.cost[1], level)[1]
        below = height - above < 16  # the name over this line would run into the line over it
        above = height
        ends = [{"x": edge, "y": level} for edge in frame.cost]
        layers.append(chart(ends).mark_line(color=scheme.muted, strokeDash=[4, 4], strokeWidth=1, opacity=0.8))
        layers.append(
            chart([{"x": frame.cost[1], "y": level, "text": name}])
            .mark_text(align="right", baseline="top" if below else "bottom", dx=-4, dy=4 if below else -3)
            .encode(text="text:N", color=alt.value(scheme.muted), size=alt.value(_LABEL_SIZE))
        )
    size = 52 if shape is WIDE else 34
    layers += [
        points(others).mark_point(filled=True, size=size, color=scheme.point, opacity=0.5),
        points(held).mark_point(shape="cross", angle=45, filled=True, size=size, color=scheme.held, opacity=0.9),
        points(frontier).mark_line(interpolate="step-after", color=scheme.accent, strokeWidth=1.75, opacity=0.85),
        chart([_leader(label, frame) for label in labels])
        .mark_rule(color=scheme.muted, strokeWidth=0.75, opacity=0.7)
        .encode(x2="x2:Q", y2="y2:Q"),
        points(frontier).mark_point(
            filled=True, size=size + 16, color=scheme.accent, opacity=1, stroke=scheme.halo, strokeWidth=1
        ),
    ]
    for align in ("right", "left"):
        layers.append(
            chart([_text(label, frame) for label in labels if label.align == align])
            .mark_text(align=align, baseline="middle", color=scheme.text, fontSize=_LABEL_SIZE)
            .encode(text="text:N")
        )
    layered = alt.layer(*layers).properties(width=shape.width, height=shape.height, background="transparent", padding=4)
    return dict(
        layered.configure(font=_FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=scheme.muted, titleColor=scheme.text, gridColor=scheme.grid, domainColor=scheme.muted,
            tickColor=scheme.muted, labelFontSize=12, titleFontSize=12, titleFontWeight=500, titlePadding=10,
        )
        .to_dict()
    )  # fmt: skip


# --- axes ---------------------------------------------------------------------------------------------------------


def _frame(rows: list[Row], shape: Shape, references: dict[str, float]) -> _Frame:
    costs = [row.training_hardware_flops or 1.0 for row in rows] or [1e15]
    qualities = [row.bits_per_byte or 1.0 for row in rows] + list(references.values()) or [1.0]
    return _Frame(shape, _padded(costs, 1.8, 0.04), _padded(qualities, 1.06, 0.08))


def _padded(values: list[float], least: float, share: float) -> tuple[float, float]:
    low, high = math.log(min(values)), math.log(max(values))
    margin = max(math.log(least), share * (high - low))
    # Within floats, and away from their ends, where the axis could not be computed.
    return math.exp(max(low - margin, -650.0)), math.exp(min(high + margin, 690.0))


def _ticks(frame: _Frame) -> list[float]:
    low, high = frame.quality
    ticks: list[float] = []
    for tick in (tick for tick in _QUALITY_TICKS if low <= tick <= high):
        if not ticks or frame.pixels(frame.cost[0], ticks[-1])[1] - frame.pixels(frame.cost[0], tick)[1] >= 24:
            ticks.append(tick)
    if len(ticks) >= 3:
        return ticks
    step = 10 ** math.floor(math.log10((high - low) / 2)) or 1.0
    step *= max(1, round((high - low) / 5 / step))
    return [
        round(step * k, 9) for k in itertools.takewhile(lambda k: step * k <= high, range(math.ceil(low / step), 10**9))
    ]


def _cost_axis(frame: _Frame) -> Any:
    import altair as alt

    low, high = (math.log10(edge) for edge in frame.cost)
    decades = high - low
    mantissas = (
        (1,) if decades > 2.5 else (1, 3) if decades > 1.5 else (1, 2, 5) if decades > 0.9 else (1, 1.5, 2, 3, 4, 5, 7)
    )
    stride = max(1, math.ceil(decades / (frame.shape.width / 55)))
    exponents = range(math.floor(low), math.ceil(high) + 1, stride)
    ticks = [(float(f"{m}e{e}"), wording.power_of_ten(e, m)) for e in exponents for m in mantissas]
    shown = {f"{value!r}": text for value, text in ticks if frame.cost[0] <= value <= frame.cost[1]}
    # The names come from our own numbers, so they may stand in an expression.
    choose = "".join(f"datum.value == {value} ? '{text}' : " for value, text in shown.items())
    return alt.Axis(
        values=[float(value) for value in shown], labelExpr=f"{choose}''", labelOverlap=frame.shape is NARROW
    )


# --- labels -------------------------------------------------------------------------------------------------------


def _short_name(name: str, limit: int) -> str:
    """The last parts of a run's name, as many as fit: the last one is often no more than a size."""
    parts = wording.clean(name, 200).split("/")
    for keep in range(len(parts), 1, -1):
        text = "/".join(parts[-keep:])
        if len(text) <= limit:
            return text if keep == len(parts) else f"…/{text}"
    text = "/".join(parts[-2:]) if len(parts) > 1 else parts[0]
    return text if len(text) <= limit else f"…{text[-(limit - 1) :]}"


def _place_labels(frontier: list[Row], rows: list[Row], frame: _Frame, references: dict[str, float]) -> list[_Label]:
    """Names of frontier points where they fit: below and to the left, where by definition no point is, or to the right.

    The ends come first, then the others in turns over the whole range, so that the names spread. A name without room is
    left out: the table has it.
    """
    taken = [_around(*_position(row, frame), 5) for row in rows]
    for name, level in references.items():
        x, y = frame.pixels(frame.cost[1], level)
        taken.append((x - _CHARACTER_WIDTH * len(name) - 8, y - 16, x, y))
    for row, after in itertools.pairwise(frontier):
        (x, y), (x2, y2) = _position(row, frame), _position(after, frame)
        taken += [(x + 6, y - 1, x2, y + 1), (x2 - 1, y, x2 + 1, y2 - 6)]
    labels: list[_Label] = []
    for row in _spread(frontier):
        label = _fit(row, frame, taken) if len(labels) < frame.shape.max_labels else None
        if label is not None:
            labels.append(label)
            taken += [label.box, *_along(label)]
    return labels


def _spread(rows: list[Row]) -> list[Row]:
    order = [rows[-1], rows[0]] if len(rows) > 1 else list(rows)
    stride = max(1, len(rows) // 2)
    while len(order) < len(rows):
        order += [row for row in rows[stride::stride] if all(row is not other for other in order)]
        stride = max(1, stride // 2)
    return order


def _fit(row: Row, frame: _Frame, taken: list[_Box]) -> _Label | None:
    x, y = _position(row, frame)
    text = _short_name(row.run_name, 34 if frame.shape is WIDE else 24)
    width = _CHARACTER_WIDTH * len(text)
    for distance, drop in itertools.product(frame.shape.label_distances, (0.5, 1.0, 1.6)):
        for align in ("right", "left"):
            end = (x - distance, y + distance * drop) if align == "right" else (x + distance, y + distance * drop)
            left = end[0] - width if align == "right" else end[0]
            label = _Label(text, align, (x, y), end, (left - 5, end[1] - 8, left + width + 5, end[1] + 8))
            inside = left >= 0 and left + width <= frame.shape.width and label.box[3] <= frame.shape.height
            if inside and not any(_overlap(box, other) for box in (label.box, *_along(label)) for other in taken):
                return label
    return None


def _along(label: _Label) -> list[_Box]:
    """Small boxes along the line from a label to its point, past the point's own mark."""
    (x, y), (x2, y2) = label.point, label.end
    steps = range(1, max(2, int(abs(x2 - x) / 4)))
    boxes = [_around(x + (x2 - x) * k / steps.stop, y + (y2 - y) * k / steps.stop, 1) for k in steps]
    return [box for box in boxes if not _overlap(box, _around(x, y, 6))]


def _position(row: Row, frame: _Frame) -> tuple[float, float]:
    return frame.pixels(row.training_hardware_flops or 1.0, row.bits_per_byte or 1.0)


def _around(x: float, y: float, radius: float) -> _Box:
    return x - radius, y - radius, x + radius, y + radius


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _text(label: _Label, frame: _Frame) -> dict[str, Any]:
    x, y = frame.values(*label.end)
    return {"x": x, "y": y, "text": label.text}


def _leader(label: _Label, frame: _Frame) -> dict[str, Any]:
    (x, y), (x2, y2) = (
        frame.values(*label.point),
        frame.values(label.end[0] + (2 if label.align == "right" else -2), label.end[1]),
    )
    return {"x": x, "y": y, "x2": x2, "y2": y2}
