"""How many runs a claim needs to be told from chance, and what chance it then has."""

import dataclasses
import math

from marin.errors import ConfigError
from marin.speedrun.statistics.distributions import (
    deviations_from_one_on,
    expected_best_of,
    normal_cdf,
    t_power,
    t_quantile,
)

MOST_RUNS = 100_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many runs a claim needs, and what chance it then has."""

    runs: int
    power: float
    best_of_runs: float  # by how much the luckiest single run beats the mean, on average


@dataclasses.dataclass(frozen=True)
class _Claim:
    """What is to be shown, and against what: the arguments of `plan_runs`."""

    effect: float
    sd: float
    p_value: float
    noise_runs: int | None
    known: bool
    against: int | None

    def power(self, runs: int) -> float:
        """How often a true improvement passes the test with so many runs.

        Left out is that chance has one sample in a hundred not judged by the noise model, which takes up to 0.01 from it.
        """
        extra = math.inf if self.known else max(0, (self.noise_runs or 1) - 1)
        ours, theirs = 1 / runs, 0.0 if self.against is None else 1 / self.against
        df = runs - 1 + extra
        if df <= 0:
            return 0.0
        rest = 0 if self.against is None or self.known else self.against - 1 + extra
        if rest > 0:  # as in Welch's test; one run without a noise model is lent the spread of these
            df = min((ours + theirs) ** 2 / (ours**2 / df + theirs**2 / rest), df + rest - extra)
        shift = self.effect / (self.sd * math.sqrt(ours + theirs))
        if extra == 0:
            return t_power(shift, df, self.p_value)
        # Runs that lie further apart than the noise model says are reckoned with as they lie, closer ones by the model.
        critical = t_quantile(1 - self.p_value, df)
        return math.fsum(
            one * other * normal_cdf(shift - critical * math.sqrt((ours * a * a + theirs * b * b) / (ours + theirs)))
            for a, one in deviations_from_one_on(runs - 1)
            for b, other in deviations_from_one_on(0 if self.against is None else self.against - 1)
        )


def plan_runs(
    effect: float, *, sd: float, p_value: float = 0.01, power: float = 0.9, noise_runs: int | None = None,
    known: bool = False, against: int | None = None,
) -> Plan:  # fmt: skip
    """The fewest runs with which a true improvement of `effect` passes a one-sided test at `p_value` with probability `power`.

    Args:
        sd: standard deviation between runs that differ in their seeds.
        noise_runs: how many other runs `sd` was measured from; with `known`, `sd` is taken as exact.
        against: how many runs the record has; None for a claim against a fixed bound.
    Raises:
        ConfigError: if a figure makes no sense, or no number of runs up to 100,000 is enough.
    """
    _check(effect, sd, p_value, power, against)
    claim = _Claim(effect, sd, p_value, noise_runs, known, against)
    if claim.power(MOST_RUNS) < power:
        why = (
            f"the record's own {against} {'runs leave' if against != 1 else 'run leaves'} too much doubt"
            if against
            else "the effect is too small"
        )
        raise ConfigError(
            f"no number of runs up to {MOST_RUNS:,} shows an effect of {effect:g} at sd {sd:g} with power {power:g}: {why}"
        )
    low, high = 0, 1
    while claim.power(high) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if claim.power(middle) >= power else (middle, high)
    return Plan(high, claim.power(high), sd * expected_best_of(high))


def _check(effect: float, sd: float, p_value: float, power: float, against: int | None) -> None:
    for name, value in (("effect", effect), ("sd", sd)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"`{name}` is {value:g}: give a positive number, in the units of the metric")
    for name, value in (("p", p_value), ("power", power)):
        if not 0 < value < 1:
            raise ConfigError(f"`{name}` is {value:g}: give a probability between 0 and 1")
    if p_value >= power:
        raise ConfigError(f"`power` is {power:g}, not above p ({p_value:g}): no run at all has that power")
    if against is not None and against < 1:
        raise ConfigError(f"`against` is {against}: give the number of runs that the record has, at least 1")


def p_if_best_of(p_value: float, attempts: int) -> float:
    """What a p-value is worth where the claim is the best of `attempts` (Šidák)."""
    return -math.expm1(attempts * math.log1p(-p_value)) if p_value < 1 else 1.0
