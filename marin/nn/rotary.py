"""Rotary position embedding (Su et al., 2021, arXiv:2104.09864), in the half-split layout that Llama checkpoints use."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from marin.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """`theta` sets the slowest rotation; `factor` stretches positions (linear scaling) for longer contexts."""

    theta: float = 10000
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not self.theta > 0 or not self.factor > 0:
            raise ConfigError(f"`rope` has theta {self.theta} and factor {self.factor}: both must be above 0")


def rotary_angles(
    config: RotaryConfig, num_positions: int, head_dim: int
) -> tuple[Float[Array, "T half"], Float[Array, "T half"]]:
    """Cosine and sine of every position's angles, in float32.

    Raises:
        ConfigError: if `head_dim` is odd.
    """
    if head_dim % 2:
        raise ConfigError(f"`head_dim` is {head_dim}: rotary embedding rotates pairs, so use an even number")
    frequency = config.theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = jnp.outer(jnp.arange(num_positions, dtype=jnp.float32) / config.factor, frequency)
    return jnp.cos(angle), jnp.sin(angle)


def apply_rotary(
    x_BTHC: Float[Array, "B T H C"], cos_TC: Float[Array, "T half"], sin_TC: Float[Array, "T half"]
) -> Float[Array, "B T H C"]:
    """Rotates each pair (i, i + C/2) by its position's angle; the arithmetic is float32."""
    first, second = jnp.split(x_BTHC.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_TC[None, :, None, :], sin_TC[None, :, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BTHC.dtype)
