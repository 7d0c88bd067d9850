"""Steps, and how one step's config refers to another's output.

A step is a function and its config. Making one does nothing: no file is touched and nothing is imported. A step, or a
path below it (`step / "train.jsonl.zst"`), anywhere inside another step's config makes it a dependency; when the step
runs, `fn` gets the config with every reference replaced by a path.
"""

import dataclasses
import functools
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from marin.errors import ConfigError, FingerprintError
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
        if any(part in ("", ".", "..") or "\n" in part for part in parts) or "://" in self.name:
            raise ConfigError(f"the step name {self.name!r} is no relative path: use one such as 'corpora/python_docs'")
        if not callable(self.fn):
            raise ConfigError(f"step `{self.name}`: `fn` is {self.fn!r}: give a function of one argument, the config")

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


def this_output_path(name: str | None = None) -> str:
    """The output path of the step that the config belongs to; typed as the string that it becomes."""
    return cast(str, OutputName(name))


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


def inputs_of(config: object, _around: tuple[int, ...] = ()) -> Iterator[InputName]:
    """Every reference to a step inside `config`, in order.

    Raises:
        FingerprintError: a part of the config contains itself.
    """
    if id(config) in _around:
        raise FingerprintError(f"a {type(config).__name__} in a config contains itself: a config must be a tree")
    if isinstance(config, ExecutorStep):
        yield config.as_input_name()
    elif isinstance(config, InputName):
        if config.step is not None:
            yield config
    else:
        for child in _children(config):
            yield from inputs_of(child, (*_around, id(config)))


def resolve(config: Any, output_path: str, prefix: str, path_of: Callable[[ExecutorStep], str]) -> Any:
    """`config` with every reference replaced by a path; parts without references stay the same objects."""
    match config:
        case ExecutorStep():
            return path_of(config)
        case InputName(step=None, name=name):
            return files.join(prefix, name or "")
        case InputName(step=ExecutorStep() as step, name=name):
            return files.join(path_of(step), name) if name else path_of(step)
        case OutputName(name=name):
            return files.join(output_path, name) if name else output_path
        case VersionedValue(value=value):
            return resolve(value, output_path, prefix, path_of)
    before = _children(config)
    after = [resolve(child, output_path, prefix, path_of) for child in before]
    if all(old is new for old, new in zip(before, after, strict=True)):
        return config
    return _with_children(config, after)


def _children(value: Any) -> list[Any]:
    """The values directly inside `value`, in the order in which `_with_children` takes them back."""
    if isinstance(value, type):
        return []
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value) if field.init]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.args, value.keywords]
    return []


def _with_children(value: Any, children: list[Any]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **dict(zip(names, children, strict=True)))
    if isinstance(value, Mapping):
        return dict(zip(value, children, strict=True))
    if isinstance(value, functools.partial):
        return functools.partial(value.func, *children[0], **children[1])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*children)
    return type(value)(children)
