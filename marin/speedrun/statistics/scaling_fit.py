"""The scaling law of one family of runs, by least squares, with intervals by a bootstrap.

Given `b`, the best `a` and `c` follow by linear least squares, so the fit is a search in one dimension, and the same on every
machine. Errors are relative: residuals are divided by the quality. Intervals are from a bootstrap of residuals with a fixed seed:
what else could this curve have been, if its misfit is chance? Residuals of few points are drawn wider, as Student's t is: as they are, intervals
of five points that are said to be of 95 % hold the truth three times in four.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from marin.speedrun.statistics.distributions import normal_quantile, t_quantile
from marin.speedrun.statistics.scaling import (
    FARTHEST,
    FEWEST_BUDGETS,
    NARROWEST_RANGE,
    WIDEST_INTERVAL,
    Interval,
    Point,
    ScalingFit,
    in_order,
    num_budgets,
)

RESAMPLES = 400
_EXPONENTS = np.concatenate([np.geomspace(0.01, 1.0, 61), np.linspace(1.05, 3.0, 20)])
_SEED = 0
_LEVEL = 0.975  # of the intervals' upper ends


def fit_family(family: str, points: Sequence[Point], budget: float) -> ScalingFit:
    """The scaling law of one family, and its projection to `budget`. Points must have positive, finite figures.

    Raises:
        ValueError: if a cost or a quality is not positive and finite.
    """
    points = in_order(points)
    costs = np.array([point.cost for point in points], np.float64)
    qualities = np.array([point.quality for point in points], np.float64)
    if not (np.all(np.isfinite(costs) & (costs > 0)) and np.all(np.isfinite(qualities) & (qualities > 0))):
        raise ValueError(f"family {family}: costs and qualities must be positive and finite")
    budgets = num_budgets(costs.tolist())
    if budgets < 2:
        return _no_fit(family, points, budget, f"{budgets} budget: a line needs two")
    unit = float(np.exp(np.mean(np.log(costs))))
    parameters = 3 if budgets >= FEWEST_BUDGETS else 2
    x = np.log(costs / unit)
    best = _fit(x, qualities[None, :], parameters)
    if best[1][0] <= 0:  # of two parameters alone: runs of one size that took different times, say
        return _no_fit(family, points, budget, "the larger budgets did no better, so there is no curve to project")
    predicted = _predict(best, x)[0]
    relative = (qualities - predicted) / predicted
    spread = float(np.sum((qualities - qualities.mean()) ** 2))
    r_squared = 1 - float(np.sum((qualities - predicted) ** 2)) / spread if spread > 0 else None
    target = np.log(budget / unit)
    projection = float(_predict(best, np.array([target]))[0, 0])
    intervals: list[Interval | None] = [None, None, None, None]
    free = len(points) - parameters
    if free > 0:
        drawn = _resample(predicted, relative * np.sqrt(len(points) / free) * _of_few(free))
        fits = _fit(x, drawn, parameters)
        projected = _predict(fits, np.array([target]))[:, 0]
        intervals = [_interval(values) for values in (*fits, projected)]
    a, b, c = (float(value[0]) for value in best)
    fit = ScalingFit(
        family=family,
        points=points,
        parameters=parameters,
        unit=unit,
        a=a,
        b=b,
        c=c,
        a_interval=intervals[0],
        b_interval=intervals[1],
        c_interval=intervals[2] if parameters == 3 else None,
        r_squared=r_squared,
        budget=budget,
        projection=projection,
        projection_interval=intervals[3],
        refusal=None,
    )
    return dataclasses.replace(fit, refusal=_refusal(fit, budgets, costs))


def _no_fit(family: str, points: tuple[Point, ...], budget: float, why: str) -> ScalingFit:
    return ScalingFit(family, points, 0, 1.0, None, None, None, None, None, None, None, budget, None, None, why)


def _refusal(fit: ScalingFit, budgets: int, costs: Float[np.ndarray, "N"]) -> str | None:
    """Why a family is not ranked: the first reason that applies."""
    if budgets < FEWEST_BUDGETS:
        return (
            f"{budgets} budgets cannot support three parameters: at least {FEWEST_BUDGETS} are needed; c is not fitted"
        )
    width = float(costs.max() / costs.min())
    if width < NARROWEST_RANGE:
        return f"the budgets span a factor of {width:.1f}: at least {NARROWEST_RANGE:g} is needed to tell b from c"
    beyond = fit.budget / float(costs.max())
    if beyond > FARTHEST:
        return f"the projection lies {beyond:.0f} times beyond the largest budget: at most {FARTHEST:g} times is ranked"
    interval, projection = fit.projection_interval, fit.projection
    if interval is None or projection is None:
        return "no point is left over to say how well the curve fits"
    if fit.b is not None and (fit.b >= _EXPONENTS[-1] or fit.b <= _EXPONENTS[0]):
        return "the curve's exponent is not determined by the points"
    part = (interval.high - interval.low) / projection
    if part > WIDEST_INTERVAL:
        return f"the projection's 95 % interval is {part:.1%} of it wide: at most {WIDEST_INTERVAL:.0%} is ranked"
    return None


# --- fitting ------------------------------------------------------------------------------------------------------

_Fits = tuple[Float[np.ndarray, "R"], Float[np.ndarray, "R"], Float[np.ndarray, "R"]]


def _fit(x_N: Float[np.ndarray, "N"], y_RN: Float[np.ndarray, "R N"], parameters: int) -> _Fits:
    """a, b and c of each row of `y_RN`, by least squares of relative errors."""
    return _fit_line(x_N, y_RN) if parameters == 2 else _fit_curve(x_N, y_RN)


def _fit_line(x_N: Float[np.ndarray, "N"], y_RN: Float[np.ndarray, "R N"]) -> _Fits:
    """Without a floor the logarithm is a straight line, and a small relative error is an error of the logarithm."""
    centred_N, log_RN = x_N - x_N.mean(), np.log(y_RN)
    slope_R = log_RN @ centred_N / (centred_N @ centred_N)
    a_R = np.exp(log_RN.mean(1) - slope_R * x_N.mean())
    return a_R, -slope_R, np.zeros_like(a_R)


def _fit_curve(x_N: Float[np.ndarray, "N"], y_RN: Float[np.ndarray, "R N"]) -> _Fits:
    """A search over b on a grid, and then between its neighbours."""
    at = np.argmin(_grid_losses(x_N, y_RN), axis=1)
    low_R = _EXPONENTS[np.maximum(at - 1, 0)]
    high_R = _EXPONENTS[np.minimum(at + 1, len(_EXPONENTS) - 1)]
    if len(y_RN) == 1:
        b_R = _golden_section(lambda b_R: _loss(x_N, y_RN, b_R), low_R, high_R, iterations=40)
    else:
        # Resamples need four digits.
        b_R = _golden_section(_Moments(x_N, y_RN).loss, low_R, high_R, iterations=16)
    a_R, c_R, _ = _linear(np.exp(-b_R[:, None] * x_N[None, :]), y_RN)
    return a_R, b_R, c_R


def _golden_section(
    loss: Callable[[Float[np.ndarray, "R"]], Float[np.ndarray, "R"]],
    low_R: Float[np.ndarray, "R"], high_R: Float[np.ndarray, "R"], *, iterations: int,
) -> Float[np.ndarray, "R"]:  # fmt: skip
    """Where each row's loss is least between its bounds, all rows at once: each further iteration asks for one loss."""
    ratio = (np.sqrt(5) - 1) / 2
    left_R, right_R = high_R - ratio * (high_R - low_R), low_R + ratio * (high_R - low_R)
    at_left_R, at_right_R = loss(left_R), loss(right_R)
    for _ in range(iterations - 1):
        better_R = at_left_R < at_right_R
        low_R, high_R = np.where(better_R, low_R, left_R), np.where(better_R, right_R, high_R)
        new_R = np.where(better_R, high_R - ratio * (high_R - low_R), low_R + ratio * (high_R - low_R))
        at_new_R = loss(new_R)
        left_R, right_R = np.where(better_R, new_R, right_R), np.where(better_R, left_R, new_R)
        at_left_R, at_right_R = np.where(better_R, at_new_R, at_right_R), np.where(better_R, at_left_R, at_new_R)
    better_R = at_left_R < at_right_R
    found: Float[np.ndarray, " R"] = (np.where(better_R, low_R, left_R) + np.where(better_R, right_R, high_R)) / 2
    return found


