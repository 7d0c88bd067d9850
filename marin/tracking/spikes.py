"""When a loss is a spike: a robust rule over the losses before it.

A loss is usual while it is at most

    median + max(8 x 1.4826 x MAD, 0.05 x |median|)

over the last 128 losses, once 32 were seen. The median absolute deviation times 1.4826 estimates the standard deviation of
a normal distribution and is not moved by the spike itself; the second term keeps a loss that hardly varies from raising
alarms. A spike is told once, when it begins; it has ended when a loss is usual again, or when the losses of the spike have
become the window's median. While the loss falls, as early in training, the median lies above it and nothing is told.
"""

import collections
import math
import statistics

_WINDOW, _SEEN = 128, 32
_DEVIATIONS, _LEAST = 8.0, 0.05
_NORMAL = 1.4826


class SpikeWatch:
    """Takes the losses of a run in order."""

    def __init__(self) -> None:
        self._recent: collections.deque[float] = collections.deque(maxlen=_WINDOW)
        self._inside = False

    def begins(self, loss: float) -> dict[str, float] | None:
        """The usual loss and the limit, where a spike begins with this loss; else None."""
        if not math.isfinite(loss):
            return None
        found = None
        if len(self._recent) >= _SEEN:
            usual = statistics.median(self._recent)
            deviation = _NORMAL * statistics.median(abs(other - usual) for other in self._recent)
            limit = usual + max(_DEVIATIONS * deviation, _LEAST * abs(usual))
            if loss > limit and not self._inside:
                found = {"usual": usual, "limit": limit}
            self._inside = loss > limit
        self._recent.append(loss)
        return found
