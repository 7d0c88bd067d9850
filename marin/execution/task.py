"""A step taken out of its graph: all that is needed to decide about it and to run it, here or in another process."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from marin.execution import attempts
from marin.execution.graph import Graph, Node
from marin.execution.step import resolve
from marin.resources import Resources


@dataclasses.dataclass(frozen=True)
class Dependency:
    """A step that must be done before."""

    name: str
    fingerprint: str
    output_path: str


@dataclasses.dataclass(frozen=True)
class StepTask:
    """One step with every reference to others replaced by a path; its own output path is still open."""

    name: str
    fn: Callable[[Any], Any]
    config: Any
    output_path: str
    prefix: str
    fingerprint: str
    parts: Mapping[str, str]
    dependencies: tuple[Dependency, ...]
    description: str | None
    override_output_path: str | None
    is_resumable: bool
    resources: Resources | None = None
    """What to run on: what the step asks for, else its config's field `resources`."""

    def config_for(self, output_path: str) -> Any:
        """The config that `fn` gets when it is to write below `output_path`."""

        def refuse(step: object) -> str:
            raise AssertionError(f"{step!r} should have been replaced by a path")

        return resolve(self.config, output_path, self.prefix, refuse)


def make_task(node: Node, graph: Graph) -> StepTask:
    """The task of a step whose dependencies are done: where their outputs are read is looked up now."""
    step = node.step
    asked = step.resources or getattr(step.config, "resources", None)
    return StepTask(
        name=node.name,
        fn=step.fn,
        config=resolve(step.config, None, graph.prefix, lambda other: attempts.location(graph.node(other).output_path)),
        output_path=node.output_path,
        prefix=graph.prefix,
        fingerprint=node.fingerprint,
        parts=dict(node.parts),
        dependencies=tuple(Dependency(other.name, other.fingerprint, other.output_path) for other in node.dependencies),
        description=step.description,
        override_output_path=step.override_output_path,
        is_resumable=node.is_resumable,
        resources=asked if isinstance(asked, Resources) else None,
    )
