"""Items made ahead in a thread, a bounded number of them, so that who takes them seldom waits; how long is measured.

The thread makes item 0, 1, ... in order and stops ahead of the taker by `depth` items. An error while making item k is
raised when item k is taken, after all items before it. Leaving the `with` block stops the thread: at once where it waits,
else when the item in the making is done.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
# How long a full queue keeps the thread from seeing that it should stop.
_POLL = 0.05


class Taken(NamedTuple, Generic[T]):
    """An item, and the seconds that taking it had to wait."""

    item: T
    waited: float


class _Failed(NamedTuple):
    error: BaseException


class Prefetcher(Generic[T]):
    """`make(key)` for each of `keys`, in order, at most `depth` ahead. A context manager.

    Args:
        make: called in the thread, one call at a time.
        depth: items that are finished and not yet taken; memory is bounded by one more.
    """

    def __init__(self, make: Callable[[int], T], keys: Iterable[int], depth: int = 2):
        assert depth >= 1
        self._make, self._keys = make, keys
        self._queue: queue.Queue[T | _Failed] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetcher[T]":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        # A second Ctrl-C must not wait for an item that never comes; the thread is a daemon.
        self._thread.join(None if kind is None else 1.0)

    def take(self) -> Taken[T]:
        """The next item, when it is there. Ctrl-C interrupts the waiting.

        Raises:
            what `make` raised for this item.
        """
        begin = time.perf_counter()
        item = self._queue.get()
        waited = time.perf_counter() - begin
        if isinstance(item, _Failed):
            raise item.error
        return Taken(item, waited)

    def _run(self) -> None:
        for key in self._keys:
            made: T | _Failed
            try:
                made = self._make(key)
            except BaseException as error:  # goes to the taker
                made = _Failed(error)
            if not self._offer(made) or isinstance(made, _Failed):
                return

    def _offer(self, item: T | _Failed) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_POLL)
                return True
            except queue.Full:
                continue
        return False
