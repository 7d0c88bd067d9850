"""Whether figures that somebody else found confirm a claim.

A checkpoint scores the same again. One run that was trained again is held against its own claim, within a percent. Several seeds are held
against the mean of all claimed runs that differ in their seeds alone: within a percent too, and inside what so many runs allow. That is
the 99 % interval of the difference of two means, with the standard deviation of the runs that were found or of the track's noise,
whichever is larger; how far the claimed runs lie apart is not asked, since a claimant could widen the interval with it. A claim outside it,
but inside what the found runs alone allow, is not decided: the noise model may be of other models, and more seeds will tell.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from marin.speedrun.distributions import t_quantile
from marin.speedrun.results import FILE_NAME, RunInfo
from marin.speedrun.rows import rows_of
from marin.speedrun.statistics import Noise, deviation, sample_of
from marin.speedrun.tracks import TRACKS
from marin.speedrun.verdict import Verdict
from marin.speedrun.verification.seeds import experiment_of
from marin.speedrun.verification.statements import Kind, Measured

LEVEL = 0.99
_CLOSENESS: dict[str, float] = {"re-evaluation": 1e-4, "re-run": 1e-2}  # relative; a run has another seed or machine


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What figures say of a claim, in a word and in words; "undecided" asks for more runs."""

    outcome: Literal["agrees", "undecided", "differs"]
    words: str


def quality_of(info: RunInfo) -> float | None:
    """The bits per byte that a run is held to: those of C4-EN as published rows count them, where it states them."""
    if info.c4_en_bpb is not None or info.evaluation is None:
        return info.c4_en_bpb
    return info.evaluation.bits_per_byte


def kin_of(runs: Sequence[RunInfo], number: int) -> list[int]:
    """The runs that differ from one in their seeds alone, itself among them."""
    own = experiment_of(runs[number])
    return [other for other, run in enumerate(runs) if other == number or experiment_of(run) == own]


def judge(runs: Sequence[RunInfo], number: int, measured: Sequence[Measured], kind: Kind) -> Judgement | None:
    """What a statement's figures say of one run; None where they are of other runs.

    Several seeds that were measured for one run speak for all of its kin.
    """
    own = [item for item in measured if item.run == number]
    if kind == "re-run":
        kin = kin_of(runs, number)
        for other in (number, *kin):
            seeds = _distinct([item for item in measured if item.run == other])
            if len(seeds) > 1:
                claims = [bits for k in kin if (bits := quality_of(runs[k])) is not None]
                return _judge_seeds(claims, seeds, noise_of(runs[number]))
    return _judge_one(quality_of(runs[number]), own, kind) if own else None


def noise_of(info: RunInfo) -> Noise | None:
    """The noise model of the first track that the run is of, for bits per byte."""
    rows = rows_of(info, "run", FILE_NAME, verdict=Verdict(rungs=()))
    noises = (t.noise for t in TRACKS for row in rows if t.metric == "bits_per_byte" and t.why_not(row) is None)
    return next((noise for noise in noises if noise is not None), None)


def _distinct(measured: Sequence[Measured]) -> list[Measured]:
    """One of each seed; figures without a seed cannot be told from repetitions, so that they count as one seed together."""
    return list({item.seed: item for item in reversed(measured)}.values())[::-1]


def _judge_one(claimed: float | None, measured: Sequence[Measured], kind: Kind) -> Judgement:
    found = math.fsum(item.bits_per_byte for item in measured) / len(measured)
    if claimed is None:
        return Judgement("differs", f"found {found:.4f} bits per byte where none are claimed")
    agrees = math.isclose(found, claimed, rel_tol=_CLOSENESS[kind])
    said = f"found {found:.4f} bits per byte in {len(measured)} run{'s' if len(measured) > 1 else ''}, claimed are {claimed:.4f}"
    return Judgement("agrees" if agrees else "differs", said)


def _judge_seeds(claims: Sequence[float], measured: Sequence[Measured], noise: Noise | None) -> Judgement:
    found = sample_of([item.bits_per_byte for item in measured])
    seeds = ", ".join(str(item.seed) for item in measured)
    if not claims:
        return Judgement("differs", f"found {found.mean:.4f} bits per byte where none are claimed")
    mean = math.fsum(claims) / len(claims)
    of_claims = "1 run" if len(claims) == 1 else f"the mean of {len(claims)} runs"
    words = (
        f"found {found.mean:.4f} bits per byte in {found.n} runs (seeds {seeds}), claimed are {mean:.4f} ({of_claims})"
    )
    if not math.isclose(found.mean, mean, rel_tol=_CLOSENESS["re-run"]):
        return Judgement("differs", f"{words}: over a percent apart")
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
