"""Series of figures as drawings: inline SVG with axes, made here, coloured by the style sheet.

The scale leaves out a few spikes, which would flatten everything else, and says so; figures that stay positive and span more
than one order of magnitude have a logarithmic scale. A long series is thinned to the extremes of each stretch.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence

import markupsafe

from marin.site import wording
from marin.site.browser import shown
from marin.site.browser.metrics import Run, Series

_MOST_POINTS = 400
_MOST_DRAWN = 20_000  # of a longer run the extremes of each stretch are kept
_WIDTH, _HEIGHT = 440, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 30
_FURTHEST, _NEAREST = 1e300, 1e-300  # from zero: beyond them ranges and marks of a scale are no finite numbers, or zero

_TITLES = {
    "loss": "Training loss, nats per token",
    "tokens_per_second": "Tokens per second",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
    "step_time": "Step time, seconds",
}


@dataclasses.dataclass(frozen=True)
class Chart:
    """A drawing with its words: `latest` is the last value, `table` some of the values for those who cannot see it."""

    title: str
    svg: markupsafe.Markup
    latest: str
    note: str
    table: tuple[tuple[str, str], ...]


def of_run(run: Run) -> tuple[list[Chart], list[Chart]]:
    """What to show at once, and what to fold away."""
    names = sorted(run.series, key=lambda name: (list(_TITLES).index(name) if name in _TITLES else len(_TITLES), name))
    main = [draw(_TITLES[name], run.series[name]) for name in names if name in _TITLES]
    shown_evaluations = [
        draw(f"{name}, evaluated", series, dots=True) for name, series in sorted(run.evaluations.items())
    ]
    other = [draw(name, run.series[name]) for name in names if name not in _TITLES]
    return main[:1] + shown_evaluations[:2] + main[1:], shown_evaluations[2:] + other


def draw(title: str, series: Series, dots: bool = False) -> Chart:
    """One figure over the steps: what was measured in a thin line, and its moving average in a strong one."""
    title = shown.name(title, 60)
    found = [(x, y) for x, y in zip(series.steps, series.values) if math.isfinite(y) and abs(x) <= _FURTHEST]
    lost = len(series.values) - len(found)
    measured = [(x, _drawable(y)) for x, y in found]
    points = thinned(measured, _MOST_DRAWN)
    if not points:
        return Chart(
            title, markupsafe.Markup(""), "—", f"{lost} values, none of them finite" if lost else "no values", ()
        )
    xs, ys = [x for x, _ in points], [y for _, y in points]
    smooth = _smooth(_averaged(measured, _MOST_DRAWN)) if _is_noisy(ys) and not dots else None
    is_log = _wants_log(ys)
    low, high = (min(ys), max(ys)) if is_log else _range(ys)
    outside = sum(y < low or y > high for _, y in measured)
    notes = ["logarithmic scale"] if is_log else []
    if lost:
        notes.append(f"{lost:,} value{'s' if lost != 1 else ''} not finite")
    if outside:
        notes.append(f"{outside:,} value{'s' if outside != 1 else ''} beyond the scale")
    y_ticks = log_ticks(low, high) if is_log else ticks(low, high, 5)
    x_ticks = [x for x in ticks(xs[0], xs[-1], 5) if x == int(x) and xs[0] <= x <= xs[-1]]
    low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])
    frame = _Frame(min(xs), max(xs), low, high, is_log)
    latest, values = shown.number(found[-1][1]), [y for _, y in found]
    label = f"{title}: {latest} at step {shown.number(xs[-1])}, lowest {shown.number(min(values))}, highest {shown.number(max(values))}"
    thin = thinned(list(zip(xs, ys)), _MOST_POINTS)
    body = [frame.axes(x_ticks, y_ticks)]
    body.append(frame.line(thin, "raw" if smooth else "line"))
    followed = thin
    if smooth:
        followed = _sampled(smooth, _MOST_POINTS)
        body.append(frame.line(followed, "line"))
    if dots or len(points) <= 30:
        body += [frame.dot(x, y) for x, y in thin[:_MOST_POINTS]]
    read = json.dumps(
        [[round(frame.x(x), 1), round(frame.y(y), 1), shown.number(x), shown.number(y)] for x, y in followed]
    )
    svg = markupsafe.Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" data-points="{}">{}</svg>'
    ).format(_WIDTH, _HEIGHT, label, read, markupsafe.Markup("").join(body))
    table = tuple((shown.number(x), shown.number(y)) for x, y in _sampled(points, 12))
    return Chart(title, svg, latest, "; ".join(notes), table)


def _drawable(value: float) -> float:
    return 0.0 if abs(value) < _NEAREST else min(max(value, -_FURTHEST), _FURTHEST)


class _Frame:
    """From values to places in the drawing."""

    def __init__(self, left: float, right: float, low: float, high: float, is_log: bool) -> None:
        self._left, self._right = left, right
        self._scale = math.log10 if is_log else float
        self._low, self._high = self._scale(low), self._scale(high)

    def x(self, value: float) -> float:
        span = self._right - self._left
        share = (value - self._left) / span if span else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        span = self._high - self._low
        share = (min(max(self._scale(value), self._low), self._high) - self._low) / span if span else 0.5
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def line(self, points: Sequence[tuple[float, float]], css: str) -> markupsafe.Markup:
        written = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return markupsafe.Markup('<polyline class="{}" points="{}"/>').format(css, written)

    def dot(self, x: float, y: float) -> markupsafe.Markup:
        return markupsafe.Markup('<circle class="dot" cx="{}" cy="{}" r="3"/>').format(
            f"{self.x(x):.1f}", f"{self.y(y):.1f}"
        )

    def axes(self, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> markupsafe.Markup:
        parts = []
        for value, written in zip(y_ticks, wording.tick_texts(y_ticks, _tick), strict=True):
            y = f"{self.y(value):.1f}"
            parts.append(
                markupsafe.Markup(
                    '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text class="tick end" x="{}" y="{}">{}</text>'
                ).format(_LEFT, _WIDTH - _RIGHT, y, y, _LEFT - 7, f"{self.y(value) + 4:.1f}", written)
            )
        for value, written in zip(x_ticks, wording.tick_texts(x_ticks, _tick), strict=True):
            parts.append(
                markupsafe.Markup('<text class="tick middle" x="{}" y="{}">{}</text>').format(
                    f"{min(max(self.x(value), _LEFT + 4), _WIDTH - 22):.1f}", _HEIGHT - 11, written
                )
            )
        base = _HEIGHT - _BOTTOM
        parts.append(
            markupsafe.Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
                _LEFT, _WIDTH - _RIGHT, base, base
            )
        )
        return markupsafe.Markup("").join(parts)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) that cover `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    if raw == 0 or not math.isfinite(raw):
        return [low, high]
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 times them where there are few, from below `low` to above `high`."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    stride = max(1, (last - first) // 6)
    marks = [factor * 10.0**power for power in range(first, last + 1, stride) for factor in factors]
    below = max((mark for mark in marks if mark <= low), default=marks[0])
    above = min((mark for mark in marks if mark >= high), default=marks[-1])
    return [mark for mark in marks if below <= mark <= above]


def _wants_log(values: Sequence[float]) -> bool:
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    # A rate that decays to zero is read on a plain scale: what matters is at its top, not at its end.
    return ordered[0] > 0 and ordered[-1 - len(ordered) // 100] > 12 * middle and middle < 10 * ordered[0]


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` points: the first, the last, and the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    kept = [points[0]]
    inner, stretches = points[1:-1], most // 2 - 1
    for index in range(stretches):
        part = inner[index * len(inner) // stretches : (index + 1) * len(inner) // stretches]
        low, high = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += [low, high] if low[0] <= high[0] else [high, low]
    return [*kept, points[-1]]


def _averaged(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` points: the last step and the mean of each stretch. Of its extremes no average could be made."""
    size = -(-len(points) // most)  # of each, as all must weigh the same
    parts = [points[first : first + size] for first in range(0, len(points), size)] if size > 1 else []
    return [(part[-1][0], math.fsum(y for _, y in part) / len(part)) for part in parts] or list(points)


def _sampled(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    if len(points) <= most:
        return list(points)
    return [points[index * (len(points) - 1) // (most - 1)] for index in range(most)]


def _is_noisy(values: Sequence[float]) -> bool:
    """Whether a moving average helps: a schedule, which goes up and down a few times at most, is drawn as it is."""
    moved = sum(abs(after - before) for before, after in itertools.pairwise(values))
    return len(values) > 60 and moved > 4 * (max(values) - min(values))


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """An exponential moving average over about a fiftieth of the run, without the usual pull towards its start."""
    keep = 1 - 2 / (max(8, len(points) // 50) + 1)
    total = weight = 0.0
    smooth = []
    for x, value in points:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smooth.append((x, total / weight))
    return smooth


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The scale: a few spikes must not flatten everything else."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    if len(ordered) >= 50:
        inner_low, inner_high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
        span = inner_high - inner_low
        if span > 0 and high - inner_high > 1.5 * span:
            high = inner_high + 0.25 * span
        if span > 0 and inner_low - low > 1.5 * span:
            low = inner_low - 0.25 * span
    if low == high:
        pad = abs(low) * 0.05 or 1.0
        return low - pad, high + pad
    return low, high


def _tick(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.{digits}g}{unit}"
    return f"{value:.{digits}g}"
