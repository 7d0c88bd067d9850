"""Stopping a run cleanly: the step in progress ends, and a checkpoint is saved.

Python hands a signal to its handlers between two instructions of the main thread, and a step is one call: on a slow machine
minutes may pass. The kernel's side of a handler also writes the signal's number into a pipe (`signal.set_wakeup_fd`), so a
thread answers meanwhile.
"""

import contextlib
import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from marin.errors import Terminated, leave

_PATIENCE = 1.0  # seconds after a signal in which the step may end by itself
_END = 0  # no signal's number
_listening = False  # in this process


def _listen_no_more() -> None:
    if _listening:
        signal.set_wakeup_fd(-1)


# A child that is forked while its parent listens is not to answer for it: Ctrl-C reaches both, and would count twice.
os.register_at_fork(after_in_child=_listen_no_more)


class StopRequest:
    """Catches Ctrl-C, SIGTERM, and the end of the terminal (SIGHUP) while training.

    The first signal sets `requested`; Ctrl-C after it interrupts at once, in the middle of a step too, whose process then ends with
    status 130 on the spot. Another SIGTERM does not, since schedulers send it again and to every process of a group, none of
    which means that the work is to be lost. On leaving, the first signal is delivered to the handler that stood before; where there
    was none, the program exits with 128 and the signal's number.

    Args:
        tell: shows a line to the person who waits.
    """

    def __init__(self, tell: Callable[[str], None] = print) -> None:
        self._tell = tell
        self._previous: dict[int, Any] = {}
        self._signal: int | None = None
        self._listener: threading.Thread | None = None
        self._guard = threading.Lock()
        self._beside: Callable[[], None] | None = None
        # What the main thread has come to.
        self._left, self._interrupted = threading.Event(), threading.Event()

    @property
    def requested(self) -> bool:
        return self._signal is not None

    @contextlib.contextmanager
    def meanwhile(self, act: Callable[[], None]) -> Iterator[None]:
        """A block that may take minutes: the first signal that comes in it has `act` called beside it, which its end waits for."""
        with self._guard:
            self._beside = act
        if self.requested:  # a moment before
            self._act()
        try:
            yield
        finally:
            with self._guard:
                self._beside = None

    def _act(self) -> bool:
        """Calls what is to be called beside a block, if this is in one; whether it was."""
        with self._guard:
            act, self._beside = self._beside, None
            if act is not None:
                act()
            return act is not None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # A shell's job in the background is not to end by the Ctrl-C that is meant for another, nor what `nohup` started with it.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
            self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._listener is not None:
            self._set_listening(self._wakeup_before)
            os.write(self._written, bytes([_END]))
            self._listener.join()
            os.close(self._written)
        if self._signal is not None and error is None:
            handler = self._previous[self._signal]
            if callable(handler):
                handler(self._signal, None)
            else:
                # In order, unlike the kernel's own way: what other processes wait for at this one's end still happens.
                raise Terminated(128 + self._signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        _leave_ended_terminals()  # SIGTERM too may come of it, where the process that started this one has ended with the terminal
        if self._signal is None:
            self._signal = number
        elif number == signal.SIGINT:
            self._interrupted.set()
            raise KeyboardInterrupt

    def _listen(self) -> None:
        read, self._written = os.pipe()
        os.set_blocking(self._written, False)
        self._wakeup_before = self._set_listening(self._written)
        self._listener = threading.Thread(target=self._answer, args=(read,), name="stop-request", daemon=True)
        self._listener.start()

    @staticmethod
    def _set_listening(pipe: int) -> int:
        """Where numbers of signals are written, -1 for nowhere; returns where they were before."""
        global _listening
        _listening = pipe != -1
        return signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)

    def _answer(self, read: int) -> None:
        """Tells of the first signal if the step takes long, and ends the process at the second Ctrl-C if that is not noticed."""
        told = False
        with open(read, "rb", buffering=0) as pipe:
            while (number := pipe.read(1)[0]) != _END:
                if number not in self._previous:
                    continue
                if not told:
                    told = True
                    measures = self._act()
                    if not self._left.wait(_PATIENCE):
                        _leave_ended_terminals()  # `tee` may have ended a moment after the signal
                        self._tell(
                            "stopping when this is measured; Ctrl-C again stops at once, and then it is measured anew"
                            if measures
                            else "stopping after this step, with a checkpoint; Ctrl-C again stops at once, without one"
                        )
                elif number == signal.SIGINT and not (self._interrupted.wait(_PATIENCE) or self._left.is_set()):
                    print("\ninterrupted; run the same command again to continue", file=sys.stderr)
                    leave(128 + signal.SIGINT)


def _leave_ended_terminals() -> None:
    """What is still to be printed must not fail where the terminal is gone, or `tee` with it, before the checkpoint is saved.

    By number, as `sys.stdout` may be None or an object of the experiment's own, which writes to these in the end.
    """
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            try:
                os.write(descriptor, b"")  # to a pipe that nobody reads it does not fail
                ended = _has_no_reader(descriptor)
            except OSError as error:
                ended = error.errno != errno.EBADF  # closed from the start
            if ended:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
