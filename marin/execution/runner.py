"""Runs one step under its lease, and commits its output.

The order is what makes a kill at any instant harmless: take the lease, look again whether the step must run, make a
directory for this attempt alone, record there what it is, call `fn`, flush everything to the disk, commit with one
conditional put that fails if anybody has taken over, and only then mark it SUCCESS and move it to its usual path.
"""

import contextlib
import dataclasses
import posixpath
import time
import traceback
from collections.abc import Callable

from marin.errors import MarinError, StorageError, Terminated
from marin.execution import attempts, logs, provenance
from marin.execution.following import known_as_alone
from marin.execution.plan import Action, Decision, decide
from marin.execution.status import (
    DIFF_NAME,
    ERROR_NAME,
    LOG_NAME,
    OWN_PREFIX,
    Status,
    write_info,
    write_status,
)
from marin.execution.task import StepTask
from marin.storage import exclusive, files, trees
from marin.storage.lease import Lease


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a step; `kind` is "ran", "skipped", "waited", "failed" or "not run"."""

    kind: str
    reason: str
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.kind in ("ran", "skipped", "waited")


def run_step(
    task: StepTask,
    context: provenance.RunContext,
    *,
    force_run_failed: bool,
    announce: Callable[[str], None],
    keeps_terminal: bool = True,
    wait: bool = True,
) -> Result:
    """Runs the step unless another process has meanwhile done so; its failure is a result, not an exception.

    Ctrl-C and SIGTERM pass through, with the lease released and the status left at RUNNING, so that the next run
    continues.

    Args:
        keeps_terminal: show on the terminal what the step prints, and copy it to its log; else all goes to the log.
        wait: for another process that is running the step.
    Raises:
        LeaseHeldError: another process is running the step, and `wait` is False.
        ExecutionError: the output path belongs to another step.
        StorageError: the output path cannot be written.
    """
    exclusive.check_store(posixpath.dirname(task.output_path))
    waited: list[str] = []

    def announce_wait(message: str) -> None:
        waited.append(message)
        announce(f"{task.name}: {message}")

    lease = Lease(attempts.ledger_directory(task.output_path))
    with lease.acquire(wait=wait, announce=announce_wait):
        unpublished = attempts.unpublished(task.output_path)
        if unpublished is not None:
            attempts.publish(task.output_path, unpublished)
            announce(f"done {task.name}: an earlier run committed it, its output is in place now")
        decision = decide(task, force_run_failed=force_run_failed, ignore_lease=True)
        if decision.action is not Action.RUN:
            done = "waited" if waited else "skipped"
            return Result(done if decision.action is Action.SKIP else "not run", decision.reason)
        return _attempt(task, context, lease, decision, announce, keeps_terminal)


def mark_dependency_failed(task: StepTask) -> None:
    """Notes that a step could not run because of another, unless somebody is at it or something stands at its path."""
    lease = Lease(attempts.ledger_directory(task.output_path))
    # A note for people; the failure itself is reported anyway. It is an attempt of its own, as it may come late.
    with contextlib.suppress(StorageError), lease.acquire(wait=False):
        if not files.exists(task.output_path):
            own = attempts.begin(task.output_path, lease.token)
            write_info(own, provenance.step_info(task), durable=False)
            write_status(own, Status.DEP_FAILED, durable=False)


def note_death(task: StepTask, how: str) -> str:
    """Notes FAILED for a step whose process is gone without having done so; returns one sentence for people.

    A step stays as it is where its process ran on another machine, so that nobody here can tell that it is gone, and where
    somebody else is at it or it was committed before.
    """
    log = files.join(task.output_path, LOG_NAME)
    # A note for people; the failure itself is reported anyway.
    with contextlib.suppress(MarinError):
        if files.exists(log):
            how = f"{how}; its log is {log}"
        with Lease(attempts.ledger_directory(task.output_path)).acquire(wait=False):
            own = attempts.interrupted(task.output_path)
            if own is not None:
                files.write_bytes(files.join(own, ERROR_NAME), f"{how}\n".encode(), make_parents=False)
                write_status(own, Status.FAILED, make_parents=False)
    return how


def _attempt(
    task: StepTask,
    context: provenance.RunContext,
    lease: Lease,
    decision: Decision,
    announce: Callable[[str], None],
    keeps_terminal: bool,
) -> Result:
    own = attempts.begin(
        task.output_path, lease.token, adopted_fingerprint=task.fingerprint if task.is_resumable else None
    )
    has_log = files.is_local(own)
    info = provenance.attempt_info(
        task, lease.token, context, files.join(task.output_path, LOG_NAME) if has_log else None
    )
    files.remove_file(files.join(own, ERROR_NAME))
    # The next attempt knows by it whether it may go on from the files of this one, which may be the work of days.
    write_info(own, info, durable=task.is_resumable)
    if context.diff:
        files.write_bytes(files.join(own, DIFF_NAME), context.diff, durable=False)
    write_status(own, Status.RUNNING, durable=False)
    elsewhere = f", prints into {LOG_NAME} there" if has_log and not keeps_terminal else ""
    announce(f"RUN {task.name} -> {task.output_path} ({decision.reason}){elsewhere}")
    log: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if has_log and keeps_terminal:
        log = logs.copied_to(files.join(own, LOG_NAME))
    elif has_log:
        logs.send_all_to(files.join(own, LOG_NAME))
    start = time.monotonic()
    try:
        with log, known_as_alone(task.name, task.config):
            task.fn(task.config_for(own))
        seconds = time.monotonic() - start
        attempts.make_links_relative(own)
        write_info(
            own, provenance.completed_info(info, seconds, trees.digest_tree(own, leave_out=OWN_PREFIX)), durable=False
        )
        files.sync_tree(own)
        if not attempts.commit(lease, task.output_path):
            return _overtaken(task, seconds, announce)
    except (KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # also what is none of `Exception`, such as asyncio's CancelledError
        seconds = time.monotonic() - start
        if lease.lost or not lease.verify():
            return _overtaken(task, seconds, announce)
        reason = _record_failure(own, task.output_path, error)
        announce(f"FAILED {task.name} after {seconds:.1f} s: {reason}")
        return Result("failed", reason, seconds)
    announce(f"done {task.name} in {seconds:.1f} s")
    return Result("ran", decision.reason, seconds)


def _overtaken(task: StepTask, seconds: float, announce: Callable[[str], None]) -> Result:
    reason = (
        "somebody else took the step over while it ran (was this process stopped for long?), so what it made here "
        "is not committed: run the same command again"
    )
    announce(f"FAILED {task.name} after {seconds:.1f} s: {reason}")
    return Result("failed", reason, seconds)


def _record_failure(own: str, output_path: str, error: BaseException) -> str:
    """Writes the traceback and FAILED; returns one sentence for people."""
    summary = str(error) if isinstance(error, MarinError) else _in_a_line(error)
    try:
        text = "".join(traceback.format_exception(error)).encode(errors="replace")
        files.write_bytes(files.join(own, ERROR_NAME), text)
        write_status(own, Status.FAILED)
    except StorageError as further:  # a full disk must not hide what went wrong
        return f"{summary} (and no traceback could be written: {further})"
    shown = files.join(output_path if files.is_local(output_path) else own, ERROR_NAME)
    return summary if isinstance(error, MarinError) else f"{summary} (traceback in {shown})"


def _in_a_line(error: BaseException) -> str:
    """An error's kind and message, without the notes that libraries add to it, such as JAX's on how it shortens tracebacks."""
    try:
        message = str(error).strip()
    except Exception:  # an error of a user's own class may not even be able to say what it is
        message = ""
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
