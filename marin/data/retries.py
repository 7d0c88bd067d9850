"""When a request is worth another try, and how long after."""

import email.utils
import random
import time

_TRANSIENT = frozenset({408, 425, 429})
_NOT_ABLE = frozenset({501, 505})  # of all 5xx those that will be no other the next time


def may_pass(status: int) -> bool:
    """Whether a server that answers with this HTTP status may answer otherwise the next time."""
    return status in _TRANSIENT or (status >= 500 and status not in _NOT_ABLE)


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds before the next try: half of the doubled wait is certain, half is chance, so that clients spread."""
    whole = min(longest, first * 2 ** (min(failures, 20) - 1))
    return whole / 2 + random.uniform(0, whole / 2)


def retry_after(value: str | None) -> float | None:
    """The seconds that a `Retry-After` asks to wait: a number, or a date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None
