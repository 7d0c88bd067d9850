"""The lines of a track's table: the runs of one submission that differ in their seeds alone, taken together.

Runs belong together where author, configs, data, hardware and commit agree, in one file or in directories side by side; rows of a
list say too little for that, and stand alone. A seed counts once, however often it was run and in however many directories.
"""

import dataclasses
import hashlib
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from marin.speedrun.board.file_names import Named, file_of, names_in_files, place_of
from marin.speedrun.board.rows import Row
from marin.speedrun.statistics.means import Spread, spread_of
from marin.speedrun.tracks import COST_NAMES, METRICS, Track, slug
from marin.speedrun.verdict import RUNGS, Finding, Outcome, Rung, RungVerdict, Verdict

_VALUES = (*METRICS, *COST_NAMES, "mfu")
_OF_A_SET = ("bits_per_byte", "loss")

_KEY_DIGITS = 16  # hexadecimal: with half as many an author could find two entries of his own with one key

Evidence = dict[tuple[str, str], tuple[dict[str, Any], ...]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of a track's table. `values` are means over the runs that state the figure, a cost over all; `None` is "not stated"."""

    key: str  # stable and URL-safe
    track: str
    name: str
    author: str
    affiliation: str
    author_url: str | None
    description: str
    date: str | None  # when its last run ended
    family: str | None
    optimizer: str | None
    hardware: str | None
    model_size: int | None
    rows: tuple[Row, ...]  # by seed
    values: dict[str, float | None]
    spread: Spread | None
    verdict: Verdict
    rank: int | None = None
    on_frontier: bool = False
    is_record: bool = False
    came: str | None = None  # of a record, when it came: as git has it, or when its last run ended, whichever is later
    not_ranked: tuple[str, ...] = ()  # gates that it misses, and what it does not state
    evidence: tuple[dict[str, Any], ...] = ()  # what its family reaches at every depth
    elsewhere: tuple[
        tuple[str, int], ...
    ] = ()  # entries of its configuration that stand apart, with their numbers of runs

    @property
    def counts(self) -> bool:
        """Whether it may be ranked: its verdict allows it, and it keeps the track's gates."""
        return self.verdict.counts and not self.not_ranked


_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(Entry) if field.default is not dataclasses.MISSING
}


def _new_entry(**fields: Any) -> Entry:
    """`Entry(**fields)`, which sets each field of a frozen class by a call, in a fraction of its time."""
    made = object.__new__(Entry)
    made.__dict__.update(_DEFAULTS, **fields)
    return made


def changed(entry: Entry, **fields: Any) -> Entry:
    """`dataclasses.replace` in a tenth of its time."""
    made = object.__new__(Entry)
    made.__dict__.update(entry.__dict__, **fields)
    return made


