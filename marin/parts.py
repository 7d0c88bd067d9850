"""Doing one thing for many keys with all processors: this process and its children take keys until none is left.

Children are forked, so that they have what the parent has read, and say what came of their part. Each copies the memory that it
touches, which is why there is one less of them than there are processors. Where forking is not possible (another system, threads
that run, few keys) the same work is done here, one key after the other; what comes of it is the same.
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

from marin.errors import StorageError
from marin.forks import fork_child, may_fork
from marin.hardware import num_processors

FEWEST = 1_000  # below, starting children takes longer than they save
_MOST_TAKES = 256  # of keys: more than that would gain nothing
_NUMBER_BYTES = 4


class Gathering(Protocol):
    """Holds what comes of the work, in a child for a part of the keys."""

    def begin_part(self) -> None:
        """From here on, `part` tells what came of the work in this process."""

    def part(self) -> Any:
        """That, to be pickled."""

    def adopt(self, part: Any) -> None:
        """Takes what came of it in another process."""


class WorkInParts:
    """Calls `work(key)` for every key, and `rest()`, with children where that pays; as a context, it ends with all of them done.

    What the body of the `with` does runs beside the children; after it this process helps with the keys. An error is raised at
    the end, as it was raised there.

    Args:
        gathering: what `work` and `rest` leave their results in.
    Raises:
        StorageError: at the end, if a child was killed.
    """

    def __init__(
        self,
        gathering: Gathering,
        keys: Sequence[str],
        work: Callable[[str], None],
        rest: Callable[[], None] | None = None,
    ) -> None:
        self._gathering, self._keys, self._work, self._rest = gathering, keys, work, rest
        self._children: list[tuple[Any, Any]] = []
        self._takes: _Takes | None = None

    def __enter__(self) -> None:
        count = num_processors() if len(self._keys) >= FEWEST and may_fork() else 1
        if count == 1:
            for key in self._keys:
                self._work(key)
            if self._rest is not None:
                self._rest()
            return
        self._takes = _Takes(self._keys)
        for number in range(count - 1):
            self._children.append(fork_child(functools.partial(self._run_child, number == 0)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed: BaseException | None = None
        if kind is not None:
            for child, _ in self._children:
                child.terminate()
        elif self._takes is not None:
            failed = self._take_part(self._takes)
        for child, pipe in self._children:
            try:
                done, problem = pipe.recv()
            except EOFError:
                done, problem = None, StorageError("a process that did a part of the work was killed: try again")
            child.join()
            if done is not None:
                self._gathering.adopt(done)
            failed = failed or problem
        if self._takes is not None:
            self._takes.close()
        if failed is not None and kind is None:
            raise failed

    def _take_part(self, takes: "_Takes", begin: Callable[[], None] | None = None) -> Exception | None:
        """Works on keys until none is left, and returns the error that ended this early."""
        try:
            if begin is not None:
                begin()
            for key in takes:
                self._work(key)
        except Exception as error:
            return error
        return None

    def _run_child(self, is_first: bool, pipe: Any) -> None:
        assert self._takes is not None
        self._gathering.begin_part()
        problem = self._take_part(self._takes, self._rest if is_first else None)
        pipe.send((self._gathering.part(), problem))


class _Takes:
    """Keys that several processes take from, some at a time, each key once.

    What is left to take are numbers in a pipe, of which a read takes one whole: no lock is held when a process is killed.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys, self._count = keys, min(len(keys), _MOST_TAKES)
        self._left, into = os.pipe()
        os.write(into, b"".join(number.to_bytes(_NUMBER_BYTES, "little") for number in range(self._count)))
        os.close(into)

    def __iter__(self) -> Iterator[str]:
        while number := os.read(self._left, _NUMBER_BYTES):
            yield from self._keys[int.from_bytes(number, "little") :: self._count]

    def close(self) -> None:
        os.close(self._left)
