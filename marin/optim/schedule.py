"""Learning-rate schedules: warmup, a stable stretch, and a decay, once or in cycles.

A run of N steps is cut into cycles. The first cycle starts with `warmup` from zero, later ones with `rewarmup` from where
the cycle before ended; each ends with `decay`; what remains between is constant at the peak (with one cycle: WSD, Hu et
al., 2024, arXiv:2404.06395). Lengths up to 1 are fractions of the cycle (so `decay=1` decays over all of it), larger ones
are steps; `decay=None` decays over all that the warmup leaves.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array

from marin.errors import ConfigError
from marin.number_checks import check_whole

Schedule = Callable[[Array], Array]
# A rate that is computed when a schedule is traced: building one must not start JAX, whose settings come later.
Rate = Callable[[], float | Array]

# Steps after which `inv_sqrt` falls, counted from the start of the warmup.
INV_SQRT_TIMESCALE = 10_000


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a decay knows: the rate it starts from, the least it may reach, its steps, and those of the warmup before."""

    peak: float
    low: float
    steps: int
    warmup_steps: int


def _cosine(progress: Array, stage: Stage) -> Array:
    """Half a cosine from peak to low (Loshchilov and Hutter, 2017, arXiv:1608.03983)."""
    return stage.low + (stage.peak - stage.low) * 0.5 * (1.0 + jnp.cos(math.pi * progress))


def _linear(progress: Array, stage: Stage) -> Array:
    return stage.peak + (stage.low - stage.peak) * progress


def _constant(progress: Array, stage: Stage) -> Array:
    return jnp.full_like(progress, stage.peak)


def _inv_sqrt(progress: Array, stage: Stage) -> Array:
    """peak sqrt(timescale / steps), once that is below the peak; steps count from the start of the warmup."""
    steps = jnp.maximum(progress * stage.steps + stage.warmup_steps, 1.0)
    return jnp.maximum(stage.low, stage.peak * jnp.minimum(1.0, 1.0 / jnp.sqrt(steps / INV_SQRT_TIMESCALE)))


def _inv(progress: Array, stage: Stage) -> Array:
    """1/rate grows linearly from 1/peak to 1/low, with the first step's rate as the second's; 1/steps where low is 0."""
    count = jnp.maximum(progress * stage.steps, 1.0)
    slope = (stage.peak / stage.low - 1.0) / stage.steps if stage.low > 0 else 1.0
    return stage.peak / (1.0 + slope * count)


Decay = Callable[[Array, Stage], Array]
# Functions from the progress of the decay, 0 to 1, to the rate.
DECAYS: dict[str, Decay] = {
    "constant": _constant,
    "cosine": _cosine,
    "linear": _linear,
    "inv_sqrt": _inv_sqrt,
    "inv": _inv,
}


@dataclasses.dataclass(frozen=True)
class PowerSchedule:
    """min(peak, batch_size a n^b) after n tokens of the decay (Shen et al., 2024, arXiv:2408.13359), for `lr_schedule`.

    The rate does not depend on how long the run is. The defaults of `a` and `b` are the paper's, for its parametrization.

    Args:
        batch_size: sequences a step.
        seq_length: tokens a sequence.
    """

    batch_size: int
    seq_length: int
    a: float = 4.6
    b: float = -0.51

    def __post_init__(self) -> None:
        for field in ("batch_size", "seq_length"):
            check_whole(f"`PowerSchedule.{field}`", getattr(self, field))
        numbers = all(isinstance(each, int | float) and math.isfinite(each) for each in (self.a, self.b))
        if not (numbers and self.a > 0 > self.b):
            raise ConfigError(f"`PowerSchedule` has a={self.a!r} and b={self.b!r}: use `a` above 0 and `b` below 0")

    def __call__(self, progress: Array, stage: Stage) -> Array:
        num_tokens = progress * stage.steps * (self.batch_size * self.seq_length)
        return jnp.minimum(stage.peak, self.batch_size * self.a * num_tokens**self.b)