class _Moments:
    """The least loss of each row at an exponent from sums alone: quicker, and as exact as resamples need."""

    def __init__(self, x_N: Float[np.ndarray, "N"], y_RN: Float[np.ndarray, "R N"]) -> None:
        self._x_N, self._weights_RN = x_N, 1 / y_RN
        self._squares_RN = self._weights_RN**2
        self._vv_R, self._vs_R = self._squares_RN.sum(1), self._weights_RN.sum(1)

    def loss(self, b_R: Float[np.ndarray, "R"]) -> Float[np.ndarray, "R"]:
        f_RN = np.exp(-b_R[:, None] * self._x_N[None, :])
        weighted_RN = f_RN * self._squares_RN
        uu, us = _sums_of_products(weighted_RN, f_RN), _sums_of_products(f_RN, self._weights_RN)
        a_R, c_R = _solve(uu, weighted_RN.sum(1), self._vv_R, us, self._vs_R)
        loss: Float[np.ndarray, " R"] = len(self._x_N) - a_R * us - c_R * self._vs_R
        return loss


def _sums_of_products(left_RN: Float[np.ndarray, "R N"], right_RN: Float[np.ndarray, "R N"]) -> Float[np.ndarray, "R"]:
    sums: Float[np.ndarray, " R"] = np.einsum("rn,rn->r", left_RN, right_RN)
    return sums


