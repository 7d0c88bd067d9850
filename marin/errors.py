"""Every exception that Marin raises on purpose, and how an entry point reports one.

    MarinError                        something a person can act on; its message says what, where, expected, next
    ├── ConfigError                   a config field, flag or environment variable has a value that cannot work
    ├── HardwareError                 a device that the catalogue does not know, or that is not there
    ├── StorageError                  a path that cannot be read or written
    │   └── LeaseHeldError            another live process holds the path
    ├── ExecutionError                the executor cannot go on
    │   ├── FingerprintError          a config value has no stable encoding
    │   ├── FingerprintCollisionError two different configs meet at one output path
    │   ├── PreviousStepFailedError   a step failed in an earlier run and was not told to run again
    │   └── StepFailedError           a step failed in this run
    ├── DataError                     documents, tokenizers and token caches
    │   ├── CorpusError               the installed packages do not give the named corpus
    │   └── CacheError                a token cache is incomplete or corrupt
    ├── TrainingError                 a training run cannot go on
    │   ├── CheckpointError           a checkpoint is incomplete, corrupt, or of another model
    │   └── NonFiniteLossError        the loss or a gradient is NaN or infinite
    ├── EndpointError                 a language model's endpoint gives no answers
    ├── BudgetError                   what a paid service may cost is used up
    └── ResultsError                  a results file is malformed or inconsistent

Errors that users cause are also `ValueError` or `OSError`, so that library callers can catch them by their usual kin.
Bugs of ours stay `assert`s and keep their traceback.
"""

import atexit
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TextIO

from marin import environment


class MarinError(Exception):
    """Something a person can act on."""


class ConfigError(MarinError, ValueError):
    """A config field, flag or environment variable has a value that cannot work."""


class HardwareError(MarinError, ValueError):
    """A device that the catalogue does not know, or that is not there."""


class StorageError(MarinError, OSError):
    """A path that cannot be read or written."""


class LeaseHeldError(StorageError):
    """Another live process holds the path."""


class ExecutionError(MarinError, RuntimeError):
    """The executor cannot go on."""


class FingerprintError(ExecutionError, ValueError):
    """A config value has no stable encoding."""


class FingerprintCollisionError(ExecutionError):
    """Two different configs meet at one output path."""


class PreviousStepFailedError(ExecutionError):
    """A step failed in an earlier run and was not told to run again."""


class StepFailedError(ExecutionError):
    """A step failed in this run."""


class DataError(MarinError, ValueError):
    """Documents, tokenizers and token caches."""


class CorpusError(DataError):
    """The installed packages do not give the named corpus."""


class CacheError(DataError):
    """A token cache is incomplete or corrupt."""


class TrainingError(MarinError, RuntimeError):
    """A training run cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint is incomplete, corrupt, or of another model."""


class NonFiniteLossError(TrainingError):
    """The loss or a gradient is NaN or infinite."""


class EndpointError(MarinError, RuntimeError):
    """A language model's endpoint gives no answers."""


class BudgetError(MarinError, RuntimeError):
    """What a paid service may cost is used up."""


class ResultsError(MarinError, ValueError):
    """A results file is malformed or inconsistent."""


class Terminated(SystemExit):
    """SIGTERM, raised in the main thread by `clean_exit` so that `finally` blocks run.

    An exit, since an event loop of a library's, as Orbax has, swallows every other exception that a signal raises within it.
    """

    def __init__(self, status: int = 143) -> None:
        super().__init__(status)


def first_line(error: BaseException) -> str:
    """What an error says, as far as it fits on one line of a message; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_GOES_ON = "run the same command again to continue"
_stopped_with: int | None = None  # the status with which `clean_exit` ends this process, once it was stopped


@contextlib.contextmanager
def clean_exit(advice: str = _GOES_ON) -> Iterator[None]:
    """For entry points: turns errors that a person can act on into one message and an exit status.

    Exit status 2 for a `MarinError` and for a package that is not installed, 130 for Ctrl-C, 143 for SIGTERM. Anything else is our bug and keeps its traceback.

    Characters that the terminal cannot show are printed as escapes.

    Args:
        advice: what to do after a stop; a command that begins anew must not promise to continue.
    """
    asked_to_stop = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")

    def terminate(signum: int, frame: FrameType | None) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True
        raise Terminated

    try:
        previous = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # signals belong to the main thread
        previous = None
    try:
        yield
    except BaseException as error:
        # A library that is stopped in the middle of its work may raise an error of its own instead.
        if isinstance(error, Terminated) or (asked_to_stop and isinstance(error, Exception)):
            raise _stopped("terminated", advice, 143) from None
        if isinstance(error, MarinError):
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        if isinstance(error, KeyboardInterrupt):
            raise _stopped("interrupted", advice, 130) from None
        if isinstance(error, ModuleNotFoundError) and _is_of_a_package(error.name):
            print(f"error: {environment.without(str(error.name))}", file=sys.stderr)
            raise SystemExit(2) from None
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _is_of_a_package(module: str | None) -> bool:
    """Whether a whole package is missing, and not one file of one that is there."""
    return module is not None and "." not in module and module not in ("marin", "experiments", "scripts")


def _stopped(how: str, advice: str, status: int) -> SystemExit:
    global _stopped_with
    _stopped_with = status
    print(f"\n{how}; {advice}", file=sys.stderr)
    return SystemExit(status)


def leave_at_once_after_a_stop() -> None:
    """For processes that compile: one that was stopped does not take the interpreter down beneath what still works.

    JAX 0.10 lets Ctrl-C out of a compilation that goes on in threads of XLA's, and they end such an interpreter with a segmentation fault.
    """
    atexit.unregister(_leave_if_stopped)
    atexit.register(_leave_if_stopped)


def _leave_if_stopped() -> None:
    if _stopped_with is not None:
        leave(_stopped_with)


def leave(status: int) -> None:
    """Ends the process here: nothing that is registered for its end runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """For programs that only print: ends the block in silence when whoever reads (`| head`) has seen enough."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        send_nowhere(sys.stdout)


def send_nowhere(stream: TextIO) -> None:
    """From now on what is written to the stream is lost: for one whose reader has left, so that no later write fails."""
    with contextlib.suppress(OSError, ValueError):  # a stream in memory has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Errors while an experiment file is still being imported, before any entry point can catch them."""
    if isinstance(error, MarinError):
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2)
    if isinstance(error, KeyboardInterrupt):
        print(f"\ninterrupted; {_GOES_ON}", file=sys.stderr)
        raise SystemExit(130)
    sys.__excepthook__(kind, error, trace)


# Configs check themselves where they are made, which is at import; a wrong one deserves a message, not a traceback.
if sys.excepthook is sys.__excepthook__:
    sys.excepthook = _report_uncaught
