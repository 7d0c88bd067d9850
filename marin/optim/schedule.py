"""Learning-rate schedules: warmup, a stable stretch, and a decay, once or in cycles.

A run of N steps is cut into cycles. The first cycle starts with `warmup`, later ones with `rewarmup`; each ends with
`decay`; what remains between is constant at the peak. Lengths up to 1 are fractions of the cycle (so `decay=1` decays
over all of it), larger ones are steps; `decay=None` decays over all that the warmup leaves.
"""

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array

from marin.errors import ConfigError

Schedule = Callable[[Array], Array]


def _cosine(progress: Array, peak: float, low: float, steps: int) -> Array:
    return low + (peak - low) * 0.5 * (1.0 + jnp.cos(math.pi * progress))


def _linear(progress: Array, peak: float, low: float, steps: int) -> Array:
    return peak + (low - peak) * progress


def _constant(progress: Array, peak: float, low: float, steps: int) -> Array:
    return jnp.full_like(progress, peak)


def _inv_sqrt(progress: Array, peak: float, low: float, steps: int) -> Array:
    return jnp.maximum(low, peak / jnp.sqrt(1.0 + progress * steps))


def _inv(progress: Array, peak: float, low: float, steps: int) -> Array:
    """Hyperbolic: 1/rate grows linearly from 1/peak to 1/low (Bergsma et al., 2025, arXiv:2502.15938, for comparison)."""
    return peak / (1.0 + progress * (peak / low - 1.0)) if low > 0 else peak / (1.0 + progress * steps)


DECAYS: dict[str, Callable[[Array, float, float, int], Array]] = {
    "constant": _constant,
    "cosine": _cosine,
    "linear": _linear,
    "inv_sqrt": _inv_sqrt,
    "inv": _inv,
}


def steps_of(length: float, total: int, field: str) -> int:
    """A length that is a fraction of `total` (at most 1) or a number of steps, as steps.

    Raises:
        ConfigError: if it is negative, or not whole where it means steps.
    """
    if length < 0 or (length > 1 and int(length) != length):
        raise ConfigError(f"`{field}` is {length}: use a fraction between 0 and 1, or a whole number of steps")
    return int(length * total) if length <= 1 else int(length)


def build_schedule(
    *,
    peak: float,
    num_train_steps: int,
    kind: str,
    warmup: float,
    decay: float | None,
    rewarmup: float,
    min_lr_ratio: float,
    cycles: int | None = None,
    cycle_length: float | Sequence[int] | None = None,
) -> Schedule:
    """A function from the step (0-based) to the learning rate.

    Raises:
        ConfigError: for an unknown kind, a ratio outside [0, 1], or stages longer than the run.
    """
    if kind not in DECAYS:
        raise ConfigError(f"`lr_schedule` is {kind!r}: use one of {', '.join(DECAYS)}")
    if not 0 <= min_lr_ratio <= 1:
        raise ConfigError(f"`min_lr_ratio` is {min_lr_ratio}: use a ratio between 0 and 1")
    pieces: list[tuple[int, Schedule]] = []
    low = peak * min_lr_ratio
    start = 0
    for index, length in enumerate(_cycle_lengths(num_train_steps, cycles, cycle_length)):
        rise = steps_of(warmup if index == 0 else rewarmup, length, "warmup" if index == 0 else "rewarmup")
        fall = length - rise if decay is None else steps_of(decay, length, "decay")
        if rise + fall > length:
            raise ConfigError(
                f"`warmup` of {rise} and `decay` of {fall} steps do not fit into {length} steps: shorten one"
            )
        if rise:
            pieces.append((start, _rise(start, rise, 0.0 if index == 0 else low, peak)))
        if length > rise + fall:
            pieces.append((start + rise, lambda step: jnp.full_like(step, peak)))
        if fall:
            pieces.append((start + length - fall, _fall(start + length - fall, fall, kind, peak, low)))
        start += length

    def schedule(step: Array) -> Array:
        step = jnp.asarray(step).astype(jnp.float32)
        rate = jnp.full_like(step, peak)
        for first, piece in pieces:
            rate = jnp.where(step >= first, piece(step), rate)
        return rate

    return schedule


def _rise(start: int, steps: int, low: float, peak: float) -> Schedule:
    return lambda step: low + (peak - low) * (step - start) / steps


def _fall(start: int, steps: int, kind: str, peak: float, low: float) -> Schedule:
    return lambda step: DECAYS[kind](jnp.clip((step - start) / steps, 0.0, 1.0), peak, low, steps)


def _cycle_lengths(total: int, cycles: int | None, cycle_length: float | Sequence[int] | None) -> list[int]:
    if cycles is not None and cycle_length is not None:
        raise ConfigError("`cycles` and `cycle_length` are both set: leave one None")
    if cycles is not None:
        if not 1 <= cycles <= total:
            raise ConfigError(f"`cycles` is {cycles}: use 1 to {total}, the number of steps")
        ends = [total * (i + 1) // cycles for i in range(cycles)]
        return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    if cycle_length is None:
        return [total]
    if isinstance(cycle_length, int | float):
        length = steps_of(cycle_length, total, "cycle_length")
        if length < 1:
            raise ConfigError(f"`cycle_length` is {cycle_length}, less than one step of {total}")
        lengths = [length] * (total // length)
    else:
        lengths = [int(length) for length in cycle_length]
    rest = total - sum(lengths)
    if rest < 0 or any(length < 1 for length in lengths):
        raise ConfigError(f"`cycle_length` {cycle_length} does not fit into {total} steps")
    return lengths + [rest] if rest else lengths
