"""Whether two logs are of one run: their losses and step times beside each other.

Two runs never take the same times: a step's microseconds are noise of the machine. Losses of two runs agree to the digit only
if both had the same seed, config and machine, so that one of them adds nothing. A copy with noise laid over it keeps the ups and
downs of the step times, or losses closer than two seeds come. One who invents times and losses anew is not found here.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from marin.speedrun.verdict import Finding
from marin.speedrun.verification.run_log import RunLog

_SHARED = 0.5  # of step times equal to the microsecond
_FEWEST = 20
_LONG_STEP = 0.005  # seconds: from here on, steps of two runs seldom agree to the microsecond by chance
# Of the changes of step times. Between 8 hello worlds of 460 steps on one machine it is -0.12 to 0.17.
_RANK_CORRELATION = 0.6
_FEWEST_CHANGES = 50
_CLOSE_LOSS = 1e-3  # relative, the median over the steps; 6 seeds of hello world are 3.8e-3 to 5e-3 apart
_SAME_BATCHES = 0.1  # of that, between two inits of one author on one order of large batches, whose noise both share


@dataclasses.dataclass(frozen=True)
class Curves:
    """What a log is recognised by."""

    log_digest: str
    config: str | None
    seeds: tuple[int | None, int | None]
    losses: tuple[float, ...]
    step_times: tuple[float, ...]

    @staticmethod
    def of(log: RunLog, log_digest: str) -> "Curves":
        steps = log.record.steps()
        return Curves(
            log_digest,
            log.run.digests.config,
            (log.run.seeds.model, log.run.seeds.data),
            tuple(step["loss"] for step in steps),
            tuple(step["step_time"] for step in steps),
        )


def compare_curves(mine: Curves, theirs: Curves, other: str, *, same_author: bool) -> Iterator[Finding]:
    """Args:
    other: what the other run is called.
    same_author: whose seeds may share the order of their batches, so that their losses come closer.
    """
    if mine.log_digest == theirs.log_digest:
        yield _error("metrics.jsonl", f"the log is that of {other}, byte for byte: one run counts once")
        return
    count = min(len(mine.losses), len(theirs.losses))
    if count < _FEWEST:
        return
    times, other_times = mine.step_times[:count], theirs.step_times[:count]
    equal = sum(a == b for a, b in zip(times, other_times, strict=True)) / count
    if equal >= _SHARED and statistics.median(times) >= _LONG_STEP:
        yield _error(
            "step_time", f"{equal:.0%} of the step times are those of {other} to the microsecond: the log was copied"
        )
        return
    if (
        count > _FEWEST_CHANGES
        and (same := _rank_correlation(_changes(times), _changes(other_times))) > _RANK_CORRELATION
    ):
        yield _error(
            "step_time",
            f"step times go up and down with those of {other} (rank correlation {same:.2f}): the log was copied and changed",
        )
        return
    gaps = [
        abs(a - b) / abs(b)
        for a, b in zip(mine.losses, theirs.losses, strict=False)
        if b and math.isfinite(a) and math.isfinite(b)
    ]
    if not gaps:
        return
    gap = statistics.median(gaps)
    if mine.seeds == theirs.seeds or gap >= _CLOSE_LOSS:
        return
    said = f"losses are within {gap:.1g} of those of {other}, which has another seed"
    if same_author and mine.seeds[1] == theirs.seeds[1] and gap >= _SAME_BATCHES * _CLOSE_LOSS:
        yield Finding(
            "log", "warning", "loss", f"{said} and the same order of batches: give each run a data seed of its own"
        )
        return
    yield _error("loss", f"{said}: two seeds never come so close")


def _error(field: str, message: str) -> Finding:
    return Finding("log", "error", field, message)


def _changes(values: Sequence[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(values)]


def _rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, 0 where one of them does not change."""
    a, b = _ranks(one), _ranks(other)
    try:
        return statistics.correlation(a, b)
    except statistics.StatisticsError:
        return 0.0


def _ranks(values: list[float]) -> list[float]:
    ranks = [0.0] * len(values)
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        ranks[index] = float(rank)
    return ranks
