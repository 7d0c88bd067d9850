"""Whether two logs are of one run: their losses and step times beside each other.

Two runs never take the same times: a step's microseconds are noise of the machine. Losses of two runs agree to the digit only
if both had the same seed, config and machine, so that one of them adds nothing. A copy with noise laid over it keeps the ups and
downs of the step times, or losses closer than two seeds come. Steps that were left out or moved hide nothing: a few step times in a
row are found wherever they stand, and the ups and downs are held against each other from a few steps apart too; so are those of
steps that were made one. Ups and downs that come back every few steps, as of an optimizer that changes its basis then, are of the
program and no sign. One who invents times and losses anew is not found here.
"""

import dataclasses
import functools
import hashlib
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
_LONGEST_BEAT, _LOOKED_AT_FOR_A_BEAT = 32, 2_000  # steps
# Of what the correlation of a log with itself a beat later lacks to 1: a copy with noise lacks less, another run with that beat as much.
_CLOSER_THAN_THE_BEAT = 0.7
_IN_A_ROW = 4  # step times that are looked for together
_DISTINCT = 0.9  # of these rows in either log; of less, two runs on an even device share many by chance
_MOST_MOVED = 4  # steps that are left out at one end of a copy with noise
_MOST_MERGED = 4  # steps of a copy that are made one
_MICROSECOND = 1e-6
_SCREENED = 100  # steps that are looked at first
_WORTH_A_LOOK, _NEARLY_CLOSE = 0.4, 3.0  # the correlation, and the part of a close gap, at which all are
_CLOSE_LOSS = 1e-3  # relative, the median over the steps; 6 seeds of hello world are 3.8e-3 to 5e-3 apart
_SAME_BATCHES = 0.1  # of that, between two inits on one order of large batches, whose noise both share; the contest has one data seed


@dataclasses.dataclass(frozen=True)
class Curves:
    """What a log is recognised by."""

    log_digest: str
    config: str | None
    seeds: tuple[int | None, int | None]
    losses: tuple[float, ...]
    step_times: tuple[float, ...]

    @staticmethod
    def of(log: RunLog) -> "Curves":
        steps = log.record.steps()
        return Curves(
            hashlib.sha256(log.files.metrics).hexdigest(),
            log.run.digests.config,
            (log.run.seeds.model, log.run.seeds.data),
            tuple(step["loss"] for step in steps),
            tuple(step["step_time"] for step in steps),
        )

    @functools.cached_property
    def rows_of_times(self) -> frozenset[tuple[float, ...]]:
        """Every few step times in a row; empty where they repeat within the log."""
        times = self.step_times
        if len(times) < _FEWEST or statistics.median(times) < _LONG_STEP:
            return frozenset()
        rows = frozenset(zip(*(times[start:] for start in range(_IN_A_ROW)), strict=False))
        return rows if len(rows) >= _DISTINCT * (len(times) - _IN_A_ROW + 1) else frozenset()


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
    rows, other_rows = mine.rows_of_times, theirs.rows_of_times
    if rows and len(rows & other_rows) >= _SHARED * min(len(rows), len(other_rows)):
        yield _error(
            "step_time",
            f"{len(rows & other_rows) / len(rows):.0%} of the step times, by {_IN_A_ROW} in a row, are those of {other} at other steps:"
            " the log was copied",
        )
        return
    if count > _FEWEST_CHANGES and (same := _copied_correlation(mine.step_times, theirs.step_times)) is not None:
        yield _error(
            "step_time",
            f"step times go up and down with those of {other} (rank correlation {same:.2f}): the log was copied and changed",
        )
        return
    for group in range(2, _MOST_MERGED + 1):
        if _are_merged(mine.step_times, theirs.step_times, group):
            yield _error(
                "step_time", f"step times are those of {other}, {group} steps as one: the log was copied and changed"
            )
            return
    gap = _closest(mine.losses, theirs.losses)
    if mine.seeds == theirs.seeds or gap >= _CLOSE_LOSS:
        return
    said = f"losses are within {gap:.1g} of those of {other}, which has another seed"
    if mine.seeds[1] == theirs.seeds[1] and gap >= _SAME_BATCHES * _CLOSE_LOSS:
        if same_author:
            message = f"{said} and the same order of batches: give each run a data seed of its own"
            yield Finding("log", "warning", "loss", message)
        else:
            message = f"{said}: two seeds never come so close but on one order of large batches, as theirs may be; or the losses were copied"
            yield Finding("log", "unchecked", "loss", message)
        return
    yield _error("loss", f"{said}: two seeds never come so close")


