"""Rows that a later version of a submission lacks or says otherwise: what stands on the board is withdrawn, never taken out of its file."""

from collections.abc import Iterable

from marin.speedrun.board.copies import page_of
from marin.speedrun.results import RunInfo

_RANKED_BY = ("training_time", "training_hardware_flops", "model_flops", "total_tokens", "core_metric")


def missing_runs(before: Iterable[RunInfo], after: Iterable[RunInfo]) -> list[RunInfo]:
    """The runs of `before` that are not in `after`, of which each row stands for one run at most.

    A run whose row states its log is known by that alone: all else can be typed into the row of another run. Else a run is the same whose
    page, training time, end and score are more often the same than others, so that a text or a figure of it can be put right, and no
    one of them makes another run pass for it.
    """
    return [old for old, new in _paired(before, after) if new is None]


def changed_figures(before: Iterable[RunInfo], after: Iterable[RunInfo]) -> list[str]:
    """What rows that stayed say otherwise of what they are ranked by, such as "training_time 600 is 541"."""
    found = []
    for old, new in _paired(before, after):
        if new is not None:
            were, are = _ranked_by(old), _ranked_by(new)
            found += [f"{name} {_change(were[name], are[name])}" for name in were if were[name] != are[name]]
    return found


def _paired(before: Iterable[RunInfo], after: Iterable[RunInfo]) -> list[tuple[RunInfo, RunInfo | None]]:
    gone, free = ({_key(info): info for info in infos} for infos in (before, after))
    pairs: dict[str, RunInfo | None] = {key: free.pop(key, None) for key in gone}
    likest = sorted(
        (-_likeness(gone[one], info), number, one, other)
        for number, one in enumerate(key for key, found in pairs.items() if found is None)
        for other, info in free.items()
    )
    for unlike, _, one, other in likest:
        if unlike < 0 and pairs[one] is None and other in free:
            pairs[one] = free.pop(other)
    return [(gone[key], found) for key, found in pairs.items()]


def _likeness(old: RunInfo, new: RunInfo) -> int:
    """How many more signs of a run are the same than are others; what only one row states says nothing."""
    if old.log_digest:
        return 0
    signs = [pair for pair in zip(_signs(old), _signs(new), strict=True) if None not in pair]
    if not signs:
        return int(_figures(old) == _figures(new))
    return sum(1 if one == other else -1 for one, other in signs)


def _signs(info: RunInfo) -> tuple[object, ...]:
    return page_of(info.wandb_run_link), info.training_time, info.run_completion_timestamp, info.quality


def _ranked_by(info: RunInfo) -> dict[str, float | None]:
    scores = {"bits per byte": info.quality, "loss": info.evaluation.loss if info.evaluation else None}
    return scores | {name: getattr(info, name) for name in _RANKED_BY}


def _change(before: float | None, after: float | None) -> str:
    """Such as "600 is 541", with as many digits as tell the two apart."""
    texts = ["unknown" if value is None else f"{value:.6g}" for value in (before, after)]
    return " is ".join(texts if texts[0] != texts[1] else map(repr, (before, after)))


def _figures(info: RunInfo) -> str:
    return info.model_dump_json(exclude={"author", "description"})


def _key(info: RunInfo) -> str:
    """The same for rows of one log, and for rows that say the same: they are one run."""
    return info.log_digest or info.model_dump_json()
