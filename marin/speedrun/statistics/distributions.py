"""The normal, Student's t, non-central t and F distributions, as far as the contest's tests need them.

Written out because importing `scipy.stats` takes seconds, where verifying a submission takes a fifth of one; the tests compare
every function with SciPy's. Accurate to about eight digits; F with very many degrees of freedom to six.
"""

import functools
import math
import statistics
from collections.abc import Callable

_NORMAL = statistics.NormalDist()
_TINY = 1e-300
_PARTS = 100


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def normal_quantile(p: float) -> float:
    return _NORMAL.inv_cdf(p)


def t_cdf(x: float, df: float) -> float:
    """P(T <= x) of Student's t with `df` degrees of freedom; the normal distribution's where `df` is infinite."""
    if math.isinf(df) or math.isinf(x):
        return normal_cdf(x)
    square = x * x
    if square < 3:  # beyond, the tail itself is computed, which keeps its digits
        tail = 0.5 - 0.5 * _incomplete_beta(0.5, df / 2, square / (df + square))
    else:
        tail = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + square))
    return 1 - tail if x > 0 else tail


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The x with `t_cdf(x, df) == p`, for 0 < p < 1."""
    if math.isinf(df):
        return normal_quantile(p)
    if p < 0.5:
        return -t_quantile(1 - p, df) if p > 1e-9 else -_upper(p, df)
    return 0.0 if p == 0.5 else _upper(1 - p, df)


def _upper(tail: float, df: float) -> float:
    """The x above which `tail` of the distribution lies, by bisection of the logarithm."""
    low, high = 1e-12, 1.0
    while t_cdf(-high, df) > tail:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(-middle, df) > tail else (low, middle)
        if high - low <= 1e-14 * high:
            break
    return (low + high) / 2


def f_cdf(x: float, df1: float, df2: float) -> float:
    """P(F <= x) of the ratio of two variances with `df1` and `df2` degrees of freedom."""
    if x <= 0:
        return 0.0
    df2 = min(df2, 1e9)  # from there on it is a chi-squared over its degrees of freedom, to nine digits
    return _incomplete_beta(df1 / 2, df2 / 2, df1 * x / (df1 * x + df2))


def t_power(shift: float, df: float, p_value: float) -> float:
    """The probability that a one-sided t-test at `p_value` passes, where the mean lies `shift` standard errors in its favour."""
    critical = t_quantile(1 - p_value, df)
    if math.isinf(df):
        return normal_cdf(shift - critical)

    density = _deviation_density(df)
    width = 12 / math.sqrt(2 * df)
    low, high = max(0.0, 1 - width), 1 + width
    parts = 400 + 2 * int(10 * critical * (high - low))  # the normal distribution turns within 1 / critical
    # Over the cube root of s: with fewer than two degrees of freedom the density is not smooth at 0.
    start, end = low ** (1 / 3), high ** (1 / 3)

    def passing(root: float) -> float:
        s = root**3
        return 3 * root * root * density(s) * normal_cdf(shift - critical * s)

    return min(1.0, _simpson(passing, start, end, parts))


def _simpson(function: Callable[[float], float], low: float, high: float, parts: int) -> float:
    """The integral by Simpson's rule over an even number of parts."""
    step = (high - low) / parts
    weights = (1 if i in (0, parts) else 4 if i % 2 else 2 for i in range(parts + 1))
    return math.fsum(weight * function(low + i * step) for i, weight in enumerate(weights)) * step / 3


def _deviation_density(df: float) -> Callable[[float], float]:
    """Of the standard deviation that is estimated with `df` degrees of freedom over the true one."""
    constant = (df / 2) * math.log(df / 2) - math.lgamma(df / 2) + math.log(2)

    def density(s: float) -> float:
        if s <= 0:
            return math.sqrt(2 / math.pi) if df == 1 else 0.0
        return math.exp(constant + (df - 1) * math.log(s) - df * s * s / 2)

    return density


@functools.lru_cache(maxsize=256)
def deviations_from_one_on(df: int) -> tuple[tuple[float, float], ...]:
    """What is reckoned with where an estimate with `df` degrees of freedom is not taken below the true deviation: (part of it, probability)."""
    if df < 1:
        return ((1.0, 1.0),)
    density = _deviation_density(df)
    step = 12 / math.sqrt(2 * df) / _PARTS
    above = [(s, density(s) * step) for s in (1 + step * (k + 0.5) for k in range(_PARTS))]
    return ((1.0, 1 - math.fsum(weight for _, weight in above)), *above)


@functools.lru_cache(maxsize=256)
def expected_best_of(k: int) -> float:
    """How many standard deviations the best of `k` equal runs lies beyond their mean, on average."""
    if k < 2:
        return 0.0
    return _simpson(lambda x: x * k * _NORMAL.pdf(x) * normal_cdf(x) ** (k - 1), -9.0, 9.0, 4000)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (modified Lentz)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta_fraction(b, a, 1 - x)
    return _incomplete_beta_fraction(a, b, x)


def _incomplete_beta_fraction(a: float, b: float, x: float) -> float:
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    result = d
    for m in range(1, 1000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            c = 1 + numerator / c
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * result
