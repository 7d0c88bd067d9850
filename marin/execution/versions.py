"""Versions of a step as their output directories record them, and what differs between two.

A version is an output directory with its `.executor_info`, which holds every part of the config that went into the
fingerprint. Two versions are compared part by part; where a part is another step's output, the two steps behind it are
compared in turn, so that the answer is the setting that somebody changed and not a digest that changed with it.

Only records are read; nothing is run and nothing is written.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from marin.errors import MarinError
from marin.execution import attempts
from marin.execution.status import INFO_NAME, read_info
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
    for directory, folders, _ in os.walk(root):
        folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
        for folder in list(folders):
            path = os.path.join(directory, folder)
            if os.path.exists(os.path.join(path, INFO_NAME)):
                folders.remove(folder)  # outputs do not lie in outputs
                names.add(re.sub(r"-[0-9a-f]{8}$", "", os.path.relpath(path, root)))
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
    recorded = read_if_whole(path) if path else None
    if recorded is not None and recorded.fingerprint.startswith(digest):
        return recorded
    return find(name, digest)


def records_under(prefix: str) -> Lookup:
    """Looks versions up under `prefix`."""

    def find(name: str, digest: str) -> Version | None:
        version = read_if_whole(files.join(prefix, f"{name}-{digest}"))
        return version if version is not None and version.fingerprint.startswith(digest) else None

    return find


def read_if_whole(output_path: str) -> Version | None:
    """A record that helps to explain another; one that cannot be read is as good as none."""
    try:
        return read_version(output_path)
    except MarinError:
        return None
