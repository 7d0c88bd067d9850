"""What differs between two entries: settings, figures and surroundings, and which earlier entry one is nearest to."""

import dataclasses
import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marin.speedrun.board.entries import Entry
from marin.speedrun.board.file_names import file_of

_CANDIDATES = 8
_MAX_SETTINGS = 600
_CONFIGS = ("model_config", "train_config", "resources")
_SURROUNDINGS = (
    "tokenized_dataset", "device_name", "platform", "num_devices", "num_chips", "device_flops", "git_commit", "git_dirty", "seed",
    "resumed", "num_resumes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Change:
    """One setting that differs; None where a side does not have it."""

    name: str
    before: str | None
    after: str | None


@dataclasses.dataclass(frozen=True)
class Parent:
    """The entry that another is compared with; `is_stated` where its results file names it as its parent."""

    entry: Entry
    is_stated: bool


def settings_of(entry: Entry) -> dict[str, str]:
    """Everything that the first run's file says it was told to do, as `section.key` -> JSON; {} for rows of a list."""
    info = entry.rows[0].details
    flat: dict[str, str] = {}
    if not info:
        return flat
    for section in _CONFIGS:
        _flatten(section, info.get(section), flat)
    for name in _SURROUNDINGS:
        if info.get(name) is not None:
            _flatten(name, info[name], flat)
    return flat


def _flatten(prefix: str, value: Any, flat: dict[str, str]) -> None:
    if isinstance(value, dict) and value:
        for key, item in sorted(value.items()):
            _flatten(f"{prefix}.{key}", item, flat)
    elif value is not None and len(flat) < _MAX_SETTINGS:
        flat[prefix] = value if isinstance(value, str) else _json_text(value)


def _json_text(value: Any) -> str:
    """`json.dumps`, which takes ten times as long for a whole number."""
    return str(value) if type(value) is int else json.dumps(value, sort_keys=True)


def _by_name(ordered: Sequence[Entry]) -> dict[str, Entry]:
    """Entries by what a results file may call its parent: an entry's key or name, a run's, its file's; of several the first."""
    runs = [(row.run_name, entry) for entry in reversed(ordered) for row in entry.rows]
    return {
        **{file_of(name): entry for name, entry in runs},
        **dict(runs),
        **{entry.name: entry for entry in reversed(ordered)},
        **{entry.key: entry for entry in ordered},
    }


def _stated_parent(entry: Entry) -> object:
    """What the first run's file names as its parent."""
    return entry.rows[0].details.get("parent") if _may_state_parent(entry) else None


def _may_state_parent(entry: Entry) -> bool:
    return '"parent"' in entry.rows[0].details_json  # to parse it takes longer than to look


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """Settings that differ, in the order of their names."""
    names = sorted(before.keys() | after.keys())
    return [Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def find_parents(entries: Iterable[Entry], settings: Mapping[str, Mapping[str, str]]) -> dict[str, Parent]:
    """For each entry's key the entry that it is best compared with: the stated parent, else the nearest earlier one.

    Nearest is the one with the fewest different settings, among the last few of the same family and of the same size, so that
    the search is linear in the number of entries.
    """
    entries = list(entries)
    if not any(settings.values()) and not any(_may_state_parent(entry) for entry in entries):  # rows of lists
        return {}
    ordered = sorted(entries, key=lambda entry: (entry.date or "", entry.name, entry.key))
    by_name = _by_name(ordered)
    recent: defaultdict[object, deque[Entry]] = defaultdict(lambda: deque(maxlen=_CANDIDATES))
    items = {entry.key: frozenset(settings[entry.key].items()) for entry in ordered}
    parents: dict[str, Parent] = {}
    for entry in ordered:
        stated = _stated_parent(entry)
        named = by_name.get(stated) if isinstance(stated, str) else None
        places = [place for place in (("family", entry.family), ("size", entry.model_size)) if place[1] is not None]
        if named is not None and named.key != entry.key:
            parents[entry.key] = Parent(named, is_stated=True)
        elif items[entry.key] and entry.date is not None:
            found = {other.key: other for place in places for other in recent[place] if other.key != entry.key}
            nearest = min(
                found.values(), default=None, key=lambda other: (len(items[entry.key] ^ items[other.key]), other.key)
            )
            if nearest is not None:
                parents[entry.key] = Parent(nearest, is_stated=False)
        if items[entry.key] and entry.date is not None:
            for place in places:
                recent[place].append(entry)
    return parents
