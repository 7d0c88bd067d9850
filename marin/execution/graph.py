"""The graph of steps: identities, output paths and order, worked out without touching the storage."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from marin.errors import ConfigError, ExecutionError, FingerprintCollisionError
from marin.execution.fingerprint import Identity, first_difference, identify
from marin.execution.step import ExecutorStep, inputs_of, resolve
from marin.storage import files


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A step with its place in the graph; `dependencies` are the steps that must be done before it."""

    step: ExecutorStep
    identity: Identity
    output_path: str
    dependencies: tuple["Node", ...]

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def fingerprint(self) -> str:
        return self.identity.fingerprint

    @property
    def is_resumable(self) -> bool:
        """Whether `fn` continues from what an unfinished attempt has written."""
        return bool(getattr(type(self.step.config), "marin_resumable", False))


class Graph:
    """All steps that `steps` need, under one prefix.

    Equal steps (one output path and one fingerprint) become one node.

    Raises:
        FingerprintCollisionError: different steps have one output path.
        FingerprintError: a config value has no stable encoding.
        ExecutionError: one step's output lies inside another's, or steps depend on each other in a circle.
    """

    def __init__(self, steps: Iterable[ExecutorStep], prefix: str):
        self.prefix = prefix
        self._by_step: dict[int, Node] = {}
        self._by_path: dict[str, Node] = {}
        targets = list(steps)
        for step in targets:
            if not isinstance(step, ExecutorStep):
                raise ConfigError(f"{step!r} is no ExecutorStep: pass a list of steps")
            self._add_with_inputs(step)
        self.targets = list(dict.fromkeys(self.node(step) for step in targets))
        self.nodes = self.with_dependencies(self.targets)
        self._refuse_nested_outputs()

    def node(self, step: ExecutorStep) -> Node:
        """The node of a step that the graph was built from or that one of those refers to."""
        return self._by_step[id(step)]

    def with_dependencies(self, nodes: Sequence[Node]) -> list[Node]:
        """`nodes` and all that they depend on, each after what it depends on."""
        wanted, waiting = set(nodes), list(nodes)
        while waiting:
            for dependency in waiting.pop().dependencies:
                if dependency not in wanted:
                    wanted.add(dependency)
                    waiting.append(dependency)
        return [node for node in self._by_path.values() if node in wanted]

    def resolved_config(self, node: Node) -> Any:
        """The config that `fn` gets: every reference replaced by a path."""
        return resolve(node.step.config, node.output_path, self.prefix, lambda step: self.node(step).output_path)

    def _add_with_inputs(self, target: ExecutorStep) -> None:
        """Adds steps after their inputs, with a stack of our own as chains may be longer than Python's."""
        open_steps: set[int] = set()
        stack: list[tuple[ExecutorStep, Iterator[ExecutorStep]]] = []

        def enter(step: ExecutorStep) -> None:
            if id(step) in open_steps:
                raise ExecutionError(f"step `{step.name}` depends on itself: a graph of steps must not have circles")
            if id(step) not in self._by_step:
                open_steps.add(id(step))
                stack.append((step, (reference.step for reference in inputs_of(step.config) if reference.step)))

        enter(target)
        while stack:
            step, inputs = stack[-1]
            following = next(inputs, None)
            if following is not None:
                enter(following)
            else:
                stack.pop()
                open_steps.discard(id(step))
                self._add(step)

    def _add(self, step: ExecutorStep) -> None:
        identity = identify(step, lambda other: self.node(other).fingerprint)
        path = files.join(self.prefix, step.override_output_path or f"{step.name}-{identity.fingerprint[:8]}")
        blocking = [self.node(ref.step) for ref in inputs_of(step.config) if ref.step and ref.block_on_step]
        node = Node(step, identity, path.rstrip("/"), tuple(dict.fromkeys(blocking)))
        known = self._by_path.setdefault(node.output_path, node)
        if known.fingerprint != node.fingerprint:
            raise FingerprintCollisionError(
                f"two different steps, `{known.name}` and `{node.name}`, would write {node.output_path} "
                f"({describe_difference(known.identity.parts, node.identity.parts)}): "
                "give one of them another name or `override_output_path`"
            )
        self._by_step[id(step)] = known

    def _refuse_nested_outputs(self) -> None:
        paths = {node.output_path: node for node in self.nodes}
        for path, node in paths.items():
            parent = path.rpartition("/")[0]
            while len(parent) >= len(self.prefix) and parent:
                if parent in paths:
                    raise ExecutionError(
                        f"step `{node.name}` would write {path}, inside the output of step `{paths[parent].name}`: "
                        "give one of them another `override_output_path`"
                    )
                parent = parent.rpartition("/")[0]


def describe_difference(old: dict[str, str], new: dict[str, str]) -> str:
    """The first difference of two steps' parts as a clause of a sentence."""
    difference = first_difference(old, new)
    if difference is None:
        return "no recorded part differs"
    return "`{}` was {} and is {}".format(*difference)
