"""Rows that a later version of a submission lacks: what stands on the board is withdrawn, never taken out of its file."""

from collections.abc import Callable, Iterable

from marin.speedrun.board.copies import page_of
from marin.speedrun.results import RunInfo

# By what a run is known again whose row states no log, from the surest on.
_SIGNS: tuple[Callable[[RunInfo], object], ...] = (
    lambda info: page_of(info.wandb_run_link),
    lambda info: info.training_time,
    lambda info: info.run_completion_timestamp,
    lambda info: info.model_dump_json(exclude={"author", "description"}),
)


def missing_runs(before: Iterable[RunInfo], after: Iterable[RunInfo]) -> list[RunInfo]:
    """The runs of `before` that are not in `after`, of which each row stands for one run at most.

    A run whose row states its log is known by that alone: a page or an end can be typed into the row of another run. Else a run is the
    same whose page, training time, end or all figures are the same, so that a text or a figure of it can be put right.
    """
    gone, free = ({_key(info): info for info in infos} for infos in (before, after))
    for key in gone.keys() & free.keys():
        del gone[key], free[key]
    for sign in _SIGNS:
        there = {key: sign(info) for key, info in free.items()}
        for key, info in list(gone.items()):
            value = None if _log(info) else sign(info)
            found = next((k for k, other in there.items() if value and other == value), None)
            if found is not None:
                del gone[key], free[found], there[found]
    return list(gone.values())


def _key(info: RunInfo) -> str:
    """The same for rows of one log, and for rows that say the same: they are one run."""
    return _log(info) or info.model_dump_json()


def _log(info: RunInfo) -> str | None:
    return info.digests.metrics_log if info.digests else None