def _grid_losses(x_N: Float[np.ndarray, "N"], y_RN: Float[np.ndarray, "R N"]) -> Float[np.ndarray, "R E"]:
    """The squared relative errors of every row at every exponent of the grid: at the optimum they are N - a us - c vs."""
    f_EN = np.exp(-_EXPONENTS[:, None] * x_N[None, :])
    inverse_RN = 1 / y_RN
    # Not by `@`, whose threads wait for each other where other processes have the processors.
    products = functools.partial(np.einsum, "rn,en->re")
    squares_RN = inverse_RN**2
    uu, uv, us = products(squares_RN, f_EN**2), products(squares_RN, f_EN), products(inverse_RN, f_EN)
    vv, vs = squares_RN.sum(1)[:, None], inverse_RN.sum(1)[:, None]
    a, c = _solve(uu, uv, vv, us, vs)
    losses: Float[np.ndarray, "R E"] = len(x_N) - a * us - c * vs
    return losses


def _loss(
    x_N: Float[np.ndarray, "N"], y_RN: Float[np.ndarray, "R N"], b_R: Float[np.ndarray, "R"]
) -> Float[np.ndarray, "R"]:
    return _linear(np.exp(-b_R[:, None] * x_N[None, :]), y_RN)[2]


def _linear(
    f_RN: Float[np.ndarray, "R N"], y_RN: Float[np.ndarray, "R N"]
) -> tuple[Float[np.ndarray, "R"], Float[np.ndarray, "R"], Float[np.ndarray, "R"]]:
    """The best a and c (not negative) of `a f + c`, and the sum of squared relative errors."""
    u_RN, v_RN = f_RN / y_RN, 1 / y_RN  # minimize |a u + c v - 1|
    uu, uv, vv = (u_RN * u_RN).sum(1), (u_RN * v_RN).sum(1), (v_RN * v_RN).sum(1)
    a_R, c_R = _solve(uu, uv, vv, u_RN.sum(1), v_RN.sum(1))
    loss_R = ((a_R[:, None] * u_RN + c_R[:, None] * v_RN - 1) ** 2).sum(1)
    return a_R, c_R, loss_R


def _solve(
    uu: Float[np.ndarray, "*s"], uv: Float[np.ndarray, "*s"], vv: Float[np.ndarray, "*s"], us: Float[np.ndarray, "*s"],
    vs: Float[np.ndarray, "*s"],
) -> tuple[Float[np.ndarray, "*s"], Float[np.ndarray, "*s"]]:  # fmt: skip
    determinant = uu * vv - uv * uv
    solvable = determinant > 1e-12 * uu * vv
    safe = np.where(solvable, determinant, 1.0)
    a, c = (us * vv - vs * uv) / safe, (vs * uu - us * uv) / safe
    inside = solvable & (c > 0) & (a > 0)
    return np.where(inside, a, us / uu), np.where(inside, c, 0.0)


def _predict(fits: _Fits, x_N: Float[np.ndarray, "N"]) -> Float[np.ndarray, "R N"]:
    a_R, b_R, c_R = fits
    predicted: Float[np.ndarray, "R N"] = a_R[:, None] * np.exp(-b_R[:, None] * x_N[None, :]) + c_R[:, None]
    return predicted


def _resample(predicted_N: Float[np.ndarray, "N"], relative_N: Float[np.ndarray, "N"]) -> Float[np.ndarray, "R N"]:
    source = np.random.default_rng(_SEED)
    drawn_RN = source.choice(relative_N - relative_N.mean(), size=(RESAMPLES, len(relative_N)))
    sampled: Float[np.ndarray, "R N"] = predicted_N[None, :] * np.maximum(1 + drawn_RN, 1e-6)
    return sampled


def _of_few(free: int) -> float:
    """How much wider an interval is where the errors' spread itself is known from so few points left over (Student's t)."""
    return t_quantile(_LEVEL, free) / normal_quantile(_LEVEL)


def _interval(values_R: Float[np.ndarray, "R"]) -> Interval:
    low, high = np.quantile(values_R, [1 - _LEVEL, _LEVEL])
    return Interval(float(low), float(high))
