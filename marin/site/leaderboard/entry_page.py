"""The page of an entry: what it claims, what was checked, what it is near to, and how to make it again."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marin.data.core_tasks import CORE_TASKS, centered
from marin.site import wording
from marin.site.leaderboard.curves import Curve
from marin.site.leaderboard.differences import Change, Parent, differences
from marin.site.leaderboard.measures import COSTS, MEASURES, QUALITIES, Measure
from marin.site.leaderboard.summary import EntrySummary
from marin.speedrun.board.entries import Entry
from marin.speedrun.verdict import DOES_NOT_PROVE, RUNGS, RungVerdict

_MAX_CHANGES = 80
_EVIDENCE = ("core", "bits_per_byte", "training_time")
_SECTIONS = {"model_config": "Model", "train_config": "Training", "resources": "Resources"}
_MODULE = re.compile(r"[A-Za-z_]\w*(/[A-Za-z_]\w*)*", re.ASCII)  # a folder that Python can import
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_NO_COMMAND = (
    "Its files do not say of which commit and module it is, so there is no command that makes exactly this again."
)
_LISTED = "It is a row of a list: what would train it again is where the list is from, and no command of this repository does."

OUTCOME_MARKS = {"passed": "✓", "failed": "✕", "open": "○"}
OUTCOME_WORDS = {"passed": "passed", "failed": "failed", "open": "not checked"}
OPEN_WORDS = {
    "parsed": "The file was not read.",
    "arithmetic": "Nothing was recomputed.",
    "log": "No log came with it.",
    "statistics": "Too few runs for the track's test, or none was claimed.",
    "re-evaluated": "Nobody else has scored its checkpoint.",
    "re-run": "Nobody else has trained it again.",
}
NOTICES = {
    "held": "Listed without a rank",
    "withdrawn": "Withdrawn by its author",
    "challenged": "Challenged: somebody doubts it, and it keeps its rank until that is settled",
    "ranked": "",
}


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where an entry stands on one track."""

    track: Any
    entry: EntrySummary
    measures: Mapping[str, Measure]
    """The figures as the track's page writes them."""
    statistics: RungVerdict
    """What the track's test says, beside its other entries."""
    gain: str | None = None
    """How much cheaper it is than what else is as good, where that is said."""


@dataclasses.dataclass(frozen=True)
class EntryContext:
    """What the page shows beside the entry itself."""

    standings: Sequence[Standing]
    neighbours: Sequence[EntrySummary]
    parent: Parent | None
    settings: Mapping[str, Mapping[str, str]]  # of every entry, by its key
    curves: Sequence[Curve]
    module: str = "main"  # of the directory that its results lie in


def page_values(entry: Entry, context: EntryContext) -> dict[str, Any]:
    """Everything that the template names."""
    standing = context.standings[0]
    summary, track = standing.entry, standing.track
    info = entry.rows[0].details
    parent = context.parent
    changes: list[Change] = []
    if parent is not None:
        changes = differences(context.settings[parent.entry.key], context.settings[entry.key])
    command = command_of(entry, context.module)
    others = [one.key for one in QUALITIES if one.key != track["metric"]]
    shown = [*others, *(one.key for one in COSTS), "mfu"]
    return {
        "entry": summary,
        "standings": context.standings,
        "quality": MEASURES[track["metric"]],
        "cost": standing.measures[track["cost"]],
        "shown_measures": [standing.measures[key] for key in shown],
        "rungs": _rungs(entry, context.standings),
        "does_not_prove": DOES_NOT_PROVE,
        "outcome_marks": OUTCOME_MARKS,
        "outcome_words": OUTCOME_WORDS,
        "open_words": OPEN_WORDS,
        "notices": NOTICES,
        "command": command,
        "no_command": _LISTED if entry.rows[0].listed else _NO_COMMAND,
        "neighbours": context.neighbours,
        "compared": ",".join(other["key"] for other in context.neighbours[:8]),
        "curves": context.curves,
        "runs": [_run(row, track) for row in entry.rows],
        "spread_words": spread_words(summary, len(entry.rows)),
        "core_tasks": core_table(info),
        "core_version": info.get("core_version"),
        "evidence": evidence_table(entry.evidence),
        "parent": None if parent is None else {
            "key": parent.entry.key, "name": parent.entry.name, "page": f"entries/{parent.entry.key}.html", "is_stated": parent.is_stated
        },
        "changes": changes[:_MAX_CHANGES],
        "num_changes": len(changes),
        "settings": grouped(context.settings[entry.key], info),
        "sample": entry.rows[0].sample,
    }  # fmt: skip


