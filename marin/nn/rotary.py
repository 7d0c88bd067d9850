"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864), in the half-split layout that Llama checkpoints use."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """`theta` sets the slowest rotation; `factor` stretches positions (linear scaling) for longer contexts."""

    theta: float = 10000
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.theta > 0 or not self.factor > 0:
            raise ConfigError(f"`rope` has theta {self.theta} and factor {self.factor}: both must be above 0")

    def scaled(
        self, position_T: Float[Array, " T"], frequency_C: Float[Array, " half"]
    ) -> tuple[Float[Array, " T"], Float[Array, " half"]]:
        """Positions and radians a position, stretched for longer contexts; an angle is their product."""
        return position_T / self.factor, frequency_C


@dataclasses.dataclass(frozen=True)
class Llama3RotaryConfig(RotaryConfig):
    """The scaling of Llama 3.1: slow rotations are stretched by `factor`, fast ones stay, those in between are blended.

    Args:
        low_freq_factor: a rotation that turns fewer times than this within the original context is stretched in full.
        high_freq_factor: one that turns more often than this stays as it is.
        original_max_position_embeddings: the context that the model was trained with before the stretch.
    """

    theta: float = 500000
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.low_freq_factor < self.high_freq_factor or self.original_max_position_embeddings < 1:
            raise ConfigError(
                f"`rope` has low_freq_factor {self.low_freq_factor}, high_freq_factor {self.high_freq_factor} and"
                f" original_max_position_embeddings {self.original_max_position_embeddings}: the first must be above 0 and"
                " below the second, the last at least 1"
            )

    def scaled(
        self, position_T: Float[Array, " T"], frequency_C: Float[Array, " half"]
    ) -> tuple[Float[Array, " T"], Float[Array, " half"]]:
        turns_C = frequency_C * (self.original_max_position_embeddings / (2 * math.pi))
        kept_C = jnp.clip((turns_C - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0.0, 1.0)
        return position_T, frequency_C * (kept_C + (1.0 - kept_C) / self.factor)


@dataclasses.dataclass(frozen=True)
class NtkRotaryConfig(RotaryConfig):
    """The scaling of the GTE encoders: slow rotations are stretched, the fastest by no more than `factor^(2/head_dim)`.

    The frequency of pair i of a head of width C is `(theta * factor)^(-2i/C) / factor^(2/C)` (Su, 2023, kexue.fm/archives/9706).
    """

    theta: float = 500000
    factor: float = 2.0

    def scaled(
        self, position_T: Float[Array, " T"], frequency_C: Float[Array, " half"]
    ) -> tuple[Float[Array, " T"], Float[Array, " half"]]:
        pairs = frequency_C.shape[0]
        return position_T, frequency_C * self.factor ** (-(jnp.arange(pairs, dtype=jnp.float32) + 1.0) / pairs)


def rotary_angles(
    config: RotaryConfig, num_positions: int, head_dim: int
) -> tuple[Float[Array, "T half"], Float[Array, "T half"]]:
    """Cosine and sine of every position's angles, in float32.

    Raises:
        ConfigError: if `head_dim` is odd.
    """
    return rotary_angles_at(config, jnp.arange(num_positions), head_dim)


def rotary_angles_at(
    config: RotaryConfig, position: Int[Array, "..."], head_dim: int
) -> tuple[Float[Array, "... half"], Float[Array, "... half"]]:
    """The same for positions of any shape.

    Raises:
        ConfigError: if `head_dim` is odd.
    """
    if head_dim % 2:
        raise ConfigError(f"`head_dim` is {head_dim}: rotary embedding rotates pairs, so use an even number")
    frequency = config.theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    position_T, frequency = config.scaled(position.reshape(-1).astype(jnp.float32), frequency)
    angle_TC = jnp.outer(position_T, frequency)
    if angle_TC.size % 2:
        cos_TC, sin_TC = jnp.cos(angle_TC), jnp.sin(angle_TC)
    else:
        # In a loop of two halves: XLA's CPU compiler computes a cosine again for every element that it multiplies, in each layer
        # and head, but not what a loop leaves. A table in the program would be taken for a copy of the text by `one_pass`.
        cos_TC, sin_TC = jax.lax.map(lambda half: (jnp.cos(half), jnp.sin(half)), angle_TC.reshape(2, -1))
    shape = (*position.shape, head_dim // 2)
    return cos_TC.reshape(shape), sin_TC.reshape(shape)


def apply_rotary(
    x_BTHC: Float[Array, "B T H C"], cos_TC: Float[Array, "*b T half"], sin_TC: Float[Array, "*b T half"]
) -> Float[Array, "B T H C"]:
    """Rotates each pair (i, i + C/2) by its position's angle; the arithmetic is float32.

    Angles are those of a position [T, half], or of each row's [B, T, half].
    """
    first, second = jnp.split(x_BTHC.astype(jnp.float32), 2, axis=-1)
    rows = (slice(None) if cos_TC.ndim == 3 else None, slice(None), None)
    cos, sin = cos_TC[rows], sin_TC[rows]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BTHC.dtype)
