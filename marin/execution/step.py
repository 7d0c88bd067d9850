"""Steps, and how one step's config refers to another's output.

A step is a function and its config. Making one does nothing: no file is touched and nothing is imported. A step, or a
path below it (`step / "train.jsonl.zst"`), anywhere inside another step's config makes it a dependency; when the step
runs, `fn` gets the config with every reference replaced by a path.
"""

import dataclasses
import functools
import operator
import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

from marin.errors import ConfigError, FingerprintError, MarinError
from marin.execution.status import ATTEMPTS_NAME
from marin.resources import Resources
from marin.storage import files

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class ExecutorStep:
    """One node of the graph: `fn(config)` writes below the output path that the config asks for.

    Args:
        name: where the output goes, as a relative path: `{prefix}/{name}-{first 8 hex of the fingerprint}`.
        fn: a function of one argument, defined at the top level of a file.
        config: usually a frozen dataclass. If its class sets `marin_resumable = True`, what an interrupted attempt has
            written is still there when `fn` runs again; otherwise `fn` starts with an empty directory.
        description: for people; no part of the step's identity.
        override_output_path: use exactly this path (a relative one is below the prefix).
        pip_dependency_groups: what a cluster installs before running the step; no part of its identity.
        resources: what to run on; no part of its identity.
    """

    name: str
    fn: Callable[[Any], Any]
    config: Any
    description: str | None = None
    override_output_path: str | None = None
    pip_dependency_groups: list[str] | None = None
    resources: Resources | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = self.name.split("/") if isinstance(self.name, str) else [""]
        if any(part in ("", ".", "..") or not part.isprintable() for part in parts) or "://" in self.name:
            raise ConfigError(f"the step name {self.name!r} is no relative path: use one such as 'corpora/python_docs'")
        override = self.override_output_path or ""
        if posixpath.normpath(override).split("/")[0] == "..":
            raise ConfigError(
                f"step `{self.name}`: `override_output_path` is {override!r}, outside the prefix: give a path below it, or an absolute one"
            )
        for field, path in (("name", self.name), ("override_output_path", override)):
            if ATTEMPTS_NAME in path.split("/"):
                raise ConfigError(
                    f"step `{self.name}`: `{field}` has a part {ATTEMPTS_NAME!r}, where attempts at steps are kept: give it another name"
                )
        if not callable(self.fn):
            raise ConfigError(f"step `{self.name}`: `fn` is {self.fn!r}: give a function of one argument, the config")
        if isinstance(self.fn, functools.partial) and _has_reference(self.fn):
            raise ConfigError(
                f"step `{self.name}`: `fn` is a functools.partial that holds a step or a path of one: only references in the"
                " config are replaced by paths, so give it there"
            )

    def __truediv__(self, name: str) -> "InputName":
        return InputName(self, name)

    def cd(self, name: str) -> "InputName":
        """The path `name` below this step's output."""
        return self / name

    def as_input_name(self) -> "InputName":
        return InputName(self)

    def nonblocking(self) -> "InputName":
        """This step's output path, without waiting for the step or running it."""
        return self.as_input_name().nonblocking()


@dataclasses.dataclass(frozen=True)
class InputName:
    """A path below a step's output, or (without a step) a path that no step makes."""

    step: ExecutorStep | None
    name: str | None = None
    block_on_step: bool = True

    @staticmethod
    def hardcoded(path: str) -> "InputName":
        """A path as it is, a relative one below the prefix. Its identity is its name: a change of content goes unseen."""
        return InputName(None, path)

    def __truediv__(self, name: str) -> "InputName":
        joined = posixpath.join(self.name, name) if self.name else name
        return dataclasses.replace(self, name=joined)

    def cd(self, name: str) -> "InputName":
        return self / name

    def nonblocking(self) -> "InputName":
        """The same path, part of the identity of what uses it, but neither waited for nor run."""
        return dataclasses.replace(self, block_on_step=False)


@dataclasses.dataclass(frozen=True)
class OutputName:
    """The output path of the step whose config holds this, or a path below it."""

    name: str | None = None


@dataclasses.dataclass(frozen=True)
class VersionedValue(Generic[T]):
    """Stands for `value`. The whole config is versioned, so this changes nothing; it is accepted for compatibility."""

    value: T


def has_versioned(config: Any) -> bool:
    """Whether a field of the config is versioned: its values are known, and can be checked, when it is made again for its step."""
    return any(isinstance(getattr(config, field.name), VersionedValue) for field in dataclasses.fields(config))


def this_output_path(name: str | None = None) -> str:
    """The output path of the step that the config belongs to; typed as the string that it becomes."""
    return cast(str, OutputName(name))


Input = str | InputName | ExecutorStep
"""Where something that a step reads lies: a path or URL, a step that makes it, or a place below a step's output."""


def output_path_of(step: ExecutorStep, name: str | None = None) -> InputName:
    """The output path of `step`, or a path below it."""
    return InputName(step, name)


