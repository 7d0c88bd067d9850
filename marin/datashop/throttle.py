"""How many requests are in flight: as many as asked for, fewer while the endpoint says that it is busy.

When it turns requests away, all wait as long as it asks, or a wait that doubles with each round, and only half as many go out
at once afterwards. Each answer then brings the number up again: by one for as many answers as are in flight. This is how TCP
finds its rate (additive increase, multiplicative decrease).
"""

import asyncio
import collections
import random
import time

from marin.data import retries

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_LONGEST_ASKED = 300.0  # a longer `Retry-After` is looked at again after this


def backoff(failures: int) -> float:
    """Seconds before the next try."""
    return retries.backoff(failures, _FIRST_WAIT, _LONGEST_WAIT)


class Throttle:
    """Places for requests; used from one event loop.

    Args:
        most: places while the endpoint keeps up.
    """

    def __init__(self, most: int):
        self._most = most
        self._places = float(most)
        self.in_flight = 0
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._not_before = 0.0
        self._rounds_busy = 0

    @property
    def places(self) -> int:
        return int(self._places)

    async def enter(self) -> None:
        """Waits for a place and takes it."""
        while True:
            pause = self._not_before - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause * random.uniform(1.0, 1.1))  # not all in the same instant
            elif self.in_flight < self.places:
                self.in_flight += 1
                return
            else:
                place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(place)
                await place

    def leave(self) -> None:
        """Gives a place back."""
        self.in_flight -= 1
        self._wake()

    def answered(self) -> None:
        """An answer came: the endpoint keeps up."""
        self._rounds_busy = 0
        self._places = min(self._places + 1 / self._places, float(self._most))

    def busy(self, wait: float | None) -> None:
        """The endpoint turned a request away, and asks to wait so many seconds, if it says so."""
        now = time.monotonic()
        if now >= self._not_before:  # the first of those that were in flight together
            self._rounds_busy += 1
            self._places = max(1.0, self._places / 2)
        # A wait of 0 is none: all would come back at once, and again.
        seconds = min(wait, _LONGEST_ASKED) if wait else backoff(self._rounds_busy)
        self._not_before = max(self._not_before, now + seconds)

    def _wake(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
