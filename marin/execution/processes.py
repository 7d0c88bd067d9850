"""Steps in processes of their own, so that several run at once.

A child takes its task (pickled by value where it comes from the script that was started) from a file, takes the lease itself, runs
the step, and writes what became of it to another file. What the step prints goes to its log; what the child has to say
about the step (RUN, done, FAILED) goes to the terminal. A child is a session of its own: Ctrl-C reaches this process, which asks
each child once to stop; and a child whose parent dies is asked to stop by the kernel.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

from marin import errors
from marin.errors import ConfigError, ExecutionError
from marin.execution.children import child_environment, end_with_parent
from marin.execution.provenance import RunContext
from marin.execution.runner import Result, run_step
from marin.execution.task import StepTask

_CHILD = "import sys; from marin.execution.processes import main; main(*sys.argv[1:])"


class ChildProcesses:
    """Runs tasks in children; `stop` ends them all. Methods may be called from several threads."""

    def __init__(self, context: RunContext, *, force_run_failed: bool):
        self._context, self._force_run_failed = context, force_run_failed
        self._running: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.Lock()
        self._stopped = False

    def run(self, task: StepTask) -> Result:
        """Runs one task and waits for it. A child that ends without a word is a failed step.

        Raises:
            ConfigError: the task cannot be sent to another process.
            MarinError: what the child refused to do, such as writing over another step's output.
        """
        with tempfile.TemporaryDirectory(prefix="marin-step-") as directory:
            task_file, result_file = pathlib.Path(directory, "task"), pathlib.Path(directory, "result")
            task_file.write_bytes(_pickled(task, (task, self._context, self._force_run_failed)))
            with self._guard:
                if self._stopped:
                    return Result("not run", "the run was stopped")
                command = [sys.executable, "-c", _CHILD, str(task_file), str(result_file)]
                child = subprocess.Popen(
                    command, env=child_environment(), stdin=subprocess.DEVNULL, start_new_session=True
                )
                self._running.add(child)
            try:
                status = child.wait()
            finally:
                with self._guard:
                    self._running.discard(child)
            return _result(task, status, result_file)

    def stop(self) -> None:
        """Asks every child to stop, as Ctrl-C would; `run` then returns for each."""
        with self._guard:
            self._stopped = True
            for child in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGINT)


def _pickled(task: StepTask, content: Any) -> bytes:
    import cloudpickle

    try:
        return pickle.dumps((sys.path, cloudpickle.dumps(content)))
    except Exception as error:  # whatever an object's own pickling raises
        raise ConfigError(
            f"step `{task.name}` cannot be sent to a process of its own ({error}): use `--max_concurrent 1`"
        ) from error


def _result(task: StepTask, status: int, result_file: pathlib.Path) -> Result:
    if not result_file.exists():
        if status in (130, 143):
            return Result("not run", "interrupted; run the same command again to continue")
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        return Result("failed", f"its process {how}; its log is {task.output_path}/.executor_log.txt")
    record = json.loads(result_file.read_text())
    if "error" in record:
        error = getattr(errors, record["error"], ExecutionError)
        raise error(record["message"])
    return Result(**record)


def main(task_file: str, result_file: str) -> None:
    """What a child does; see the module's docstring."""
    end_with_parent(signal.SIGTERM)
    with errors.clean_exit():
        search_path, content = pickle.loads(pathlib.Path(task_file).read_bytes())
        sys.path[:] = search_path
        task, context, force_run_failed = pickle.loads(content)
        terminal = os.fdopen(os.dup(1), "w", buffering=1)

        def announce(message: str) -> None:
            print(message, file=terminal, flush=True)

        try:
            result = run_step(task, context, force_run_failed=force_run_failed, announce=announce, keeps_terminal=False)
            record = dataclasses.asdict(result)
        except errors.MarinError as error:
            record = {"error": type(error).__name__, "message": str(error)}
        temporary = pathlib.Path(f"{result_file}.tmp")
        temporary.write_text(json.dumps(record))
        os.replace(temporary, result_file)
