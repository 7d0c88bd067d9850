"""Why a step would run: what differs between its config and the closest version of it that is recorded.

A version is an output directory with its `.executor_info`, which holds every part of the config that went into the
fingerprint. Two versions are compared part by part; where a part is another step's output, the two steps behind it are
compared in turn, so that the answer is the setting that somebody changed and not a digest that changed with it.

Only records are read; nothing is run and nothing is written.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from marin.errors import ConfigError, MarinError, StorageError
from marin.execution import attempts, executor, provenance
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, Decision, decide, plan
from marin.execution.status import ERROR_NAME, INFO_NAME, read_info
from marin.execution.step import ExecutorStep
from marin.execution.task import make_task
from marin.storage import files

ABSENT = "(absent)"
_Kind = TypeVar("_Kind", dict[str, Any], list[Any])
_REFERENCE = re.compile(r"step (?P<name>.+)-(?P<digest>[0-9a-f]{8})/(?P<file>.*)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Version:
    """One form of a step: as an output directory records it, or as a graph has it."""

    name: str
    output_path: str
    fingerprint: str
    parts: Mapping[str, str]
    dependencies: Mapping[tuple[str, str], str]  # (name, first 8 digits of the fingerprint) -> output path
    status: str = ""
    date: str = ""


@dataclasses.dataclass(frozen=True)
class Change:
    """A part that differs; `inside` is how the step behind it differs, where the part is another version's output."""

    place: str
    old: str
    new: str
    inside: "Comparison | None" = None


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What differs between two versions; `note` says why nothing more can be said."""

    old: Version
    new: Version
    changes: tuple[Change, ...]
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What would be done about a step and why; `comparison` is with the closest version that is recorded, if any."""

    name: str
    output_path: str
    action: str
    reason: str
    comparison: Comparison | None = None
    failure: str | None = None


# --- records ------------------------------------------------------------------------------------------------------


def read_version(output_path: str) -> Version | None:
    """What is recorded in an output directory, or None when nothing is.

    Raises:
        ExecutionError: the record cannot be read.
    """
    info = read_info(output_path)
    if info is None:
        return None
    version = _of_kind(dict, info.get("version"))
    status = attempts.read_step_status(output_path)
    dependencies = zip(
        _of_kind(list, version.get("dependencies")), _of_kind(list, info.get("dependencies")), strict=False
    )
    return Version(
        name=str(info.get("name") or ""),
        output_path=output_path,
        fingerprint=str(info.get("fingerprint") or ""),
        parts={str(place): str(shown) for place, shown in _of_kind(dict, version.get("config")).items()},
        dependencies={
            (str(other["name"]), str(other["fingerprint"])[:8]): str(path)
            for other, path in dependencies
            if isinstance(other, dict) and "name" in other and "fingerprint" in other
        },
        status=status.value if status else "not run",
        date=str(info.get("start_date") or info.get("created_date") or ""),
    )


def _of_kind(kind: type[_Kind], value: object) -> _Kind:
    """A part of a record; an empty one where it is something else, as in a record that was changed by hand."""
    return value if isinstance(value, kind) else kind()


def recorded_versions(prefix: str, name: str) -> list[Version]:
    """The versions of step `name` under `prefix`, newest first; one whose record cannot be read has that as its status."""
    parent, _, base = name.rpartition("/")
    directory = files.join(prefix, parent) if parent else prefix
    versions = []
    for entry in files.list_dir(directory):
        if not re.fullmatch(re.escape(base) + "-[0-9a-f]{8}", entry):
            continue
        path = files.join(directory, entry)
        try:
            version = read_version(path)
        except MarinError as error:
            version = Version(name, path, "", {}, {}, status=f"unreadable: {error}")
        if version is not None:
            versions.append(version)
    return sorted(versions, key=lambda version: version.date, reverse=True)


def recorded_names(prefix: str) -> list[str]:
    """The names of all steps with a record under a local prefix; [] on other stores, where looking would take long."""
    if not files.is_local(prefix):
        return []
    root = str(files.local_path(prefix))
    names = set()
    for directory, folders, names_here in os.walk(root):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for folder in list(folders):
            path = os.path.join(directory, folder)
            if os.path.exists(os.path.join(path, INFO_NAME)):
                folders.remove(folder)  # outputs do not lie in outputs
                names.add(re.sub(r"-[0-9a-f]{8}$", "", os.path.relpath(path, root)))
        del names_here
    return sorted(names)


# --- comparing ----------------------------------------------------------------------------------------------------

Lookup = Callable[[str, str], Version | None]


