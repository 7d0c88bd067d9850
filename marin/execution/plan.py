"""Must a step run, and why? One function, which looks at the storage and changes nothing."""

import dataclasses
import datetime
import enum
import functools
import re
from collections.abc import Sequence

from marin.errors import ConfigError, ExecutionError, FingerprintCollisionError
from marin.execution import attempts
from marin.execution.graph import Graph, Node, describe_difference
from marin.execution.status import (
    INFO_NAME,
    STATUS_NAME,
    Status,
    finished_at,
    own_leftovers,
    read_info,
)
from marin.execution.task import StepTask
from marin.storage import files, lease


class Action(enum.Enum):
    RUN = "run"
    SKIP = "skip"
    WAIT = "wait"  # another process is at it
    BLOCKED = "not run"  # it failed before, or something it depends on did

    @property
    def would(self) -> str:
        """What a dry run and `marin explain` say."""
        return f"would {self.value}"


@dataclasses.dataclass(frozen=True)
class Decision:
    action: Action
    reason: str


def decide(step: Node | StepTask, *, force_run_failed: bool, ignore_lease: bool = False) -> Decision:
    """What to do about one step whose dependencies are done.

    - SUCCESS: skip. The path holds the identity, so what is there is what the step would make.
    - committed, but not yet at its usual path: run, which only puts it there.
    - a live lease: wait (unless `ignore_lease`: the caller holds it).
    - FAILED: run again, or not, as `force_run_failed` says.
    - RUNNING without a lease: it was interrupted, so run.
    - DEP_FAILED or nothing: run.

    Raises:
        FingerprintCollisionError: the path holds the output of a step with another fingerprint.
        ExecutionError: so does an overridden path, or it holds files that no step has recorded.
    """
    when = finished_at(step.output_path, step.fingerprint)
    if when is not None:
        return _already_done(when)
    status = attempts.read_step_status(step.output_path)
    _check_record(step, status)
    if status is Status.SUCCESS:
        written = files.modified_time(files.join(step.output_path, STATUS_NAME))
        return _already_done(written.timestamp() if written else None)
    state = lease.read_state(attempts.ledger_directory(step.output_path))
    holder = state.holder if state is not None and state.kind == "claim" else None
    if holder is not None and not ignore_lease and not holder.is_dead():
        return Decision(Action.WAIT, f"{holder.worker_id} is running it")
    if state is not None and attempts.unpublished(step.output_path) is not None:
        return Decision(Action.RUN, "committed by an earlier run; its output only has to be put in place")
    if status is Status.FAILED:
        if force_run_failed:
            return Decision(Action.RUN, "failed before")
        return Decision(Action.BLOCKED, "failed before; --force_run_failed true runs it again")
    if status is Status.DEP_FAILED:
        return Decision(Action.RUN, "a dependency failed before")
    if status is Status.RUNNING:
        continues = step.is_resumable and attempts.can_continue(step.output_path)
        return Decision(Action.RUN, "interrupted; continues" if continues else "interrupted; starts over")
    return Decision(Action.RUN, "never ran")


def targets_of(graph: Graph, run_only: Sequence[str] | None) -> list[Node]:
    """The nodes that are asked for: those whose names have a match of one of the regular expressions; with None the graph's own.

    Raises:
        ConfigError: there is no such node.
    """
    if run_only is None:
        return graph.targets
    chosen = [node for node in graph.nodes if any(re.search(pattern, node.name) for pattern in run_only)]
    if not chosen:
        names = ", ".join(node.name for node in graph.nodes[:20])
        raise ConfigError(f"`--run_only` {list(run_only)} matches no step: the steps are {names}")
    return chosen


def plan(graph: Graph, targets: Sequence[Node], *, force_run_failed: bool) -> dict[Node, Decision]:
    """A decision for each of `targets` and what they depend on, in an order in which they can run.

    A step that is no target and that only finished steps use is not needed, whatever its own state.
    """
    nodes = graph.with_dependencies(targets)
    needed, decisions = set(targets), {}
    for node in reversed(nodes):
        if node not in needed:
            when = finished_at(node.output_path, node.fingerprint)
            unneeded = Decision(Action.SKIP, "not needed, as what uses it is done")
            decisions[node] = unneeded if when is None else _already_done(when)
            continue
        decisions[node] = decide(node, force_run_failed=force_run_failed)
        if decisions[node].action in (Action.RUN, Action.WAIT):
            needed.update(node.dependencies)
    ordered: dict[Node, Decision] = {}
    for node in nodes:
        ordered[node] = decisions[node]
        if decisions[node].action is Action.RUN:
            blocking = [other.name for other in node.dependencies if ordered[other].action is Action.BLOCKED]
            if blocking:
                ordered[node] = Decision(Action.BLOCKED, f"needs `{blocking[0]}`, which is not run")
    return ordered


def _already_done(when: float | None) -> Decision:
    return Decision(Action.SKIP, "already done") if when is None else _done_in_minute(int(when // 60))


@functools.lru_cache
def _done_in_minute(minute: int) -> Decision:
    when = datetime.datetime.fromtimestamp(minute * 60, datetime.UTC)
    return Decision(Action.SKIP, f"already done, succeeded on {when:%Y-%m-%d %H:%M} UTC")


def _check_record(step: Node | StepTask, status: Status | None) -> None:
    """Refuses to serve, or to write over, what is not this step's."""
    try:
        info = read_info(step.output_path)
    except ExecutionError:
        # A power failure can empty the record of an attempt that has just begun. One that would go on from the files of a
        # resumable step's attempt cannot tell whose they are, and must not remove them.
        if step.is_resumable or not attempts.is_unfinished(step.output_path):
            raise
        return
    if info is None:
        foreign = [] if status else own_leftovers(step.output_path)
        if foreign:
            raise ExecutionError(
                f"step `{step.name}` would write {step.output_path}, which holds files that no step has recorded "
                f"(such as {foreign[0]!r}): move them away, or choose another path"
            )
        return
    recorded = info.get("fingerprint")
    if recorded in (None, step.fingerprint):  # the reference records none
        return
    version = info.get("version")
    parts = version.get("config", {}) if isinstance(version, dict) else {}
    difference = describe_difference(parts, dict(step.parts))
    if step.override_output_path is None:
        raise FingerprintCollisionError(
            f"step `{step.name}`: {step.output_path} holds the output of `{info.get('name')}` with the fingerprint "
            f"{recorded}, not {step.fingerprint} ({difference}): rename the step, or remove that directory"
        )
    if status is Status.SUCCESS:
        raise ExecutionError(
            f"step `{step.name}`: {step.output_path} was made with another config ({difference}; see {INFO_NAME} there): "
            "choose another `override_output_path`, or remove that directory to make it again"
        )