def versioned(value: T) -> T:
    """`value`, marked as part of the step's identity (all values are); typed as the value that it stands for."""
    return cast(T, VersionedValue(value))


def placement(**field_options: Any) -> Any:
    """A dataclass field that says where or how fast the step runs, not what it makes: no part of its identity.

    Takes what `dataclasses.field` takes: `num_workers: int = placement(default=4)`.
    """
    metadata = {**field_options.pop("metadata", {}), "marin.placement": True}
    return dataclasses.field(metadata=metadata, **field_options)


def added_later(*, default: Any, **field_options: Any) -> Any:
    """A dataclass field that a config got after people had outputs of it: no part of the identity while it has its default.

    What was made before the field was there was made as with the default, and stays where it is.
    """
    metadata = {**field_options.pop("metadata", {}), "marin.added_later": True}
    return dataclasses.field(default=default, metadata=metadata, **field_options)


def inputs_of(config: object) -> list[InputName]:
    """Every reference to a step inside `config`, in order.

    Raises:
        FingerprintError: a part of the config contains itself.
    """
    found: list[InputName] = []
    _collect_inputs(config, found, set())
    return found


def _has_reference(value: object) -> bool:
    if isinstance(value, ExecutorStep | InputName | OutputName):
        return True
    return any(_has_reference(child) for child in _children(value))


def _collect_inputs(value: object, found: list[InputName], around: set[int]) -> None:
    if isinstance(value, ExecutorStep):
        found.append(value.as_input_name())
    elif isinstance(value, InputName):
        if value.step is not None:
            found.append(value)
    else:
        identity = id(value)
        if identity in around:
            raise FingerprintError(f"a {type(value).__name__} in a config contains itself: a config must be a tree")
        around.add(identity)
        for child in _children(value):
            if type(child) not in _LEAVES:
                _collect_inputs(child, found, around)
        around.discard(identity)


def resolve(config: Any, output_path: str | None, prefix: str, path_of: Callable[[ExecutorStep], str]) -> Any:
    """`config` with every reference replaced by a path; parts without references stay the same objects.

    `output_path` None leaves the step's own path open, for whoever knows which attempt will write: resolve again.
    """
    match config:
        case ExecutorStep():
            return path_of(config)
        case InputName(step=None, name=name):
            return files.join(prefix, name or "")
        case InputName(step=ExecutorStep() as step, name=name):
            return files.join(path_of(step), name) if name else path_of(step)
        case OutputName(name=name):
            if output_path is None:
                return config
            return files.join(output_path, name) if name else output_path
        case VersionedValue(value=value):
            return resolve(value, output_path, prefix, path_of)
    before = list(_children(config))
    after = [resolve(child, output_path, prefix, path_of) for child in before]
    if all(old is new for old, new in zip(before, after, strict=True)):
        return config
    return _with_children(config, after)


def _children(value: Any) -> Iterable[Any]:
    """The values directly inside `value`, in the order in which `_with_children` takes them back."""
    children_of = _CHILDREN_OF.get(type(value))
    if children_of is None:
        children_of = _CHILDREN_OF[type(value)] = _children_getter(value)
    return children_of(value)


def _children_getter(value: Any) -> Callable[[Any], Iterable[Any]]:
    """What gives the children of `value` and of every other value of its type."""
    if isinstance(value, type):
        return _no_children
    if dataclasses.is_dataclass(value):
        kind: type = type(value)
        names = _init_fields(kind)
        if len(names) > 1:
            return operator.attrgetter(*names)  # one call for all fields
        return lambda value: [getattr(value, name) for name in names]
    if isinstance(value, Mapping):
        return lambda value: value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return iter
    if isinstance(value, functools.partial):
        return lambda value: (value.args, value.keywords)
    return _no_children


def _no_children(value: Any) -> tuple[()]:
    return ()


# Configs hold the same few types in thousands of steps: what a type's children are is worked out once.
_LEAVES = frozenset({type(None), bool, int, float, str, bytes})
_CHILDREN_OF: dict[type, Callable[[Any], Iterable[Any]]] = dict.fromkeys(_LEAVES, _no_children)


@functools.cache
def _init_fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def _with_children(value: Any, children: list[Any]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dict(zip(_init_fields(type(value)), children, strict=True))
        try:
            return dataclasses.replace(value, **fields)
        except (TypeError, ValueError) as error:
            if isinstance(error, MarinError):  # what its `__post_init__` has to say
                raise
            raise ConfigError(
                f"a {type(value).__name__} in a config cannot be made again with a path in place of a step ({error}): "
                "let its `__init__` take its fields and nothing else, and its `__post_init__` take a str where a step can stand"
            ) from error
    if isinstance(value, Mapping):
        return dict(zip(value, children, strict=True))
    if isinstance(value, functools.partial):
        return functools.partial(value.func, *children[0], **children[1])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*children)
    return type(value)(children)
