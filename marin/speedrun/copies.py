"""Rows that say the same: one run however often its file lies around, one run page behind several entries, and copied results.

A copied result is a row with another's run page or training time to the last digit, under another author or on other hardware. Of
such rows the one that was verified furthest stands, and of equals the earlier one; where neither decides, all are held.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable

from marin.speedrun.consistency import Status
from marin.speedrun.rows import Row
from marin.speedrun.verdict import LADDER, Finding, Outcome, Rung, RungVerdict


def _facts(row: Row) -> tuple[object, ...]:
    return (
        row.run_link,
        row.bits_per_byte,
        row.training_time,
        row.training_hardware_flops,
        row.model_flops,
        row.model_size,
    )


def merge_copies(rows: Iterable[Row]) -> list[Row]:
    """One row for each run, however often its file lies around: what was verified furthest, and of equals in the deepest directory."""
    merged = _merge_by(lambda row: (row.digest, row.run_name if row.listed else None, row.evaluation_set), rows)
    # Two names for one run page are two claims; a results file and its own row in a list are one.
    return _merge_by(
        lambda row: (row.run_name, row.evaluation_set, row.evaluation_digest, _facts(row)) if row.run_link else id(row),
        merged,
    )


def _merge_by(key: Callable[[Row], Hashable], rows: Iterable[Row]) -> list[Row]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    merged = []
    for group in groups.values():
        group.sort(key=lambda row: (row.listed, -_level(row), -row.source.count("/"), row.source))
        first = group[0]
        if len(group) > 1:
            elsewhere = {path for row in group for path in (row.source, *row.also_at)} - {first.source}
            first = dataclasses.replace(first, also_at=tuple(sorted(elsewhere)))
        merged.append(first)
    return merged


def note_repeats(rows: list[Row]) -> list[Row]:
    """Adds a warning where one public run page backs several entries of an evaluation set."""
    by_link: dict[tuple[str, str | None, str], list[Row]] = {}
    for row in rows:
        if row.run_link:
            by_link.setdefault((row.evaluation_set, row.evaluation_digest, row.run_link), []).append(row)
    noted = []
    for row in rows:
        group = by_link.get((row.evaluation_set, row.evaluation_digest, row.run_link or ""), [])
        if len(group) > 1:
            others = sorted(f"{other.run_name} ({other.source})" for other in group if other is not row)
            same = all(_facts(other) == _facts(row) for other in group)
            how = "with the same figures" if same else "with other figures"
            message = f"the same run page also backs {', '.join(others[:3])}, {how}"
            row = _with_finding(row, "parsed", Finding("submission", "warning", "wandb_run_link", message))
        noted.append(row)
    return noted


def _with_finding(row: Row, rung: Rung, finding: Finding) -> Row:
    """The row with a finding more, in its verdict too; an error fails the rung."""
    outcome: Outcome = "failed" if finding.severity == "error" else row.verdict[rung].outcome
    changed = RungVerdict(rung=rung, outcome=outcome, findings=(*row.verdict[rung].findings, finding))
    rungs = tuple(changed if found.rung == rung else found for found in row.verdict.rungs)
    verdict = row.verdict.model_copy(update={"rungs": rungs})
    status: Status = "does not add up" if finding.severity == "error" else row.status
    return dataclasses.replace(row, findings=(*row.findings, finding), verdict=verdict, status=status)


# --- copied results -----------------------------------------------------------------------------------------------

_ALL_DIGITS = 9  # significant digits from which a time in seconds is that of one run alone


def hold_copied_results(rows: list[Row]) -> list[Row]:
    """Adds an error to rows that are somebody else's result, or a result on other hardware than it was first stated with."""
    held: dict[int, Finding] = {}
    for field, key in (("wandb_run_link", _page_key), ("training_time", _time_key)):
        groups: dict[Hashable, list[int]] = {}
        for index, row in enumerate(rows):
            value = key(row)
            if value is not None:
                groups.setdefault(value, []).append(index)
        for group in groups.values():
            if len(group) > 1:
                _hold(rows, group, field, held)
    return [_with_finding(row, "arithmetic", held[index]) if index in held else row for index, row in enumerate(rows)]


def _page_key(row: Row) -> Hashable | None:
    return row.run_link or None


def _time_key(row: Row) -> Hashable | None:
    seconds = row.training_time
    return seconds if seconds and len(repr(float(seconds)).replace(".", "").strip("0")) >= _ALL_DIGITS else None


def _hold(rows: list[Row], group: list[int], field: str, held: dict[int, Finding]) -> None:
    owners = {(rows[index].author.casefold().strip(), rows[index].hardware) for index in group}
    authors = {author for author, _ in owners}
    hardware = {name for _, name in owners if name is not None}
    if len(authors) < 2 and len(hardware) < 2:
        return
    standing = sorted((_standing(rows[index]), index) for index in group)
    undecided = standing[0][0] == standing[1][0] and _owner(rows[standing[0][1]]) != _owner(rows[standing[1][1]])
    first = rows[standing[0][1]]
    for _, index in standing if undecided else standing[1:]:
        row = rows[index]
        other = first if row is not first else rows[standing[1][1]]
        if _owner(row) == _owner(other) or index in held:
            continue
        what = "run page" if field == "wandb_run_link" else f"training time of {row.training_time!r} s"
        whose = f"{other.run_name} by {other.author}" + (f" on {other.hardware}" if other.hardware else "")
        held[index] = Finding("arithmetic", "error", field, f"the {what} is that of {whose}: one run counts once"[:500])


def _owner(row: Row) -> tuple[str, str | None]:
    return (row.author.casefold().strip(), row.hardware)


def _standing(row: Row) -> tuple[bool, int, str]:
    return (not row.verdict.counts, -_level(row), row.date or "9")


def _level(row: Row) -> int:
    level = row.verdict.level
    return LADDER.index(level) + 1 if level in LADDER else 0
