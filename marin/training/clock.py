"""The one clock of a run.

Training time is the wall time from the start of the first step to the end of the last, less pauses that are named and
logged. Waiting for data counts. Compilation happens before the clock starts.
"""

import collections
import contextlib
import time
from collections.abc import Iterator

from marin.tracking import RunWriter


class TrainingClock:
    """Laps between the ends of steps, less the pauses in between; their `total`, and the `recent` ones."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self._last = time.perf_counter()
        self._paused = 0.0
        self.total = 0.0
        self.recent: collections.deque[float] = collections.deque(maxlen=8)

    def start(self) -> None:
        """Starts the clock, and writes a line that says so, against which the first step can be checked."""
        self._writer.append("clock")
        self._last, self._paused = time.perf_counter(), 0.0

    def lap(self) -> float:
        """Seconds since the last lap (or `start`), less pauses."""
        end = time.perf_counter()
        seconds = end - self._last - self._paused
        self._last, self._paused = end, 0.0
        self.total += seconds
        self.recent.append(seconds)
        return seconds

    @contextlib.contextmanager
    def pause(self, reason: str, step: int) -> Iterator[None]:
        """Time that training does not count; written to the log under its reason."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.was_paused(reason, step, time.perf_counter() - begin)

    def was_paused(self, reason: str, step: int, seconds: float) -> None:
        """The same of time that is over, since the last lap."""
        self._paused += seconds
        self._writer.append("pause", reason=reason, step=step, seconds=round(seconds, 6))
