"""What a step prints is shown and kept: in this process by a stream that writes twice, in another by its own log file.

Neither a log on a full disk nor a terminal that nobody reads any more, such as a pipe whose reader has ended, stops the step.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from marin.errors import send_nowhere

# Colours, and what progress bars use to redraw their line.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n]*\r(?!\n)")


class _Tee(io.TextIOBase):
    """Writes to a terminal as it is, and to a log without control sequences; all else is the terminal's."""

    def __init__(self, shown: TextIO, log: TextIO):
        self._shown, self._log = shown, log

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._log.write(_CONTROL.sub("", text))
        with _may_be_unread(self._shown):
            self._shown.write(text)
            if "\n" in text:  # whoever watches through a pipe sees each line at once, and a kill loses none
                self._shown.flush()
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._log.flush()
        with _may_be_unread(self._shown):
            self._shown.flush()

    def isatty(self) -> bool:
        return self._shown.isatty()

    def fileno(self) -> int:
        return self._shown.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown.encoding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


def announce(message: str, terminal: TextIO | None = None) -> None:
    """A line of the executor's own on `terminal`, or on what is standard output at the moment."""
    stream = sys.stdout if terminal is None else terminal
    with _may_be_unread(stream):
        print(message, file=stream, flush=True)


@contextlib.contextmanager
def _may_be_unread(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except OSError:
        send_nowhere(stream)


@contextlib.contextmanager
def copied_to(path: str) -> Iterator[None]:
    """Copies what Python code prints in this block to the local file `path` as well."""
    with open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1) as log:
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Tee(before[0], log), _Tee(before[1], log)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before


def send_all_to(path: str) -> None:
    """From now on, everything that this process and its children print goes to the local file `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # the log is read while it grows
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
