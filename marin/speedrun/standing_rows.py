"""Rows that a later version of a submission lacks: what stands on the board is withdrawn, never taken out of its file."""

from collections.abc import Iterable

from marin.speedrun.board.copies import page_of
from marin.speedrun.results import RunInfo


def missing_runs(before: Iterable[RunInfo], after: Iterable[RunInfo]) -> list[RunInfo]:
    """The runs of `before` that are not in `after`.

    A run is the same whose log, page, training time or end is the same, so that a text or a figure of it can be put right.
    """
    there = set[tuple[str, object]]()
    for info in after:
        there |= _signs(info)
    return [info for info in before if not _signs(info) & there]


def _signs(info: RunInfo) -> set[tuple[str, object]]:
    known: dict[str, object] = {
        "log": info.digests.metrics_log if info.digests else None,
        "page": page_of(info.wandb_run_link),
        "time": info.training_time,
        "end": info.run_completion_timestamp,
    }
    signs = {(name, value) for name, value in known.items() if value}
    return signs or {("figures", info.model_dump_json())}
