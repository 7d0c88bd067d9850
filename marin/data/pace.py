"""How often long work says how far it is."""

import time


class Pace:
    """Says when a line is due, and how long the work has taken.

    Args:
        interval: seconds between two lines at least; the first comes after as many.
    """

    def __init__(self, interval: float = 2.0) -> None:
        self._interval = interval
        self._started = self._last_line = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the work began, more than 0."""
        return max(time.monotonic() - self._started, 1e-9)

    @property
    def has_spoken(self) -> bool:
        """Whether a line was due before."""
        return self._last_line > self._started

    def is_due(self) -> bool:
        """Whether it is time for a line, which then counts as printed."""
        now = time.monotonic()
        if now - self._last_line < self._interval:
            return False
        self._last_line = now
        return True
