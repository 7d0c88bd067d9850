"""How sure one can be: means, intervals, one-sided tests, and how many runs a claim needs."""

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Noise:
    """How much runs that differ in their seeds alone differ in a metric.

    `runs` is how many runs it was measured from; None where the source does not say. The standard deviation is then taken as known.
    """

    sd: float
    runs: int | None
    source: str


@dataclasses.dataclass(frozen=True)
class Spread:
    """Several runs of one configuration: `low` to `high` is the 95 % interval of their mean.

    `None` where one run and no noise model leave it unknown. `noise_from` is "runs" or the source of the noise model.
    """

    n: int
    mean: float
    sd: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    noise_from: str | None


def spread_of(
    values: Sequence[float], *, noise: Noise | None, stated_runs: int = 1, stated_sd: float | None = None
) -> Spread:
    """The spread of the values of several runs; of one row that is itself a mean of `stated_runs`."""
    n = len(values) if len(values) > 1 else stated_runs
    mean = math.fsum(values) / len(values)
    own = (
        math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        if len(values) > 1
        else stated_sd
    )
    sd = own if noise is None else noise.sd if own is None else max(own, noise.sd)
    if sd is None:
        return Spread(n, mean, None, None, None, None, None)
    error = sd / math.sqrt(n)
    return Spread(
        n,
        mean,
        own,
        error,
        mean - 1.96 * error,
        mean + 1.96 * error,
        "runs" if own == sd or noise is None else noise.source,
    )
