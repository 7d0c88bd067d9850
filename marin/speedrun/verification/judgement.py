"""Whether figures that somebody else found confirm a claim.

A checkpoint scores the same again, CORE within a few items that nearly tie. One run that was trained again is held against its own claim, within a percent. Several seeds are held
against the mean of all claimed runs that differ in their seeds alone: within a percent too, and inside what so many runs allow. That is
the 99 % interval of the difference of two means, with the standard deviation of the runs that were found or of the track's noise,
whichever is larger; how far the claimed runs lie apart is not asked, since a claimant could widen the interval with it. A claim outside it,
but inside what the found runs alone allow, is not decided: the noise model may be of other models, and more seeds will tell.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from marin.speedrun.board.rows import rows_of
from marin.speedrun.results import FILE_NAME, RunInfo
from marin.speedrun.statistics.distributions import t_quantile
from marin.speedrun.statistics.means import Noise, deviation, sample_of
from marin.speedrun.tracks import TRACKS, Metric
from marin.speedrun.verdict import Verdict
from marin.speedrun.verification.seeds import experiment_of
from marin.speedrun.verification.statements import Kind, Measured

Outcome = Literal["agrees", "undecided", "differs"]
_WORSE: tuple[Outcome, ...] = ("agrees", "undecided", "differs")
LEVEL = 0.99


@dataclasses.dataclass(frozen=True)
class _Figure:
    """A figure that runs claim and others find; by kind of statement, how far what was found may be off (relative, absolute)."""

    metric: Metric
    name: str
    closeness: Mapping[Kind, tuple[float, float]]

    def claimed(self, info: RunInfo) -> float | None:
        if self.metric == "bits_per_byte":
            return info.quality
        return info.core_metric if info.core_version == "v1" else None

    def found(self, item: Measured) -> float | None:
        value: float | None = getattr(item, self.metric)
        return value


_BITS = _Figure("bits_per_byte", "bits per byte", {"re-evaluation": (1e-4, 0.0), "re-run": (1e-2, 0.0)})
# On another device items whose scores nearly tie fall otherwise: one of the smallest task moves CORE by 0.0014. Two runs with other seeds
# differ by 0.0074 (standard deviation).
_CORE = _Figure("core", "CORE", {"re-evaluation": (0.0, 3e-3), "re-run": (0.0, 2e-2)})


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What figures say of a claim, in a word and in words; "undecided" asks for more runs."""

    outcome: Outcome
    words: str


def kin_of(runs: Sequence[RunInfo], number: int) -> list[int]:
    """The runs that differ from one in their seeds alone, itself among them."""
    own = experiment_of(runs[number])
    return [other for other, run in enumerate(runs) if other == number or experiment_of(run) == own]


def judge(runs: Sequence[RunInfo], number: int, measured: Sequence[Measured], kind: Kind) -> Judgement | None:
    """What a statement's figures say of one run; None where they are of other runs.

    Several seeds that were measured for one run speak for all of its kin. Every figure that the run claims must have been measured. Where
    a validity probe failed, equal figures confirm nothing, nor do figures of a process whose own code was replaced, or that ran other code
    than Marin's.
    """
    speaking = [item for item in measured if item.run == number]
    kin = kin_of(runs, number) if kind == "re-run" else [number]
    for other in (number, *kin) if kind == "re-run" else ():
        seeds = _distinct([item for item in measured if item.run == other])
        if len(seeds) > 1:
            speaking = seeds
            break
    if not speaking:
        return None
    found = [
        judgement
        for figure in (_BITS, _CORE)
        if (judgement := _judge_figure(figure, runs, number, kin, speaking, kind)) is not None
    ]
    if failed := sorted({name for item in speaking for name in item.failed_probes or ()}):
        found.append(
            Judgement("differs", f"probed again, the score is no prediction ({', '.join(failed)[:80]} failed)")
        )
    if names := sorted({name for item in speaking for name in item.replaced or ()}):
        message = f"the code that was run has put other code behind {', '.join(names)[:200]}, and may have measured itself: read it"
        found.append(Judgement("undecided", message))
    if any(item.by_submission for item in speaking):
        message = "the process that ran the submission's code measured itself: read that code"
        found.append(Judgement("undecided", message))
    if not found:
        return None
    worst = max(found, key=lambda item: _WORSE.index(item.outcome))
    return Judgement(
        worst.outcome, "; ".join([*(item.words for item in found), *_of_times(runs[number], speaking, kind)])
    )


