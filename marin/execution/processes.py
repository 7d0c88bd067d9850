"""Steps in processes of their own, so that several run at once.

A child takes its task (see `pickled` for what comes from the script that was started) from a file, takes the lease itself, runs
the step, and writes what became of it to another file. What the step prints goes to its log; what the child has to say
about the step (RUN, done, FAILED) goes to the terminal. A child is a session of its own: Ctrl-C reaches this process, which asks
each child once to stop; and a child whose parent dies is asked to stop by the kernel.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import operator
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin import errors
from marin.children import child_environment, end_with_parent
from marin.errors import ConfigError, ExecutionError
from marin.execution import logs
from marin.execution.following import follow_task
from marin.execution.provenance import RunContext
from marin.execution.runner import Result, note_death, run_step
from marin.execution.task import StepTask
from marin.main_module import is_importable_from_main, module_of

_CHILD = "import sys; from marin.execution.processes import main; main(*sys.argv[1:])"


class ChildProcesses:
    """Runs tasks in children; `stop` ends them all. Methods may be called from several threads."""

    def __init__(self, context: RunContext, *, force_run_failed: bool):
        self._context, self._force_run_failed = context, force_run_failed
        self._running: set[StepChild] = set()
        self._guard = threading.Lock()
        self._stopped = False

    def run(self, task: StepTask) -> Result:
        """Runs one task and waits for it. A child that ends without a word is a failed step.

        Raises:
            ConfigError: the task cannot be sent to another process.
            MarinError: what the child refused to do, such as writing over another step's output.
        """
        content = pickled(task, StepContent(task, self._context, self._force_run_failed))
        with self._guard:
            if self._stopped:
                return Result("not run", "the run was stopped")
            child = StepChild(content, sys.path)
            self._running.add(child)
        try:
            return result_of(task, child.wait(), is_stopped=self._stopped)
        finally:
            with self._guard:
                self._running.discard(child)

    def stop(self) -> None:
        """Asks every child to stop, as Ctrl-C would; `run` then returns for each."""
        with self._guard:
            self._stopped = True
            for child in self._running:
                child.ask_to_stop()


@dataclasses.dataclass(frozen=True)
class StepContent:
    """What a child is told. As `follower` n > 0 it is process n of those that run the step together, and helps process 0."""

    task: StepTask
    context: RunContext
    force_run_failed: bool
    follower: int = 0


@dataclasses.dataclass(frozen=True)
class ChildEnd:
    """How a child ended: its exit status (negative for a signal), and what it wrote about the step, if it came to that."""

    status: int
    record: dict[str, Any] | None


class StepChild:
    """A process that runs one step.

    Args:
        content: what `pickled` made of a `StepContent`.
        search_path: its `sys.path`.
        variables: added to its environment.
    """

    def __init__(self, content: bytes, search_path: Sequence[str], variables: Mapping[str, str] | None = None):
        self._directory = tempfile.TemporaryDirectory(prefix="marin-step-")
        task_file, self._result_file = (pathlib.Path(self._directory.name, name) for name in ("task", "result"))
        task_file.write_bytes(pickle.dumps((list(search_path), content)))
        command = [sys.executable, "-c", _CHILD, str(task_file), str(self._result_file)]
        self._process = subprocess.Popen(
            command, env=child_environment(**(variables or {})), stdin=subprocess.DEVNULL, start_new_session=True
        )

    def wait(self) -> ChildEnd:
        """Waits for its end, and removes what it was sent."""
        end = self.ended_within(None)
        assert end is not None
        return end

    def ended_within(self, seconds: float | None) -> ChildEnd | None:
        """The same, but waits for at most some seconds; None if it still runs."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        record = json.loads(self._result_file.read_text()) if self._result_file.exists() else None
        self._directory.cleanup()
        return ChildEnd(status, record)

    def ask_to_stop(self, number: signal.Signals = signal.SIGINT) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def pickled(task: StepTask, content: StepContent) -> bytes:
    """The content for another process, which imports the started script under its own name for what it defines at its top level.

    What cannot be found there goes by value. Classes with machinery of their own, such as Equinox's modules, would not survive that.

    Raises:
        ConfigError: something in the step cannot be pickled.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, type | types.FunctionType) and is_importable_from_main(value):
                return _imported, (module_of(value), value.__qualname__)
            return super().reducer_override(value)

    written = io.BytesIO()
    try:
        Pickler(written).dump(content)
    except Exception as error:  # whatever an object's own pickling raises
        raise ConfigError(
            f"step `{task.name}` cannot be sent to a process of its own ({error}): use `--max_concurrent 1`"
        ) from error
    return written.getvalue()


def _imported(module: str, qualname: str) -> Any:
    """What a module calls so. `pkgutil.resolve_name` would refuse the module of a file such as `my-idea/2_layers.py`."""
    return operator.attrgetter(qualname)(importlib.import_module(module))


def result_of(task: StepTask, end: ChildEnd, *, is_stopped: bool) -> Result:
    """What a child's end means for its step. One that ended without a word is noted there as failed.

    Args:
        is_stopped: all children were asked to stop, so that none of them fails.
    Raises:
        MarinError: what the child refused to do.
    """
    if end.record is None:
        if is_stopped or end.status in (130, 143):
            return Result("not run", "interrupted; run the same command again to continue")
        how = (
            f"was killed by {signal.Signals(-end.status).name}"
            if end.status < 0
            else f"exited with status {end.status}"
        )
        return Result("failed", note_death(task, f"its process {how}"))
    if "error" in end.record:
        error = getattr(errors, end.record["error"], ExecutionError)
        raise error(end.record["message"])
    return Result(**end.record)


def main(task_file: str, result_file: str) -> None:
    """What a child does; see the module's docstring."""
    try:
        _work(task_file, result_file)
    finally:
        # Its parent removes what it was sent, which may hold secrets, unless that is gone: as it may be where there is nothing to
        # tell it. (The kernel's signal comes with the end of the parent's thread, a moment before that of the parent.)
        if not os.path.exists(result_file):
            shutil.rmtree(pathlib.Path(task_file).parent, ignore_errors=True)


def _work(task_file: str, result_file: str) -> None:
    end_with_parent(signal.SIGTERM)
    # It is how the parent asks to stop, and a shell's `python -m ... &` in a script has it ignored by all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # Ray's workers block the first
    with errors.clean_exit():
        search_path, content = pickle.loads(pathlib.Path(task_file).read_bytes())
        sys.path[:] = search_path
        told: StepContent = pickle.loads(content)
        terminal = os.fdopen(os.dup(1), "w", buffering=1, errors="backslashreplace")

        def announce(message: str) -> None:
            logs.announce(message, terminal)

        try:
            record = dataclasses.asdict(_run(told, announce))
        except errors.MarinError as error:
            record = {"error": type(error).__name__, "message": str(error)}
        temporary = pathlib.Path(f"{result_file}.tmp")
        temporary.write_text(json.dumps(record))
        os.replace(temporary, result_file)


def _run(told: StepContent, announce: Callable[[str], None]) -> Result:
    if told.follower:
        follow_task(told.task, told.follower)
        return Result("ran", "helped process 0")
    return run_step(
        told.task, told.context, force_run_failed=told.force_run_failed, announce=announce, keeps_terminal=False
    )
