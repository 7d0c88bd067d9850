"""How sure one can be: means with intervals, and one-sided tests.

One rule throughout. The standard deviation of a sample is the larger of what its own runs show and what the track's noise
model says; its degrees of freedom are those of both. Where the runs and the model have the same spread, the larger of the two
is at least their pooled estimate, so a test at p passes by chance at most as often as p, from one run on. Without a noise model
there are only the sample's own runs, and one run can show nothing. It can be beaten: what does not say its spread is taken to have that of
the runs that challenge it. One run that challenges has nothing to lend, so that of two single runs neither beats the other.

Runs that lie further apart than the noise model lets them, which chance does to one sample in a hundred, are not of its kind. They are
judged by themselves alone, and are the noise model of what they are compared with. Otherwise the model's degrees of freedom, infinitely
many where it is taken as known, would make a few runs of a wider spread as sure as if that spread were known.
"""

import dataclasses
import math
from collections.abc import Sequence

from marin.speedrun.statistics.distributions import (
    f_cdf,
    t_cdf,
    t_quantile,
)

SUSPICIOUSLY_CLOSE = 0.001
_NOT_OF_THE_MODEL = 0.01
_EQUAL = 1e-12  # a spread below this part of the mean is rounding, not chance


@dataclasses.dataclass(frozen=True)
class Noise:
    """How much runs that differ in their seeds alone differ in a metric.

    `runs` is how many runs it was measured from; None where the source does not say. The standard deviation is then taken as known.
    """

    sd: float
    runs: int | None
    source: str

    @property
    def df(self) -> float:
        return math.inf if self.runs is None else float(self.runs - 1)


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a test needs of several runs; `sd` is None for one run."""

    n: int
    mean: float
    sd: float | None


@dataclasses.dataclass(frozen=True)
class Spread(Sample):
    """Several runs of one configuration: `low` to `high` is the 95 % interval of their mean.

    `sd` is that of the runs themselves; the standard error and the interval use the larger of it and the noise model's. `None`
    where one run and no noise model leave it unknown. `noise_from` is "runs" or the source of the noise model.
    """

    standard_error: float | None
    low: float | None
    high: float | None
    noise_from: str | None


@dataclasses.dataclass(frozen=True)
class Test:
    """A one-sided test: how likely a difference this large is where there is none. `p_value` is None where it cannot be said."""

    difference: float  # positive is in favour of the claim
    standard_error: float | None
    df: float | None
    p_value: float | None
    reason: str | None = None  # why it cannot be said
    assumed: str | None = None  # what is believed of the spread beside what the runs and the noise model say

    __test__ = False  # not one of pytest's

    def passes(self, p_value: float) -> bool:
        return self.p_value is not None and self.p_value < p_value


# --- samples ------------------------------------------------------------------------------------------------------


def sample_of(values: Sequence[float], *, stated_runs: int = 1, stated_sd: float | None = None) -> Sample:
    """The sample of the values of several runs; or of one value that is itself a mean of `stated_runs` runs."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Sample(max(1, stated_runs), mean, stated_sd if stated_runs > 1 else None)
    return Sample(n, mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)))


def deviation(sample: Sample, noise: Noise | None) -> tuple[float, float] | None:
    """The standard deviation to reckon with and its degrees of freedom; None where nothing is known of it."""
    own = None if sample.sd is None or sample.n < 2 else (sample.sd, float(sample.n - 1))
    if noise is None:
        return own if own is None or own[0] > _EQUAL * abs(sample.mean) else None
    if own is None:
        return (noise.sd, noise.df) if noise.df > 0 else None
    if too_far(sample, noise):
        return own
    return max(own[0], noise.sd), own[1] + noise.df


def too_far(sample: Sample, noise: Noise | None) -> bool:
    """Whether runs lie further apart than a noise model lets them, so that it is not theirs."""
    probability = _of_lying_as_close(sample, noise)
    return probability is not None and probability > 1 - _NOT_OF_THE_MODEL


def _of_lying_as_close(sample: Sample, noise: Noise | None) -> float | None:
    """The probability that runs of the noise model lie at most as far apart as these; None where one of the two does not say."""
    if noise is None or sample.sd is None or sample.n < 2 or noise.sd <= 0 or noise.df <= 0:
        return None
    return f_cdf((sample.sd / noise.sd) ** 2, sample.n - 1, noise.df)


