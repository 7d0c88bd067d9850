"""Must a step run, and why? One function, which looks at the storage and changes nothing."""

import dataclasses
import enum
from collections.abc import Sequence

from marin.errors import ExecutionError, FingerprintCollisionError
from marin.execution.graph import Graph, Node, describe_difference
from marin.execution.status import INFO_NAME, Status, own_leftovers, read_info, read_status, status_time
from marin.storage import lease


class Action(enum.Enum):
    RUN = "run"
    SKIP = "skip"
    WAIT = "wait"  # another process is at it
    BLOCKED = "not run"  # it failed before, or something it depends on did


@dataclasses.dataclass(frozen=True)
class Decision:
    action: Action
    reason: str


def decide(node: Node, *, force_run_failed: bool, ignore_lease: bool = False) -> Decision:
    """What to do about one step whose dependencies are done.

    - SUCCESS: skip. The path holds the identity, so what is there is what the step would make.
    - a live lease: wait (unless `ignore_lease`: the caller holds it).
    - FAILED: run again, or not, as `force_run_failed` says.
    - RUNNING without a lease: it was interrupted, so run.
    - DEP_FAILED or nothing: run.

    Raises:
        FingerprintCollisionError: the path holds the output of a step with another fingerprint.
        ExecutionError: so does an overridden path, or it holds files that no step has recorded.
    """
    status = read_status(node.output_path)
    _check_record(node, status)
    if status is Status.SUCCESS:
        return _already_done(node)
    holder = None if ignore_lease else lease.read_holder(node.output_path)
    if holder is not None and not holder.is_dead():
        return Decision(Action.WAIT, f"{holder.worker_id} is running it")
    if status is Status.FAILED:
        if force_run_failed:
            return Decision(Action.RUN, "failed before")
        return Decision(Action.BLOCKED, "failed before; --force_run_failed true runs it again")
    if status is Status.DEP_FAILED:
        return Decision(Action.RUN, "a dependency failed before")
    if status is Status.RUNNING:
        return Decision(Action.RUN, "interrupted; continues" if node.is_resumable else "interrupted; starts over")
    return Decision(Action.RUN, "never ran")


def plan(graph: Graph, targets: Sequence[Node], *, force_run_failed: bool) -> dict[Node, Decision]:
    """A decision for each of `targets` and what they depend on, in an order in which they can run.

    A step that is no target and that only finished steps use is not needed, whatever its own state.
    """
    nodes = graph.with_dependencies(targets)
    needed, decisions = set(targets), {}
    for node in reversed(nodes):
        if node not in needed:
            is_done = read_status(node.output_path) is Status.SUCCESS
            unneeded = Decision(Action.SKIP, "not needed, as what uses it is done")
            decisions[node] = _already_done(node) if is_done else unneeded
            continue
        decisions[node] = decide(node, force_run_failed=force_run_failed)
        if decisions[node].action in (Action.RUN, Action.WAIT):
            needed.update(node.dependencies)
    ordered: dict[Node, Decision] = {}
    for node in nodes:
        blocking = [other.name for other in node.dependencies if ordered[other].action is Action.BLOCKED]
        runs = decisions[node].action is Action.RUN
        ordered[node] = (
            Decision(Action.BLOCKED, f"needs `{blocking[0]}`, which is not run")
            if blocking and runs
            else decisions[node]
        )
    return ordered


def _already_done(node: Node) -> Decision:
    when = status_time(node.output_path)
    return Decision(Action.SKIP, f"already done, succeeded on {when:%Y-%m-%d %H:%M} UTC" if when else "already done")


def _check_record(node: Node, status: Status | None) -> None:
    """Refuses to serve, or to write over, what is not this step's."""
    info = read_info(node.output_path)
    if info is None:
        foreign = [] if status else own_leftovers(node.output_path)
        if foreign:
            raise ExecutionError(
                f"step `{node.name}` would write {node.output_path}, which holds files that no step has recorded "
                f"(such as {foreign[0]!r}): move them away, or choose another path"
            )
        return
    recorded = info.get("fingerprint")
    if recorded in (None, node.fingerprint):  # the reference records none
        return
    version = info.get("version")
    parts = version.get("config", {}) if isinstance(version, dict) else {}
    difference = describe_difference(parts, node.identity.parts)
    if node.step.override_output_path is None:
        raise FingerprintCollisionError(
            f"step `{node.name}`: {node.output_path} holds the output of `{info.get('name')}` with the fingerprint "
            f"{recorded}, not {node.fingerprint} ({difference}): rename the step, or remove that directory"
        )
    if status is Status.SUCCESS:
        raise ExecutionError(
            f"step `{node.name}`: {node.output_path} was made with another config ({difference}; see {INFO_NAME} there): "
            "choose another `override_output_path`, or remove that directory to make it again"
        )
