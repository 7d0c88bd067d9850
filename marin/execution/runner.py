"""Runs one step under its lease, and commits its output.

The order is what makes a kill at any instant harmless: take the lease, look again whether the step must run, record
what it is, mark it RUNNING, call `fn`, flush everything to the disk, look whether the lease is still ours, and only then
mark it SUCCESS. `fn` writes directly below the output path; until SUCCESS stands there, no other step reads it.
"""

import dataclasses
import time
import traceback
from collections.abc import Callable

from marin.errors import ExecutionError, LeaseHeldError, MarinError, StorageError
from marin.execution import provenance
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, Decision, decide
from marin.execution.status import ERROR_NAME, Status, own_leftovers, read_info, read_status, write_status
from marin.storage import files
from marin.storage.lease import Lease


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a step; `kind` is "ran", "skipped", "failed" or "not run"."""

    node: Node
    kind: str
    reason: str
    seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.kind in ("ran", "skipped")


def run_step(node: Node, graph: Graph, *, force_run_failed: bool, announce: Callable[[str], None]) -> Outcome:
    """Runs the step unless another process has meanwhile done so; its failure is an outcome, not an exception.

    Ctrl-C and SIGTERM pass through, with the lease released and the status left at RUNNING, so that the next run
    continues.

    Raises:
        ExecutionError: the output path belongs to another step.
        StorageError: the output path cannot be written.
    """
    with Lease(node.output_path).acquire(announce=lambda message: announce(f"{node.name}: {message}")) as lease:
        decision = decide(node, force_run_failed=force_run_failed, ignore_lease=True)
        if decision.action is not Action.RUN:
            return Outcome(node, "skipped" if decision.action is Action.SKIP else "not run", decision.reason)
        return _attempt(node, graph, lease, decision, announce)


def mark_dependents_failed(node: Node) -> None:
    """Notes that a step could not run because of another; a step that somebody works on or has finished is left alone."""
    try:
        with Lease(node.output_path).acquire(wait=False):
            if read_status(node.output_path) is not Status.SUCCESS:
                write_status(node.output_path, Status.DEP_FAILED)
    except LeaseHeldError:
        pass


def _attempt(node: Node, graph: Graph, lease: Lease, decision: Decision, announce: Callable[[str], None]) -> Outcome:
    _prepare(node, graph)
    announce(f"RUN {node.name} -> {node.output_path} ({decision.reason})")
    start = time.monotonic()
    try:
        node.step.fn(graph.resolved_config(node))
        files.sync_tree(node.output_path)
        if not lease.verify():
            raise ExecutionError(
                f"the lease on {node.output_path} was lost while step `{node.name}` ran (was this process stopped for "
                "long?), so its output is not committed: run the same command again"
            )
        write_status(node.output_path, Status.SUCCESS)
    except (Exception, SystemExit) as error:
        reason = _record_failure(node, lease, error)
        seconds = time.monotonic() - start
        announce(f"FAILED {node.name} after {seconds:.1f} s: {reason}")
        return Outcome(node, "failed", reason, seconds)
    seconds = time.monotonic() - start
    announce(f"done {node.name} in {seconds:.1f} s")
    return Outcome(node, "ran", decision.reason, seconds)


def _prepare(node: Node, graph: Graph) -> None:
    """Clears what an unfinished attempt left, unless this very step continues from it; records the step."""
    info = read_info(node.output_path)
    if info is not None and not (node.is_resumable and info.get("fingerprint") == node.fingerprint):
        for name in own_leftovers(node.output_path):
            files.remove_tree(files.join(node.output_path, name))
    files.remove_file(files.join(node.output_path, ERROR_NAME))
    provenance.write_step_info(node, graph)
    write_status(node.output_path, Status.RUNNING)


def _record_failure(node: Node, lease: Lease, error: BaseException) -> str:
    """Writes the traceback and FAILED, unless somebody else holds the path now; returns one sentence for people."""
    summary = str(error) if isinstance(error, MarinError) else traceback.format_exception_only(error)[-1].strip()
    if not lease.verify():
        return summary
    error_path = files.join(node.output_path, ERROR_NAME)
    try:
        files.write_bytes(error_path, "".join(traceback.format_exception(error)).encode(errors="replace"))
        write_status(node.output_path, Status.FAILED)
    except StorageError as further:  # a full disk must not hide what went wrong
        return f"{summary} (and no traceback could be written: {further})"
    return summary if isinstance(error, MarinError) else f"{summary} (traceback in {error_path})"