def _error(field: str, message: str) -> Finding:
    return Finding("log", "error", field, message)


def _are_merged(mine: Sequence[float], theirs: Sequence[float], group: int) -> bool:
    """Whether the times of one log are those of the other, so many steps taken together as one of a larger batch."""
    few, many = sorted((mine, theirs), key=len)
    if (
        len(few) < _FEWEST
        or abs(len(many) - group * len(few)) > group * _MOST_MOVED
        or statistics.median(few) < _LONG_STEP
    ):
        return False
    sums = [math.fsum(many[start : start + group]) for start in range(0, len(many) - group + 1, group)]
    count = min(len(few), len(sums))
    equal = sum(abs(one - other) < _MICROSECOND for one, other in zip(few, sums, strict=False)) / count
    return equal >= _SHARED or (count > _FEWEST_CHANGES and _copied_correlation(few, sums) is not None)


def _changes(values: Sequence[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(values)]


def _closest(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The least relative gap of losses, the median over the steps, from step to step or a few steps apart.

    A few steps apart the ups and downs must agree too: a smooth curve that runs a little behind another is no copy.
    """
    best = _gap(mine, theirs)
    for moved in range(-_MOST_MOVED, _MOST_MOVED + 1):
        one, other = mine[max(0, -moved) :], theirs[max(0, moved) :]
        if not moved or _gap(one[:_SCREENED], other[:_SCREENED]) >= _NEARLY_CLOSE * _CLOSE_LOSS:
            continue
        count = min(len(one), len(other))
        a, b = (_changes(_changes(losses[:count])) for losses in (one, other))  # what the trend has no part in
        if count > _FEWEST_CHANGES and _rank_correlation(a, b) > _RANK_CORRELATION:
            best = min(best, _gap(one, other))
    return best


def _gap(one: Sequence[float], other: Sequence[float]) -> float:
    """Infinite where there is no loss to compare."""
    gaps = [
        abs(a - b) / abs(b) for a, b in zip(one, other, strict=False) if b and math.isfinite(a) and math.isfinite(b)
    ]
    return statistics.median(gaps) if len(gaps) >= _FEWEST else math.inf


def _copied_correlation(mine: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The rank correlation of the changes, where it is a copy's; None where it is not, or comes of a beat that both logs have."""
    same = _moved_correlation(mine, theirs)
    if same <= _RANK_CORRELATION or 1 - same >= _CLOSER_THAN_THE_BEAT * (
        1 - min(_beat(tuple(mine)), _beat(tuple(theirs)))
    ):
        return None
    return same


@functools.lru_cache(maxsize=512)  # each of a submission's runs is held against all others
def _beat(times: tuple[float, ...]) -> float:
    """The highest rank correlation of a log's changes with its own of some steps later."""
    changes = _changes(times)[:_LOOKED_AT_FOR_A_BEAT]
    longest = min(_LONGEST_BEAT, len(changes) // 2)
    return max((_rank_correlation(changes[:-later], changes[later:]) for later in range(2, longest + 1)), default=0.0)


def _moved_correlation(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """The highest rank correlation of the changes, from step to step or a few steps apart."""
    one, other = _changes(mine), _changes(theirs)
    best = 0.0
    for moved in range(-_MOST_MOVED, _MOST_MOVED + 1):
        a, b = one[max(0, -moved) :], other[max(0, moved) :]
        count = min(len(a), len(b))
        if count < _FEWEST_CHANGES:
            continue
        if moved and count > _SCREENED and _rank_correlation(a[:_SCREENED], b[:_SCREENED]) < _WORTH_A_LOOK:
            continue
        best = max(best, _rank_correlation(a[:count], b[:count]))
    return best


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
