"""A run's curves, read from its `metrics.jsonl` and thinned to what a small picture can show.

The log was submitted, so it is data of a stranger: it is read line by line within fixed bounds, what is no number is left out,
and nothing in it names a file.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Sequence

from marin.site import wording
from marin.speedrun.board.rows import Row
from marin.tracking.run_record import METRICS_FILE

_MAX_BYTES = 64 << 20
_MAX_LINE = 1 << 20
_MAX_POINTS = 300
# About as wide as a column of curves, so that the text in a picture is as large as beside it.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 420, 180, 52, 26, 10, 12
_SHOWN = (("loss", "Training loss"), ("learning_rate", "Learning rate"), ("grad_norm", "Gradient norm"))


@dataclasses.dataclass(frozen=True)
class Tick:
    position: float
    text: str


@dataclasses.dataclass(frozen=True)
class Curve:
    """One picture: a line as the points of an SVG `polyline`, its ticks, and what it shows in words."""

    title: str
    series: tuple[tuple[int, float], ...]
    points: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    text: str
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    floor: int = _HEIGHT - _BOTTOM


def find_log(roots: Sequence[pathlib.Path], row: Row) -> pathlib.Path | None:
    """The log beside the results file that a row was read from, if there is one below the directories that were searched.

    Where several of them have results at the same place, it is the log that the row's results name by its digest.

    Args:
        roots: those directories, resolved.
    """
    number = row.run_name.rpartition("#")[2]
    index = int(number) - 1 if number.isascii() and number.isdigit() and 0 < len(number) < 7 else 0
    homes = roots if len(roots) < 2 else [base for base in roots if (base / row.source).is_file()]
    for base in homes:
        folder = os.path.dirname(os.path.join(base, row.source))
        for name in (os.path.join(folder, "logs", str(index), METRICS_FILE), os.path.join(folder, METRICS_FILE)):
            if os.path.isfile(name) and (path := pathlib.Path(name)).resolve().is_relative_to(base):
                if len(homes) == 1 or _digest(path) == row.log_digest:
                    return path
                break
    return None


def _digest(path: pathlib.Path) -> str | None:
    if path.stat().st_size > _MAX_BYTES:
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_curves(path: pathlib.Path) -> list[Curve]:
    """The curves of a log; [] where it has none that can be shown."""
    steps = _read_steps(path)
    curves = []
    for key, title in _SHOWN:
        series = [(step, values[key]) for step, values in sorted(steps.items()) if key in values]
        if len(series) > 1 and any(value != series[0][1] for _, value in series):
            curves.append(draw_curve(title, series))
    return curves


def _read_steps(path: pathlib.Path) -> dict[int, dict[str, float]]:
    """Values by step; a step that was done again after a kill counts as it was done last."""
    steps: dict[int, dict[str, float]] = {}
    if path.stat().st_size > _MAX_BYTES:
        return steps
    with path.open("rb") as log:
        while line := log.readline(_MAX_LINE):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(event, dict) or event.get("event") != "step":
                continue
            step = event.get("step")
            if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 53:
                found = {key: figure_of(event.get(key)) for key, _ in _SHOWN}
                steps[step] = {key: value for key, value in found.items() if value is not None}
    return steps


def figure_of(value: object) -> float | None:
    """A number of a log as one that can be drawn; None for anything else, such as the "nan" of a run that diverged."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e12:
        return None
    # What is too small for a picture is zero: a range of such figures has no ticks.
    return (float(value) if abs(value) > 1e-30 else 0.0) if math.isfinite(value) else None


def draw_curve(title: str, series: list[tuple[int, float]]) -> Curve:
    thinned = _thinned(series)
    first, last = thinned[0][0], thinned[-1][0]
    low, high = min(value for _, value in thinned), max(value for _, value in thinned)
    margin = 0.06 * (high - low)
    low, high = low - margin, high + margin

    def x(step: float) -> float:
        return round(_LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    x_ticks = [step for step in _nice(first, last, 5) if step == round(step)]  # steps are whole, however few there are
    y_ticks = _nice(low, high, 5)
    # Steps are counted, so they stand as they are; a stranger's log may say more than has room.
    steps = [f"{step:,.0f}" if last < 10**7 else wording.count(step) or "" for step in x_ticks]
    if len(set(steps)) < len(steps):
        steps = [f"{step:,.0f}" for step in x_ticks]
    levels = wording.tick_texts(y_ticks, lambda value, digits: f"{value:.{digits}g}")
    text = (
        f"{title} over {len(series)} steps: from {series[0][1]:.4g} at step {series[0][0]} to {series[-1][1]:.4g} at step "
        f"{series[-1][0]}, between {min(v for _, v in series):.4g} and {max(v for _, v in series):.4g}."
    )
    return Curve(
        title=title,
        series=tuple(thinned),
        points=" ".join(f"{x(step):g},{y(value):g}" for step, value in thinned),
        x_ticks=tuple(Tick(x(step), written) for step, written in zip(x_ticks, steps, strict=True)),
        y_ticks=tuple(Tick(y(value), written) for value, written in zip(y_ticks, levels, strict=True)),
        text=text,
    )


def _thinned(series: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `_MAX_POINTS` points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(series) <= _MAX_POINTS:
        return series
    stretch = math.ceil(2 * len(series) / _MAX_POINTS)
    kept = {series[0], series[-1]}
    for start in range(0, len(series), stretch):
        part = series[start : start + stretch]
        kept |= {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(kept)


def _nice(low: float, high: float, most: int) -> list[float]:
    """Round values between two bounds, at most `most` of them."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= rough)
    first = math.ceil(low / step)
    values = [round((first + k) * step, 12) for k in range(most + 2)]
    return [value for value in values if low <= value <= high]