def changed_parts(old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    """All parts that differ, in the order of the new config and then of the old."""
    places = dict.fromkeys([*new, *old])
    return [
        Change(place, old.get(place, ABSENT), new.get(place, ABSENT))
        for place in places
        if old.get(place) != new.get(place)
    ]


def compare(old: Version, new: Version, find_old: Lookup, find_new: Lookup) -> Comparison:
    """How two versions differ, followed into the steps that they read.

    Args:
        find_old, find_new: the version of another step by name and first 8 digits of the fingerprint, or None if it is
            not known any more.
    """
    return _compare(old, new, find_old, find_new, set())


def _compare(old: Version, new: Version, find_old: Lookup, find_new: Lookup, met: set[tuple[str, str]]) -> Comparison:
    met.add((old.fingerprint, new.fingerprint))
    changes = []
    for change in changed_parts(old.parts, new.parts):
        before, after = _REFERENCE.fullmatch(change.old), _REFERENCE.fullmatch(change.new)
        if before and after and before["name"] == after["name"] and before["digest"] != after["digest"]:
            inside = _compare_references(before, after, old, new, find_old, find_new, met)
            change = dataclasses.replace(change, inside=inside)
        changes.append(change)
    note = None
    if not old.parts:
        note = f"{old.output_path} does not record its config part by part"
    elif not changes and old.fingerprint != new.fingerprint:
        note = "no recorded part differs: a value that records hide, such as a token, does"
    return Comparison(old, new, tuple(changes) if old.parts else (), note)


def _compare_references(
    before: re.Match[str],
    after: re.Match[str],
    old: Version,
    new: Version,
    find_old: Lookup,
    find_new: Lookup,
    met: set[tuple[str, str]],
) -> Comparison:
    name = before["name"]
    was = _dependency(old, name, before["digest"], find_old)
    now = _dependency(new, name, after["digest"], find_new)
    blank = Version(name, "", "", {}, {})
    if was is None or now is None:
        gone = f"{name}-{(before if was is None else after)['digest']}"
        return Comparison(was or blank, now or blank, (), f"the record of {gone} is not there")
    if (was.fingerprint, now.fingerprint) in met:
        return Comparison(was, now, (), "as said above")
    return _compare(was, now, find_old, find_new, met)


def _dependency(version: Version, name: str, digest: str, find: Lookup) -> Version | None:
    path = version.dependencies.get((name, digest))
    recorded = _read_quietly(path) if path else None
    if recorded is not None and recorded.fingerprint.startswith(digest):
        return recorded
    return find(name, digest)


def records_under(prefix: str) -> Lookup:
    """Looks versions up under `prefix`."""

    def find(name: str, digest: str) -> Version | None:
        version = _read_quietly(files.join(prefix, f"{name}-{digest}"))
        return version if version is not None and version.fingerprint.startswith(digest) else None

    return find


def _read_quietly(output_path: str) -> Version | None:
    """A record that helps to explain another; one that cannot be read is as good as none."""
    try:
        return read_version(output_path)
    except MarinError:
        return None


# --- steps of a graph ---------------------------------------------------------------------------------------------


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
        action, reason = _WOULD[decision.action], decision.reason
        if decision.action is Action.SKIP:
            return Explanation(node.name, node.output_path, action, reason)
    known = _read_quietly(node.output_path)  # where it cannot be read, the decision says so
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


_WOULD = {
    Action.RUN: "would run",
    Action.SKIP: "would skip",
    Action.WAIT: "would wait",
    Action.BLOCKED: "would not run",
}


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


# --- experiment files ---------------------------------------------------------------------------------------------


def with_steps_of(module: str, use: Callable[[Sequence[ExecutorStep]], None]) -> None:
    """Runs an experiment (a module's name or a .py file) up to its `executor_main`, whose steps go to `use` instead.

    `use` is called while the experiment still is `__main__`, where the code of its functions is found. What the
    experiment prints goes to stderr.

    Raises:
        ConfigError: there is no such module, or it never calls `executor_main`.
    """
    called = False

    def handler(steps: Sequence[ExecutorStep], description: str | None) -> None:
        nonlocal called
        called = True
        use(steps)

    token = executor.intercept.set(handler)
    try:
        with _as_started_by_python(module), contextlib.redirect_stdout(sys.stderr):
            if module.endswith(".py"):
                runpy.run_path(module, run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not called and ended.code not in (None, 0):
            raise ConfigError(f"{module} ended with {ended.code!r} before it called executor_main") from None
    except Exception as error:
        if called or isinstance(error, MarinError):
            raise
        raise ConfigError(what_failed(module, error)) from error
    finally:
        executor.intercept.reset(token)
    if not called:
        raise ConfigError(
            f'{module} never calls executor_main: give an experiment that ends with `if __name__ == "__main__": '
            "executor_main(steps=[...])`"
        )


def what_failed(name: str, error: Exception) -> str:
    """One line on an error that a user's own .py file or module has raised while it was read."""
    if isinstance(error, SyntaxError):
        place, line, text = error.filename, error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if "importlib" not in frame.filename][-1]  # which looks for modules
        place, line, text = last.filename, last.lineno, str(error)
    start = name if name.endswith(".py") else f"-m {name}"
    return f"{name} fails: {type(error).__name__} in {place}, line {line}: {text}; `python {start}` shows how it came to that"


def is_experiment(name: str) -> bool:
    """Whether `name` is a .py file or the name of a module that Python finds from here."""
    if name.endswith(".py"):
        return os.path.isfile(name)
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    with _working_directory_first():
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return False
    return spec is not None and spec.origin is not None and spec.origin.endswith(".py")


@contextlib.contextmanager
def _as_started_by_python(module: str) -> Iterator[None]:
    arguments = sys.argv
    sys.argv = [module]  # the experiment's own flags are not ours
    try:
        with _working_directory_first(os.path.dirname(os.path.abspath(module)) if module.endswith(".py") else None):
            yield
    finally:
        sys.argv = arguments


@contextlib.contextmanager
def _working_directory_first(directory: str | None = None) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    if directory is not None:
        sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path[:] = before