def entries_of(
    track: Track, rows: Iterable[Row], evidence: Evidence | None = None, named: Named | None = None
) -> list[Entry]:
    """The entries that rows of a track make, without ranks, in an order fixed by their content.

    Args:
        evidence: what each author's families reach at every depth; shown by tracks that ask for it.
        named: `names_in_files` of all rows, where these are not all: an entry has one name on all of its tracks.
    """
    rows = list(rows)
    named = names_in_files(rows) if named is None else named
    groups: dict[tuple[str | None, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_identity(track, row), []).append(row)
    shown = (evidence or {}) if track.other_depths else {}
    entries = [_entry(track, identity, members, shown, named) for identity, members in groups.items()]
    return sorted(_with_others(entries), key=lambda entry: (entry.name, entry.key))


def _with_others(entries: list[Entry]) -> list[Entry]:
    """The entries, each with those of its configuration that stand apart from it: seeds may have been sorted by their luck."""
    kin: dict[tuple[str, str, str | None], list[Entry]] = {}
    for entry in entries:
        first, verdict = entry.rows[0], entry.verdict
        # Also those that miss a gate or were withdrawn, as unlucky seeds are.
        if verdict.withdrawn is not None:
            verdict = verdict.model_copy(update={"withdrawn": None})
        if first.configuration is not None and verdict.counts:
            key = (first.configuration, first.evaluation_set, first.evaluation_digest)
            kin.setdefault(key, []).append(entry)
    others = {
        entry.key: [(other.name, len(other.rows)) for other in found if other is not entry]
        for found in kin.values()
        if len(found) > 1
        for entry in found
    }
    return [
        changed(entry, elsewhere=tuple(sorted(others[entry.key]))) if entry.key in others else entry
        for entry in entries
    ]


def _identity(track: Track, row: Row) -> tuple[str | None, ...]:
    # Runs of one file belong together, and so do those of one family that say which seed they had or that one program made.
    alone = row.seed is None and not row.repeated
    group = file_of(row.run_name) if alone else _group_of(row)
    own = (row.run_name, row.digest) if row.configuration is None else (group, row.configuration)
    return own if track.data.evaluation_set is None else (*own, row.evaluation_set, row.evaluation_digest)


def _hardware_of(rows: Sequence[Row]) -> str | None:
    """What the runs had, which may be processors of several names."""
    named = sorted({row.hardware for row in rows if row.hardware is not None})
    return f"{named[0]} and others" if len(named) > 1 else named[0] if named else None


def _entry(
    track: Track, identity: tuple[str | None, ...], members: list[Row], evidence: Evidence, names: Named
) -> Entry:
    rows = _distinct_runs(members)
    first = rows[0]
    common = _common_name(rows)
    name = _shown_name(common, first, names) if names else common
    named = "\0".join(map(str, (common, *identity))).encode("utf-8", "surrogatepass")
    values = _values_of(rows)
    return _new_entry(
        key=f"{slug(common, 'entry')}-{hashlib.sha256(named).hexdigest()[:_KEY_DIGITS]}",
        track=track.key,
        name=name,
        author=first.author,
        affiliation=first.affiliation,
        author_url=first.author_url,
        description=first.description,
        date=first.date if len(rows) == 1 else max([row.date for row in rows if row.date is not None], default=None),
        family=name.rpartition("/")[0] or None,
        optimizer=first.optimizer,
        hardware=first.hardware if len(rows) == 1 else _hardware_of(rows),
        model_size=first.model_size,
        rows=tuple(rows),
        values=values,
        spread=_spread(track, rows),
        verdict=merge_verdicts([row.verdict for row in rows]),
        not_ranked=_why_not_ranked(track, rows, values),
        evidence=evidence.get((first.author, family_of(first)), ()) if evidence else (),
    )


def _group_of(row: Row) -> str:
    """The directory above the run's own; of a run of a file that lies in none, the file. One's runs are not joined by those below it."""
    return row.run_name.rpartition("/")[0] or f"{file_of(row.run_name)}#"


def _distinct_runs(members: list[Row]) -> list[Row]:
    """One run of each seed: of several, one that counts, the one that was verified furthest, then the oldest."""
    if len(members) == 1:
        return members
    by_seed: dict[Hashable, list[Row]] = {}
    for row in members:
        by_seed.setdefault((row.run_name, row.digest) if row.seed is None else row.seed, []).append(row)
    kept = [row for rows in by_seed.values() for row in ([rows[0]] if len(rows) == 1 else _of_one_seed(rows))]
    return sorted(kept, key=lambda row: (row.seed is None, row.seed or 0, row.run_name, row.source, row.digest))


def _of_one_seed(rows: list[Row]) -> list[Row]:
    """Runs of one seed of the model, of which the seeds of the data may differ."""
    kept: dict[str, Row] = {}
    for row in sorted(
        rows, key=lambda row: (not row.counts, -row.level, row.date or "9", row.run_name, row.source, row.digest)
    ):
        kept.setdefault(repr((row.details.get("train_config") or {}).get("data_seed")), row)
    return list(kept.values())


def _common_name(rows: list[Row]) -> str:
    if len(rows) == 1:
        return rows[0].run_name
    names = sorted({file_of(row.run_name) for row in rows})
    if len(names) == 1:
        return names[0]
    return names[0].rpartition("/")[0] or names[0]


def _shown_name(common: str, first: Row, names: Named) -> str:
    place = place_of(first)
    # Runs of several directories have a name of their own.
    return common if place is None or file_of(common) != file_of(first.run_name) else names.get(place, common)


def _values_of(rows: list[Row]) -> dict[str, float | None]:
    if len(rows) > 1:
        return {key: _mean_of(key, rows) for key in _VALUES}
    stated = vars(rows[0])  # of most entries, and by far the most of a large board's time
    return {key: None if (value := stated[key]) is None else float(value) for key in _VALUES}


def _mean_of(key: str, rows: list[Row]) -> float | None:
    """The mean of a figure over the runs that state it.

    None where a run states no such cost, as the others' mean would leave out the dear ones, and where bits per byte or losses are of
    several evaluation sets, or CORE of several versions, which say nothing about each other.
    """
    values = [getattr(row, key) for row in rows]
    if key in COST_NAMES and None in values:
        return None
    if key in _OF_A_SET and len({(row.evaluation_set, row.evaluation_digest) for row in rows}) > 1:
        return None
    if key == "core" and len({row.core_version for row in rows if row.core is not None}) > 1:
        return None
    known = [float(value) for value in values if value is not None]
    try:
        return math.fsum(known) / len(known) if known else None
    except OverflowError:
        return math.fsum(value / len(known) for value in known)


def _spread(track: Track, rows: list[Row]) -> Spread | None:
    known = [value for row in rows if (value := row.value(track.metric)) is not None]
    if not known:
        return None
    try:
        return spread_of(known, noise=track.noise, stated_runs=rows[0].stated_runs, stated_sd=rows[0].stated_sd)
    except OverflowError:
        return None


def _why_not_ranked(track: Track, rows: list[Row], values: dict[str, float | None]) -> tuple[str, ...]:
    reasons = []
    for gate in track.gates:
        if gate.of == "mean":
            value = values[gate.field]
            if value is None or not gate.holds(value):
                reasons.append(f"{gate} does not hold: {gate.missed_by(value)}")
        else:
            missed = [row for row in rows if (figure := row.value(gate.field)) is None or not gate.holds(figure)]
            if missed:
                shown = gate.missed_by(missed[0].value(gate.field))
                reasons.append(f"{gate} does not hold for {len(missed)} of {len(rows)} runs: {shown}")
    if values[track.metric] is None and not any(gate.field == track.metric for gate in track.gates):
        reasons.append(f"{METRICS[track.metric].name} is not stated")
    if values[track.cost] is None and values[track.metric] is not None:
        unstated = sum(row.value(track.cost) is None for row in rows)
        of_runs = f" by {unstated} of {len(rows)} runs" if len(rows) > 1 else ""
        reasons.append(f"{COST_NAMES[track.cost]}: not stated{of_runs}, and quality is ranked by what it cost")
    return tuple(reasons)


def merge_verdicts(verdicts: list[Verdict]) -> Verdict:
    """The verdict on runs together: a rung failed by one is failed, and passed only where all passed it."""
    if len(verdicts) == 1:
        return verdicts[0]
    rungs = []
    for name in RUNGS:
        if any(found.rung == name for verdict in verdicts for found in verdict.rungs):
            rungs.append(_merge_rung(name, [verdict[name] for verdict in verdicts]))
    challenged = next((verdict.challenged for verdict in verdicts if verdict.challenged is not None), None)
    withdrawn = next((verdict.withdrawn for verdict in verdicts if verdict.withdrawn is not None), None)
    return Verdict(rungs=tuple(rungs), challenged=challenged, withdrawn=withdrawn)


def _merge_rung(name: Rung, found: list[RungVerdict]) -> RungVerdict:
    outcomes = {rung.outcome for rung in found}
    outcome: Outcome = "failed" if "failed" in outcomes else "open" if "open" in outcomes else "passed"
    findings: dict[Finding, None] = {}
    for rung in found:
        findings |= dict.fromkeys(rung.findings)
    return RungVerdict(rung=name, outcome=outcome, findings=tuple(findings))


DEPTHS = range(12, 27)
_EVIDENCE = ("core", "bits_per_byte", "training_time")


def evidence_at_depths(rows: Iterable[Row]) -> Evidence:
    """For each author and family: what its runs that count reach at every depth, to be shown where a change must hold at others too.

    Figures are means over the runs of a depth; `None` is "not stated".
    """
    groups: dict[tuple[str, str], dict[int, list[Row]]] = {}
    for row in rows:
        if row.depth is not None and row.depth in DEPTHS and row.counts:
            groups.setdefault((row.author, family_of(row)), {}).setdefault(row.depth, []).append(row)
    evidence = {}
    for key, depths in groups.items():
        evidence[key] = tuple(
            {
                "depth": depth, "runs": len({row.digest for row in found}), **{key: _mean_of(key, found) for key in _EVIDENCE},
            }
            for depth, found in sorted(depths.items())
        )  # fmt: skip
    return evidence


def family_of(row: Row) -> str:
    """The submission that a run belongs to."""
    return submission_of(row.run_name)


def submission_of(name: str) -> str:
    """What a run or an entry is named after: its name without the last part, or without its number in a file of several."""
    return name.rpartition("/")[0] or file_of(name)