def _rungs(entry: Entry, standings: Sequence[Standing]) -> list[tuple[RungVerdict, str | None]]:
    """The rungs in their order; statistics for each of the entry's tracks, with its title, where they do not say the same."""
    found: list[tuple[RungVerdict, str | None]] = []
    for rung in RUNGS:
        if rung == "statistics" and any(one.statistics != standings[0].statistics for one in standings):
            found += [(one.statistics, one.track["title"]) for one in standings]
        else:
            found.append((entry.verdict[rung], None))
    return found


def command_of(entry: Entry, module: str) -> str | None:
    """One command that trains it again, or None where the files do not say enough for one.

    Only a name that can be a module is put into it: the output of a step, `NAME-speedrun_results-1a2b3c4d`, is none, and no shell
    reads anything else out of it.
    """
    row = entry.rows[0]
    folder = row.source.rpartition("/")[0].removeprefix("experiments/speedrun/")
    commit = row.git_commit or ""
    if row.listed or not _COMMIT.fullmatch(commit) or not _MODULE.fullmatch(f"{folder}/{module}"):
        return None
    name = folder.replace("/", ".")
    return f"git checkout {commit[:12]} && python -m experiments.speedrun.{name}.{module} --force_run_failed true"


def spread_words(entry: EntrySummary, num_rows: int) -> str:
    """What the interval says, in a sentence; a list may give one row for the mean of several runs."""
    spread = entry["spread"]
    if spread is None:
        return "No figure of the track's metric is stated."
    runs = "One run" if spread["n"] == 1 else f"{spread['n']} runs that differ in their seeds alone"
    if num_rows < spread["n"]:
        runs = (
            f"The list that it is from says that this is the mean of {spread['n']} runs, which are not given one by one"
        )
    if spread["low"] is None or spread["high"] is None:
        return f"{runs}. One run alone says nothing about the noise, and the track has no measured noise, so there is no interval."
    source = "the runs themselves" if spread["noise_from"] == "runs" else spread["noise_from"]
    spread_text = "" if spread["sd"] is None else f", standard deviation {spread['sd']:.2g}"
    return (
        f"{runs}: mean {spread['mean']:.5g}{spread_text}, 95 % interval {spread['low']:.5g} to {spread['high']:.5g}. "
        f"The noise is from {wording.clean(str(source), 200)}."
    )


def evidence_table(evidence: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the same change reaches at other depths, a line a depth; figures that no depth states have no column."""
    if not evidence:
        return None
    stated = [key for key in _EVIDENCE if any(line[key] is not None for line in evidence)]
    return {
        "columns": ["Depth", "Runs", *(MEASURES[key].title for key in stated)],
        "lines": [
            [str(line["depth"]), str(line["runs"]), *(MEASURES[key].text(line[key]) or "—" for key in stated)]
            for line in evidence
        ],
    }


def core_table(info: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The first run's tasks of CORE: label, items, accuracy, and what it adds to CORE before the mean, by the baselines of its version."""
    lines: list[tuple[str, ...]] = []
    for label, task in CORE_TASKS.items():
        counts = (info.get("core") or {}).get("tasks", {}).get(label)
        if counts is not None and 0 <= counts["num_correct"] <= counts["num_items"] > 0:
            accuracy = counts["num_correct"] / counts["num_items"]
            share = centered(accuracy, task.baseline_v2 if info.get("core_version") == "v2" else task.baseline)
            lines.append((label, f"{counts['num_items']:,}", f"{accuracy:.4f}", f"{share:.4f}".replace("-", "−")))
    return lines


def grouped(settings: Mapping[str, str], info: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Settings by section, the environment last."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, value in settings.items():
        section, _, rest = name.partition(".")
        title = _SECTIONS.get(section, "Environment")
        groups.setdefault(title, []).append((rest if section in _SECTIONS and rest else name, value))
    for name in ("compile_time", "wasted_time", "peak_memory_bytes"):
        if info.get(name) is not None:
            groups.setdefault("Environment", []).append((name, f"{info[name]:g}"))
    for name, value in sorted((info.get("digests") or {}).items()):
        if value is not None:
            groups.setdefault("Digests", []).append((name, str(value)))
    order = ("Model", "Training", "Resources", "Environment", "Digests")
    return {title: groups[title] for title in order if title in groups}


def _run(row: Any, track: Any) -> dict[str, Any]:
    return {
        "name": row.run_name, "seed": row.seed, "commit": row.git_commit, "source": row.source, "also_at": row.also_at,
        "quality": getattr(row, track["metric"], None), "cost": getattr(row, track["cost"], None),
    }  # fmt: skip
