"""The graph of steps: identities, output paths and order, worked out without touching the storage."""

import dataclasses
import posixpath
from collections.abc import Iterable, Mapping, Sequence

from marin.errors import ConfigError, ExecutionError, FingerprintCollisionError, FingerprintError
from marin.execution.fingerprint import Identity, first_difference, identify
from marin.execution.redaction import without_secrets
from marin.execution.step import ExecutorStep, InputName, inputs_of
from marin.storage import files


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
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
    def parts(self) -> Mapping[str, str]:
        """What went into the fingerprint, by its place in the config, for people."""
        return self.identity.parts

    @property
    def override_output_path(self) -> str | None:
        return self.step.override_output_path

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
        self._prefix_slash = files.join(prefix, "")
        self._by_step: dict[int, Node] = {}
        self._by_path: dict[str, Node] = {}
        if isinstance(steps, ExecutorStep):
            raise ConfigError(f"the steps are one step, `{steps.name}`: pass a list of steps, as in steps=[step]")
        if not isinstance(steps, Iterable):
            raise ConfigError(f"{type(steps).__name__} is no list of steps: pass a list of steps, as in steps=[step]")
        targets = list(steps)
        for step in targets:
            if not isinstance(step, ExecutorStep):
                is_list = isinstance(step, Sequence) and not isinstance(step, str)
                advice = "put a `*` before it, as in steps=[*first, *second]" if is_list else "pass a list of steps"
                raise ConfigError(f"a {type(step).__name__} stands among the steps, no ExecutorStep: {advice}")
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

    def _add_with_inputs(self, target: ExecutorStep) -> None:
        """Adds steps after their inputs, with a stack of our own as chains may be longer than Python's."""
        if id(target) in self._by_step:
            return
        stack = [(target, inputs := inputs_of(target.config), iter(inputs))]
        open_steps = {id(target)}
        while stack:
            step, inputs, waiting = stack[-1]
            for reference in waiting:
                needed = reference.step
                if needed is None or id(needed) in self._by_step:
                    continue
                if id(needed) in open_steps:
                    raise ExecutionError(
                        f"step `{needed.name}` depends on itself: a graph of steps must not have circles"
                    )
                open_steps.add(id(needed))
                stack.append((needed, further := inputs_of(needed.config), iter(further)))
                break
            else:
                stack.pop()
                open_steps.discard(id(step))
                self._add(step, inputs)

    def _add(self, step: ExecutorStep, inputs: Sequence[InputName]) -> None:
        identity = identify(step, self._fingerprint_of)
        path = self._path_of(step, identity.fingerprint)
        blocking = [self._by_step[id(ref.step)] for ref in inputs if ref.block_on_step]
        node = Node(step, identity, path, tuple(dict.fromkeys(blocking)))
        known = self._by_path.setdefault(path, node)
        if known is not node and known.fingerprint != node.fingerprint:
            raise FingerprintCollisionError(
                f"two different steps, `{known.name}` and `{node.name}`, would write {node.output_path} "
                f"({describe_difference(known.identity.parts, node.identity.parts)}): "
                "give one of them another name or `override_output_path`"
            )
        self._by_step[id(step)] = known

    def _fingerprint_of(self, step: ExecutorStep) -> str:
        node = self._by_step.get(id(step))
        if node is None:
            raise FingerprintError(
                f"a config refers to step `{step.name}` in a field that its `__init__` does not take (`init=False`), where no path"
                " can be put in its place: make it a field like the others"
            )
        return node.identity.fingerprint

    def _path_of(self, step: ExecutorStep, fingerprint: str) -> str:
        if step.override_output_path:
            path = files.join(self.prefix, step.override_output_path).rstrip("/")
            # Two spellings of one place must be found out to be one.
            return posixpath.normpath(path) if "://" not in path else path
        return f"{self._prefix_slash}{step.name}-{fingerprint[:8]}"

    def _refuse_nested_outputs(self) -> None:
        paths = {node.output_path: node for node in self.nodes}
        free: set[str] = set()  # directories that are known to lie in no output; thousands of steps share a few
        for path, node in paths.items():
            parent = path.rpartition("/")[0]
            passed = []
            while parent and parent not in free:
                if parent in paths:
                    raise ExecutionError(
                        f"step `{node.name}` would write {path}, inside the output of step `{paths[parent].name}`: "
                        "give one of them another `override_output_path`"
                    )
                passed.append(parent)
                parent = parent.rpartition("/")[0]
            free.update(passed)


def describe_difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """The first difference of two steps' parts, as records have them, as a clause of a sentence."""
    difference = first_difference(without_secrets(old), without_secrets(new))
    if difference is None:
        return "no recorded part differs, but a value that records hide may, such as a token"
    return "`{}` was {} and is {}".format(*difference)
