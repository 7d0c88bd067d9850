"""Children by fork, which have what this process has read, and end with it.

Where forking is not possible (another system, threads that run, JAX) there is none, and the caller does the work itself.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from marin.children import end_with_parent

_STOPS = (signal.SIGINT, signal.SIGTERM)


def may_fork() -> bool:
    """Whether no other thread runs that a child would miss: of Python's, or of JAX, which cannot be forked."""
    return hasattr(os, "fork") and threading.active_count() == 1 and "jax" not in sys.modules


def fork_child(run: Callable[[Any], None]) -> tuple[Any, Any]:
    """Starts a child that calls `run` with its end of a two-way pipe; returns the process and this process's end.

    Ctrl-C and SIGTERM are this process's to answer, which terminates its children; if it is killed, so are they.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_in_child, args=(run, there, here, os.getpid()), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of any thread, such as those of NumPy's OpenBLAS, which stops them before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        with _stops_blocked():
            child.start()
    there.close()
    return child, here


def _in_child(run: Callable[[Any], None], pipe: Any, parents_end: Any, parent: int) -> None:
    parents_end.close()  # or this child would not see that the parent closed it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL, parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    run(pipe)
    pipe.close()


@contextlib.contextmanager
def _stops_blocked() -> Iterator[None]:
    """A stop waits: Python forgets one that reaches a child between its fork and its first line, and the child would go on."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