def find_decay(kind: str | PowerSchedule) -> Decay:
    """Raises:
    ConfigError: if there is no such schedule, with those that there are.
    """
    if isinstance(kind, PowerSchedule):
        return kind
    if kind == "power":
        raise ConfigError("`lr_schedule` is 'power': use PowerSchedule(batch_size=..., seq_length=...) of marin.optim")
    if not isinstance(kind, str) or kind not in DECAYS:
        raise ConfigError(f"`lr_schedule` is {kind!r}: use one of {', '.join(DECAYS)}, or a PowerSchedule")
    return DECAYS[kind]


def steps_of(length: float, total: int, field: str) -> int:
    """A length that is a fraction of `total` (at most 1) or a number of steps, as steps.

    A fraction is cut as Levanter's `_convert_frac_or_steps` cuts it, so that one config gives one schedule in both: the product
    is a float64, and 0.29 of 100 steps, which is a little less than 29 there, are 28. Whole steps say it exactly.

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
    kind: str | PowerSchedule,
    warmup: float,
    decay: float | None,
    rewarmup: float,
    min_lr_ratio: float,
    cycles: int | Sequence[int] | None = None,
    cycle_length: float | Sequence[int] | None = None,
) -> Schedule:
    """A function from the step (0-based) to the learning rate.

    Raises:
        ConfigError: for an unknown kind, a ratio outside [0, 1], or stages longer than the run.
    """
    shape = find_decay(kind)
    if not 0 <= min_lr_ratio <= 1:
        raise ConfigError(f"`min_lr_ratio` is {min_lr_ratio}: use a ratio between 0 and 1")
    pieces: list[tuple[int, Schedule]] = []
    low = peak * min_lr_ratio
    start = 0
    before: Rate = _zero
    for index, length in enumerate(_cycle_lengths(num_train_steps, cycles, cycle_length)):
        name = "warmup" if index == 0 else "rewarmup"
        rise = steps_of(warmup if index == 0 else rewarmup, length, name)
        if rise > length:
            of = f"a run of {length} steps" if length == num_train_steps else f"a cycle of {length} steps"
            raise ConfigError(f"`{name}` of {rise} steps does not fit into {of}: shorten it, or train for longer")
        fall = length - rise if decay is None else steps_of(decay, length, "decay")
        if rise + fall > length:
            raise ConfigError(
                f"`{name}` of {rise} and `decay` of {fall} steps do not fit into {length} steps: shorten one"
            )
        if rise:
            pieces.append((start, _rise(start, rise, before, peak)))
        if length > rise + fall:
            pieces.append((start + rise, lambda step: jnp.full_like(step, peak)))
        before = functools.partial(_same, peak)
        if fall:
            stage = Stage(peak, low, fall, rise)
            pieces.append((start + length - fall, _fall(start + length - fall, shape, stage)))
            before = functools.partial(_end_of, shape, stage)
        start += length

    def schedule(step: Array) -> Array:
        step = jnp.asarray(step).astype(jnp.float32)
        rate = jnp.full_like(step, peak)
        for first, piece in pieces:
            rate = jnp.where(step >= first, piece(step), rate)
        return rate

    return schedule


def _zero() -> float:
    return 0.0


def _same(rate: float) -> float:
    return rate


def _end_of(shape: Decay, stage: Stage) -> Array:
    return shape(jnp.ones((), jnp.float32), stage)


def _rise(start: int, steps: int, before: Rate, peak: float) -> Schedule:
    def rise(step: Array) -> Array:
        low = before()
        return low + (peak - low) * (step - start) / steps

    return rise


def _fall(start: int, decay: Decay, stage: Stage) -> Schedule:
    return lambda step: decay(jnp.clip((step - start) / stage.steps, 0.0, 1.0), stage)


def _cycle_lengths(
    total: int, cycles: int | Sequence[int] | None, cycle_length: float | Sequence[int] | None
) -> list[int]:
    if cycles is not None and cycle_length is not None:
        raise ConfigError("`cycles` and `cycle_length` are both set: leave one None")
    if isinstance(cycles, list | tuple):
        ends = [*cycles] if cycles and cycles[-1] == total else [*cycles, total]
        lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        if any(length < 1 for length in lengths):
            raise ConfigError(f"`cycles` is {cycles}: list the steps at which cycles end, rising, at most {total}")
        return lengths
    if isinstance(cycles, int):
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
