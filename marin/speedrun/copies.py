"""Rows that say the same: one run however often its file lies around, and one run page behind several entries."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable

from marin.speedrun.rows import Row
from marin.speedrun.verdict import Finding


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
    """One row for each run, however often its file lies around; the fullest account of it, in the deepest directory."""
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
        group.sort(key=lambda row: (row.listed, -row.source.count("/"), row.source))
        elsewhere = {path for row in group for path in (row.source, *row.also_at)} - {group[0].source}
        merged.append(dataclasses.replace(group[0], also_at=tuple(sorted(elsewhere))))
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
        others = sorted(f"{other.run_name} ({other.source})" for other in group if other is not row)
        if others:
            same = all(_facts(other) == _facts(row) for other in group)
            how = "with the same figures" if same else "with other figures"
            message = f"the same run page also backs {', '.join(others[:3])}, {how}"
            row = dataclasses.replace(
                row, findings=(*row.findings, Finding("submission", "warning", "wandb_run_link", message))
            )
        noted.append(row)
    return noted
