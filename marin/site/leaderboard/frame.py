"""The mapping from figures to pixels that a chart and the placement of its labels share, and the ticks of its axes."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard.drawing import NARROW, Shape

_FIGURES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


@dataclasses.dataclass(frozen=True)
class Frame:
    """Both axes; y points downwards in pixels. The axis of the cost is logarithmic, that of the quality where asked for."""

    shape: Shape
    cost: tuple[float, float]
    quality: tuple[float, float]
    quality_is_logarithmic: bool = True

    def pixels(self, cost: float, quality: float) -> tuple[float, float]:
        x = math.log(cost / self.cost[0]) / math.log(self.cost[1] / self.cost[0])
        low, high = self.quality
        if self.quality_is_logarithmic:
            y = math.log(quality / low) / math.log(high / low)
        else:
            y = (quality - low) / (high - low)
        return x * self.shape.width, (1 - y) * self.shape.height

    def values(self, x: float, y: float) -> tuple[float, float]:
        cost = self.cost[0] * (self.cost[1] / self.cost[0]) ** (x / self.shape.width)
        low, high = self.quality
        share = 1 - y / self.shape.height
        quality = low * (high / low) ** share if self.quality_is_logarithmic else low + (high - low) * share
        return cost, quality


def make_frame(shape: Shape, costs: Sequence[float], qualities: Sequence[float], *, logarithmic: bool) -> Frame:
    """A frame around the values, with room at the edges."""
    cost = _padded(costs or [1e15], 1.5, 0.04)
    if logarithmic:
        return Frame(shape, cost, _padded(qualities or [1.0], 1.06, 0.08))
    low, high = (min(qualities), max(qualities)) if qualities else (0.0, 1.0)
    # Room below and above, also for one value alone and for values so large that a fixed margin would vanish.
    margin = max(0.12 * (high - low), 0.02 * max(abs(low), abs(high)), 1e-9)
    return Frame(shape, cost, (low - margin, high + margin), quality_is_logarithmic=False)


def _padded(values: Sequence[float], least: float, share: float) -> tuple[float, float]:
    low, high = math.log(min(values)), math.log(max(values))
    margin = max(math.log(least), share * (high - low))
    # Within floats, and away from their ends, where the axis could not be computed.
    return math.exp(max(low - margin, -650.0)), math.exp(min(high + margin, 690.0))


def quality_axis(frame: Frame) -> Any:
    import altair as alt

    return alt.Axis(values=_ticks(frame), format="~g", labelOverlap=False)


def _ticks(frame: Frame) -> list[float]:
    low, high = frame.quality
    ticks: list[float] = []
    if frame.quality_is_logarithmic:
        for tick in (tick for tick in _FIGURES if low <= tick <= high):
            if not ticks or frame.pixels(frame.cost[0], ticks[-1])[1] - frame.pixels(frame.cost[0], tick)[1] >= 24:
                ticks.append(tick)
    if len(ticks) >= 3:
        return ticks
    step = 10 ** math.floor(math.log10((high - low) / 2)) or 1.0
    step *= max(1, round((high - low) / 5 / step))
    first = math.ceil(low / step)
    inside = itertools.takewhile(lambda k: step * k <= high, range(first, first + 50))
    return [round(step * k, 9) for k in inside]


_TIMES = (
    (1, "1 s"), (10, "10 s"), (30, "30 s"), (60, "1 min"), (120, "2 min"), (300, "5 min"), (600, "10 min"), (1200, "20 min"),
    (1800, "30 min"), (3600, "1 h"), (7200, "2 h"), (4 * 3600, "4 h"), (8 * 3600, "8 h"), (16 * 3600, "16 h"), (86400, "1 d"),
    (2 * 86400, "2 d"), (4 * 86400, "4 d"), (8 * 86400, "8 d"), (16 * 86400, "16 d"), (32 * 86400, "32 d"),
)  # fmt: skip


def cost_axis(frame: Frame, unit: str) -> Any:
    """An axis with named ticks; `unit` is "seconds", "hours" or anything else, which is written in powers of ten."""
    import altair as alt

    ticks = _time_ticks(frame, unit) if unit in ("seconds", "hours") else _power_ticks(frame)
    if len(ticks) < 2:
        ticks = _power_ticks(frame)
    # The names come from our own numbers, so they may stand in an expression.
    choose = "".join(f"datum.value == {value!r} ? '{text}' : " for value, text in ticks)
    return alt.Axis(values=[value for value, _ in ticks], labelExpr=f"{choose}''", labelOverlap=frame.shape is NARROW)


def _time_ticks(frame: Frame, unit: str) -> list[tuple[float, str]]:
    low, high = frame.cost
    named = [(float(value), text) for value, text in _TIMES if low <= value <= high]
    if len(named) > 2:
        return named
    size, name = (3600, "h") if unit == "hours" or high >= 7200 else (60, "min") if high >= 120 else (1, "s")
    most = 4 if frame.shape is NARROW else 8
    power = 10.0 ** math.floor(math.log10((high - low) / size / most))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / size <= most * factor * power)
    values = [round(k * step, 10) for k in range(math.ceil(low / size / step), math.floor(high / size / step) + 1)]
    return [(value * size, f"{value:g} {name}") for value in values]


def _power_ticks(frame: Frame) -> list[tuple[float, str]]:
    low, high = (math.log10(edge) for edge in frame.cost)
    decades = high - low
    mantissas: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 7)
    for least, fewer in ((0.9, (1, 2, 5)), (1.5, (1, 3)), (2.5, (1,))):
        if decades > least:
            mantissas = fewer
    stride = max(1, math.ceil(decades / (frame.shape.width / 55)))
    exponents = range(math.floor(low), math.ceil(high) + 1, stride)
    ticks = [(float(f"{m}e{e}"), wording.power_of_ten(e, m)) for e in exponents for m in mantissas]
    return [(value, text) for value, text in ticks if frame.cost[0] <= value <= frame.cost[1]]
