"""How long a process compiles, where what it will compile is not known before its clock starts.

Samples have lengths of their own, so that programs for new ones are compiled in the middle of a run. JAX says when it has traced,
lowered or compiled one, and how long it took.
"""

import time
from types import TracebackType

import jax

_COMPILING = "/jax/core/compile/"


class Compiling:
    """Adds up, while it is open, the seconds in which some program is traced, lowered or compiled."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def __enter__(self) -> "Compiling":
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._hear)

    def take(self) -> float:
        """Seconds since the last `take`; what was at work within something else counts once."""
        spans, self._spans = sorted(self._spans), []
        total, reached = 0.0, float("-inf")
        for begin, end in spans:
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    def _hear(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith(_COMPILING):
            end = time.perf_counter()
            self._spans.append((end - duration_secs, end))