def _of_times(claim: RunInfo, measured: Sequence[Measured], kind: Kind) -> list[str]:
    """What a run took that was trained again: said, as nobody here knows on what, and by no outcome of a judgement."""
    times = [item.training_time for item in measured if item.training_time is not None]
    if kind != "re-run" or claim.training_time is None or not times:
        return []
    took = math.fsum(times) / len(times)
    return [f"training took {took:,.4g} s, on whatever hardware, where {claim.training_time:,.4g} s are claimed"]


def _judge_figure(
    figure: _Figure, runs: Sequence[RunInfo], number: int, kin: Sequence[int], measured: Sequence[Measured], kind: Kind
) -> Judgement | None:
    """What is said of one figure; None where it is neither claimed nor measured, or is a CORE that nobody claims."""
    values = [value for item in measured if (value := figure.found(item)) is not None]
    claimed = figure.claimed(runs[number])
    if not values:
        return (
            None if claimed is None else Judgement("undecided", f"did not measure {figure.name}, which is claimed too")
        )
    if claimed is None:
        if figure is _CORE:
            return None
        block, words = runs[number].evaluation, f"found {math.fsum(values) / len(values):.4f} {figure.name}"
        if block is not None and block.loss is not None:  # another figure of the same evaluation
            return Judgement("undecided", f"{words}, and what is claimed is a loss of {block.loss:.4f} nats a token")
        return Judgement("differs", f"{words} where none are claimed")
    if kind == "re-run" and len(_distinct(measured)) > 1:
        claims = [value for k in kin if (value := figure.claimed(runs[k])) is not None]
        return _judge_seeds(figure, claims, _distinct(measured), noise_of(runs[number], figure.metric))
    return _judge_one(figure, claimed, values, kind)


def noise_of(info: RunInfo, metric: Metric = "bits_per_byte") -> Noise | None:
    """The noise model of the first track that the run is of and that is about the metric."""
    rows = rows_of(info, "run", FILE_NAME, verdict=Verdict(rungs=()))
    noises = (t.noise for t in TRACKS for row in rows if t.metric == metric and t.why_not(row) is None)
    return next((noise for noise in noises if noise is not None), None)


def _distinct(measured: Sequence[Measured]) -> list[Measured]:
    """One of each seed; figures without a seed cannot be told from repetitions, so that they count as one seed together."""
    return list({item.seed: item for item in reversed(measured)}.values())[::-1]


def _judge_one(figure: _Figure, claimed: float, values: Sequence[float], kind: Kind) -> Judgement:
    found = math.fsum(values) / len(values)
    relative, absolute = figure.closeness[kind]
    agrees = math.isclose(found, claimed, rel_tol=relative, abs_tol=absolute)
    runs = f"{len(values)} run{'s' if len(values) > 1 else ''}"
    words = f"found {found:.4f} {figure.name} in {runs}, claimed are {claimed:.4f}"
    return Judgement("agrees" if agrees else "differs", words)


def _judge_seeds(
    figure: _Figure, claims: Sequence[float], measured: Sequence[Measured], noise: Noise | None
) -> Judgement:
    known_seeds = [(value, item.seed) for item in measured if (value := figure.found(item)) is not None]
    found = sample_of([value for value, _ in known_seeds])
    seeds = ", ".join(str(seed) for _, seed in known_seeds)
    mean = math.fsum(claims) / len(claims)
    of_claims = "1 run" if len(claims) == 1 else f"the mean of {len(claims)} runs"
    words = (
        f"found {found.mean:.4f} {figure.name} in {found.n} runs (seeds {seeds}), claimed are {mean:.4f} ({of_claims})"
    )
    relative, absolute = figure.closeness["re-run"]
    if not math.isclose(found.mean, mean, rel_tol=relative, abs_tol=absolute):
        return Judgement("differs", f"{words}: over {'a percent' if relative else format(absolute, 'g')} apart")
    scale = math.sqrt(1 / found.n + 1 / len(claims))
    known = deviation(found, noise)
    if known is None:
        return Judgement(
            "undecided", f"{words}: runs of the same value say nothing of chance, and no track's noise is known"
        )
    allowed = scale * known[0] * t_quantile(0.5 + LEVEL / 2, known[1])
    source = "these runs" if noise is None or known[0] == found.sd else noise.source
    words += f"; a difference of {allowed:.2g} is allowed (sd {known[0]:.2g} of {source})"
    if abs(found.mean - mean) <= allowed:
        return Judgement("agrees", words)
    alone = deviation(found, None)
    by_runs = 0.0 if alone is None else scale * alone[0] * t_quantile(0.5 + LEVEL / 2, alone[1])
    if abs(found.mean - mean) <= by_runs:
        return Judgement("undecided", f"{words}, {by_runs:.2g} by these runs alone: more seeds are needed")
    return Judgement("differs", words)
