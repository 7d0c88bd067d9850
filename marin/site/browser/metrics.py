"""A run's `metrics.jsonl` as series of figures, read on while it grows.

What was read is kept, and only what was appended since is read at the next look; a line without an end is left for then.
Steps that a killed process took beyond its last checkpoint are dropped where a later start supersedes them, as
`marin.tracking.run_record` does. Values are kept as numbers, eight bytes each, so a million steps take tens of MB.
"""

import array
import collections
import dataclasses
import json
import math
import os
import threading
from typing import Any

from starlette.exceptions import HTTPException

from marin.site.browser import roots
from marin.site.browser.roots import Place
from marin.tracking.run_record import METRICS_FILE

_BLOCK = 1 << 20
_MOST_SERIES = 60
_KEPT_RUNS = 16
_NO_SERIES = ("event", "time", "step", "tokens")


@dataclasses.dataclass
class Series:
    """One figure over the steps."""

    steps: "array.array[float]" = dataclasses.field(default_factory=lambda: array.array("d"))
    values: "array.array[float]" = dataclasses.field(default_factory=lambda: array.array("d"))

    def cut(self, first: float) -> None:
        """Drops what was measured at `first` or later."""
        keep = len(self.steps)
        while keep and self.steps[keep - 1] >= first:
            keep -= 1
        del self.steps[keep:], self.values[keep:]


@dataclasses.dataclass
class Run:
    """What was read of one file so far."""

    key: tuple[int, int] = (0, 0)
    offset: int = 0
    bad_lines: int = 0
    series: dict[str, Series] = dataclasses.field(default_factory=dict)
    evaluations: dict[str, Series] = dataclasses.field(default_factory=dict)
    last_step: int | None = None
    started: float | None = None
    tokens: float = 0.0
    tokens_at: Series = dataclasses.field(default_factory=Series)
    restarts: int = 0
    ended: bool = False
    too_many: bool = False


_runs: "collections.OrderedDict[str, Run]" = collections.OrderedDict()
_lock = threading.Lock()


def read_run(place: Place) -> Run | None:
    """The run whose output directory is `place`; None if it has no metrics."""
    try:
        file_place = roots.resolve(place.root, (*place.parts, METRICS_FILE))
        file = roots.open_file(file_place)
    except HTTPException:
        return None
    with file, _lock:
        found = os.fstat(file.fileno())
        key = (found.st_dev, found.st_ino)
        run = _runs.get(file_place.real)
        if run is None or run.key != key or found.st_size < run.offset:
            run = _runs[file_place.real] = Run(key)
        _runs.move_to_end(file_place.real)
        while len(_runs) > _KEPT_RUNS:
            _runs.popitem(last=False)
        file.seek(run.offset)
        carry = b""
        while block := file.read(_BLOCK):
            lines = (carry + block).split(b"\n")
            carry = lines.pop()
            for line in lines:
                run.offset += len(line) + 1
                _take(run, line)
            if len(carry) > _BLOCK:  # no line of ours is that long
                run.offset, carry, run.bad_lines = run.offset + len(carry), b"", run.bad_lines + 1
        # Drawing happens outside of the lock, beside the next reading.
        return dataclasses.replace(
            run,
            series={name: _copy(series) for name, series in run.series.items()},
            evaluations={name: _copy(series) for name, series in run.evaluations.items()},
        )


def _copy(series: Series) -> Series:
    return Series(series.steps[:], series.values[:])


def _take(run: Run, line: bytes) -> None:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        run.bad_lines += 1
        return
    event, when = entry.get("event"), _number(entry.get("time"))
    if when is not None:
        run.started = when if run.started is None else run.started
    if event == "start":
        first = _number(entry.get("from_step")) or 0.0
        run.restarts += 1
        run.ended = False
        for series in (*run.series.values(), *run.evaluations.values(), run.tokens_at):
            series.cut(first)
        run.tokens = sum(run.tokens_at.values)
    elif event == "step":
        _take_step(run, entry)
    elif event == "evaluation":
        step = _number(entry.get("step"))
        for name, value in _figures(entry):
            _append(run, run.evaluations, name, run.last_step or 0 if step is None else step, value)
    elif event == "end":
        run.ended = True


def _take_step(run: Run, entry: dict[str, Any]) -> None:
    step = _number(entry.get("step"))
    if step is None or not math.isfinite(step):
        run.bad_lines += 1
        return
    run.last_step = int(step)
    tokens, seconds = _number(entry.get("tokens")), _number(entry.get("step_time"))
    if tokens is not None:
        run.tokens += tokens
        run.tokens_at.steps.append(step)
        run.tokens_at.values.append(tokens)
    for name, value in _figures(entry):
        _append(run, run.series, name, step, value)
    if tokens is not None and seconds:
        _append(run, run.series, "tokens_per_second", step, tokens / seconds)


def _figures(entry: dict[str, Any]) -> list[tuple[str, float]]:
    found = []
    for name, value in entry.items():
        number = _number(value)
        if number is not None and name not in _NO_SERIES:
            found.append((name, number))
    return found


def _append(run: Run, into: dict[str, Series], name: str, step: float, value: float) -> None:
    if name not in into and len(into) >= _MOST_SERIES:
        run.too_many = True
        return
    series = into.setdefault(name, Series())
    series.steps.append(step)
    series.values.append(value)


def _number(value: object) -> float | None:
    """A number; NaN and infinities are written as strings."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
