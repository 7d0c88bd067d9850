"""The one clock of a run, and stopping it cleanly.

Training time is the wall time from the start of the first step to the end of the last, less pauses that are named and
logged. Waiting for data counts. Compilation happens before the clock starts.
"""

import collections
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

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
            seconds = time.perf_counter() - begin
            self._paused += seconds
            self._writer.append("pause", reason=reason, step=step, seconds=round(seconds, 6))


class StopRequest:
    """Catches Ctrl-C and SIGTERM while training, so that the step in progress ends and a checkpoint is saved.

    The first signal sets `requested`; Ctrl-C after it interrupts at once. Another SIGTERM does not, since schedulers send it
    again and to every process of a group, none of which means that the work is to be lost. On leaving, the first signal is
    delivered to the handler that stood before; where there was none, the program exits with 128 and the signal's number.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}
        self._signal: int | None = None

    @property
    def requested(self) -> bool:
        return self._signal is not None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # A shell's job in the background is not to end by the Ctrl-C that is meant for another.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._signal is not None and error is None:
            handler = self._previous[self._signal]
            if callable(handler):
                handler(self._signal, None)
            else:
                # In order, unlike the kernel's own way: what other processes wait for at this one's end still happens.
                raise SystemExit(128 + self._signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