def spread_of(
    values: Sequence[float],
    *,
    noise: Noise | None,
    stated_runs: int = 1,
    stated_sd: float | None = None,
    level: float = 0.95,
) -> Spread:
    """Mean, standard error and two-sided interval of the values of several runs."""
    sample = sample_of(values, stated_runs=stated_runs, stated_sd=stated_sd)
    found = deviation(sample, noise)
    if found is None:
        return Spread(sample.n, sample.mean, sample.sd, None, None, None, None)
    sd, df = found
    error = sd / math.sqrt(sample.n)
    half = t_quantile(0.5 + level / 2, df) * error
    source = "runs" if noise is None or sd == sample.sd else noise.source
    return Spread(sample.n, sample.mean, sample.sd, error, sample.mean - half, sample.mean + half, source)


# --- tests --------------------------------------------------------------------------------------------------------


def beats_bound(sample: Sample, bound: float, *, higher_is_better: bool, noise: Noise | None) -> Test:
    """The one-sample, one-sided test that the true mean is better than `bound`."""
    difference = sample.mean - bound if higher_is_better else bound - sample.mean
    found = deviation(sample, noise)
    if found is None:
        return Test(difference, None, None, None, _why_untestable(sample))
    return _test(difference, found[0] / math.sqrt(sample.n), found[1])


def beats(candidate: Sample, record: Sample, *, higher_is_better: bool, noise: Noise | None) -> Test:
    """The two-sample, one-sided test that the candidate's true mean is better than the record's (Welch's).

    Both are judged by one noise model, whose degrees of freedom are there once: there are never more than those of all runs together.
    """
    difference = candidate.mean - record.mean if higher_is_better else record.mean - candidate.mean
    of_its_own = [sample for sample in (candidate, record) if too_far(sample, noise)]
    if of_its_own:
        first, *more = of_its_own
        noise = None if more or first.sd is None else Noise(first.sd, first.n, "the runs of the other")
    ours, theirs = (deviation(one, None if one in of_its_own else noise) for one in (candidate, record))
    if ours is None:
        return Test(difference, None, None, None, _why_untestable(candidate))
    if theirs is None:
        return _with_lent_spread(difference, candidate, record, ours)
    a, b = ours[0] ** 2 / candidate.n, theirs[0] ** 2 / record.n
    rest = a * a / ours[1] + b * b / theirs[1]
    shared = 0.0 if noise is None else noise.df
    together = math.inf if math.isinf(shared) else ours[1] + theirs[1] - shared
    return _test(difference, math.sqrt(a + b), min(together, math.inf if rest == 0 else (a + b) ** 2 / rest))


def _with_lent_spread(difference: float, candidate: Sample, record: Sample, spread: tuple[float, float]) -> Test:
    """The pooled test where the record says nothing of its spread, of which all that is known is then the candidate's.

    Under equal spreads the difference over its error is Student's t with the candidate's degrees of freedom, also where the record is
    one run. Only a record is lent a spread: a candidate can be run with more seeds, and one lucky run of a wide spread would gain by it.
    """
    # Runs of the same value are copies or rounded: as much as one run.
    n = 1 if record.sd is not None else record.n
    found = _test(difference, spread[0] * math.sqrt(1 / candidate.n + 1 / n), spread[1])
    runs = "one run is" if record.n < 2 else f"{record.n} runs are"
    return dataclasses.replace(found, assumed=f"the other's {runs} taken to have the spread of these {candidate.n}")


def _test(difference: float, error: float, df: float) -> Test:
    if error <= 0:  # a noise model of zero: every difference is real
        return Test(difference, error, df, 0.0 if difference > 0 else 1.0)
    return Test(difference, error, df, t_cdf(-difference / error, df))


def _why_untestable(sample: Sample) -> str:
    if sample.n < 2:
        return "one run without a noise model says nothing of chance: run it with more seeds"
    if sample.sd is None:
        return f"the spread of its {sample.n} runs is not stated"
    return f"its {sample.n} runs have the same value, which runs with different seeds do not"


# --- remarks on the choice of runs --------------------------------------------------------------------------------


def too_close(sample: Sample, noise: Noise | None) -> float | None:
    """How likely runs are to lie as close together as these by chance, or None where that is not unlikely.

    Copies, rounded figures, or a choice among more runs lie closer than runs with different seeds do.
    """
    probability = _of_lying_as_close(sample, noise)
    return probability if probability is not None and probability < SUSPICIOUSLY_CLOSE else None


def missing_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Seeds between the least and the greatest that are not there: left out, or never run."""
    have = set(seeds)
    if len(have) < 2 or max(have) - min(have) > 10 * len(have):
        return ()
    return tuple(seed for seed in range(min(have), max(have)) if seed not in have)
