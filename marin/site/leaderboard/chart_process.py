"""Charts drawn beside everything else: by a child that starts Altair and V8 while the board is still being read.

Starting the two takes most of the time that a chart takes, and what a page needs of a chart is the names of its files only. Where
no child is possible a chart is drawn when it is asked for; the files are the same.
"""

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from marin.errors import StorageError
from marin.forks import fork_child, may_fork
from marin.hardware import num_processors
from marin.site.leaderboard import drawing

Drawing = Mapping[str, str]  # SVG text by shape and scheme, such as "wide-light"


class ChartProcess:
    """Draws what it is asked for: in the child that it has as a context, else at once.

    Raises:
        StorageError: by `ask` or `close`, if the child was killed.
    """

    def __init__(self) -> None:
        self._child: Any = None
        self._pipe: Any = None
        self._waiting: list[Callable[[Drawing], None]] = []

    def __enter__(self) -> "ChartProcess":
        if num_processors() > 1 and may_fork():
            self._child, self._pipe = fork_child(_serve)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.join()

    def ask(self, then: Callable[[Drawing], None], draw: Callable[..., Drawing], *arguments: Any) -> None:
        """Has `then` called with what `draw(*arguments)` returns: now, or by `close`."""
        if self._pipe is None:
            then(draw(*arguments))
            return
        self._waiting.append(then)
        try:
            self._pipe.send((draw, arguments))
        except OSError:
            raise _killed() from None

    def close(self) -> None:
        """Waits for what was asked for. The child sends nothing before, so that the two never wait for each other."""
        if self._waiting:
            try:
                self._pipe.send(None)
                for then in self._waiting:
                    drawn, problem = self._pipe.recv()
                    if problem is not None:
                        raise problem
                    then(drawn)
            except (EOFError, ConnectionError):
                raise _killed() from None
            self._waiting = []


def _killed() -> StorageError:
    return StorageError("the process that drew the charts was killed: try again")


def _serve(pipe: Any) -> None:
    with contextlib.suppress(Exception):  # what fails here fails again where a chart is drawn, and is told there
        drawing.start()
    drawn: list[tuple[Drawing | None, Exception | None]] = []
    while (asked := pipe.recv()) is not None:
        draw, arguments = asked
        try:
            drawn.append((draw(*arguments), None))
        except Exception as error:
            drawn.append((None, error))
    for one in drawn:
        pipe.send(one)
