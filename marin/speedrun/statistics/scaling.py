"""Scaling laws of families of runs: `quality = a cost^-b + c`, with intervals, and a refusal to rank where they say too little.

Three parameters need more than three points: a family of fewer than five budgets gets the two-parameter fit with c = 0, said so and
not ranked, since without a floor every extrapolation is too good. The fits are made in `scaling_fit`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

FEWEST_BUDGETS = 5
DISTINCT = 1.05  # two budgets closer than this factor are one
WIDEST_INTERVAL = 0.02  # of the projection's 95 % interval, as a part of the projection, for a family to be ranked
NARROWEST_RANGE = 10.0  # from the least to the greatest budget
FARTHEST = 30.0  # a projection this many times beyond the largest budget is not ranked


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a family."""

    key: str
    cost: float
    quality: float


@dataclasses.dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class ScalingFit:
    """`quality = a (cost / unit)^-b + c`; `unit` is the geometric mean of the costs, so that `a` is of the size of qualities.

    `refusal` says why the family is not ranked; None where it is. With `parameters` 2, `c` was not fitted and is 0.
    """

    family: str
    points: tuple[Point, ...]
    parameters: int
    unit: float
    a: float | None
    b: float | None
    c: float | None
    a_interval: Interval | None
    b_interval: Interval | None
    c_interval: Interval | None
    r_squared: float | None
    budget: float
    projection: float | None
    projection_interval: Interval | None
    refusal: str | None
    rank: int | None = None

    def at(self, cost: float) -> float | None:
        """The fitted quality at a cost."""
        if self.a is None or self.b is None or self.c is None:
            return None
        return float(self.a * (cost / self.unit) ** -self.b + self.c)


def in_order(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points of a family as its fit has them."""
    return tuple(sorted(points, key=lambda point: (point.cost, point.quality, point.key)))


def num_budgets(costs: Sequence[float]) -> int:
    """How many budgets there are, where costs within five percent of each other are one."""
    count, last = 0, 0.0
    for cost in sorted(costs):
        if cost > last * DISTINCT:
            count, last = count + 1, cost
    return count


Fitter = Callable[[str, Sequence[Point], float], ScalingFit]


def rank_families(
    families: Mapping[str, Sequence[Point]], budget: float, fitted: Fitter | None = None
) -> tuple[ScalingFit, ...]:
    """Fits of all families: those whose points support it by their projection to `budget`, then the others by name.

    Args:
        fitted: `scaling_fit.fit_family`, or what gives the same sooner.
    """
    if fitted is None:
        # It brings NumPy, which most readers of a board do without.
        from marin.speedrun.statistics.scaling_fit import fit_family

        fitted = fit_family
    fits = [fitted(name, points, budget) for name, points in families.items()]
    fits.sort(key=lambda fit: (fit.refusal is not None, fit.projection if fit.refusal is None else 0.0, fit.family))
    return tuple(
        dataclasses.replace(fit, rank=place if fit.refusal is None else None) for place, fit in enumerate(fits, start=1)
    )
