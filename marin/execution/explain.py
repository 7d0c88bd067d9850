"""Why a step would run: what differs between its config and the closest version of it that is recorded.

Only records are read; nothing is run and nothing is written.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from marin.errors import MarinError, StorageError
from marin.execution import provenance
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, Decision, decide, plan
from marin.execution.status import ERROR_NAME
from marin.execution.task import make_task
from marin.execution.versions import (
    Comparison,
    Lookup,
    Version,
    changed_parts,
    compare,
    read_if_whole,
    recorded_versions,
    records_under,
)
from marin.storage import files


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What would be done about a step and why; `comparison` is with the closest version that is recorded, if any."""

    name: str
    output_path: str
    action: str
    reason: str
    comparison: Comparison | None = None
    failure: str | None = None


def version_of(node: Node, graph: Graph) -> Version:
    """The version that a graph has: as running the step would record it."""
    info = provenance.step_info(make_task(node, graph))
    dependencies = {(other.name, other.fingerprint[:8]): other.output_path for other in node.dependencies}
    return Version(node.name, node.output_path, node.fingerprint, info["version"]["config"], dependencies)


def explain(graph: Graph, nodes: Sequence[Node] | None = None) -> list[Explanation]:
    """What would be done about `nodes` (None: all), and for each that would run, what differs from an earlier version."""
    decisions = _decisions(graph)
    by_digest = {(node.name, node.fingerprint[:8]): node for node in graph.nodes}

    def find_new(name: str, digest: str) -> Version | None:
        node = by_digest.get((name, digest))
        return version_of(node, graph) if node else records_under(graph.prefix)(name, digest)

    return [_explain(node, decisions[node], graph, find_new) for node in (graph.nodes if nodes is None else nodes)]


def _explain(node: Node, decision: Decision | str, graph: Graph, find_new: Lookup) -> Explanation:
    """Args:
    decision: a text says why the plan refuses the step.
    """
    if isinstance(decision, str):
        action, reason = "would be refused", decision
    else:
        action, reason = decision.action.would, decision.reason
        if decision.action is Action.SKIP:
            return Explanation(node.name, node.output_path, action, reason)
    known = read_if_whole(node.output_path)  # where it cannot be read, the decision says so
    if not isinstance(decision, str) and known is not None and known.fingerprint in ("", node.fingerprint):
        return Explanation(node.name, node.output_path, action, reason, failure=_failure(node.output_path))
    earlier = [version for version in recorded_versions(graph.prefix, node.name) if version.parts]
    if known is not None:  # an overridden path, which another config has used
        earlier.append(known)
    elif earlier:
        reason = f"{reason} in this form"
    if not earlier:
        return Explanation(node.name, node.output_path, action, reason)
    new = version_of(node, graph)
    closest = min(earlier, key=lambda version: len(changed_parts(version.parts, new.parts)))  # ties: the newest
    comparison = compare(closest, new, records_under(graph.prefix), find_new)
    return Explanation(node.name, node.output_path, action, reason, comparison)


def _decisions(graph: Graph) -> Mapping[Node, Decision | str]:
    """What the plan says; where the plan refuses the whole graph, what is decided about each step by itself."""
    try:
        return plan(graph, graph.targets, force_run_failed=True)
    except MarinError:  # of records, or of the store
        decisions: dict[Node, Decision | str] = {}
        for node in graph.nodes:
            try:
                decisions[node] = decide(node, force_run_failed=True)
            except MarinError as error:
                decisions[node] = str(error)
        return decisions


def _failure(output_path: str) -> str | None:
    """The last line of the traceback that an earlier attempt has left."""
    path = files.join(output_path, ERROR_NAME)
    try:
        if not files.exists(path):
            return None
        lines = files.read_bytes(path).decode(errors="replace").strip().splitlines()
    except StorageError:
        return None
    return lines[-1] if lines else None
