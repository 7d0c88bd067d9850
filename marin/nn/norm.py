"""Normalizations: by root mean square (Zhang and Sennrich, 2019, arXiv:1910.07467), and of layers (Ba et al., 2016, arXiv:1607.06450)."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclasses.dataclass(frozen=True)
class RmsNormConfig:
    """How a normalization is built; `use_weight=False` leaves out the learned scale."""

    epsilon: float = 1e-5
    use_weight: bool = True

    def build(self, width: int) -> "RmsNorm":
        return RmsNorm(jnp.ones((width,), jnp.float32) if self.use_weight else None, self.epsilon)


class RmsNorm(eqx.Module):
    """Scales the last dimension to a root mean square of one; the statistics are float32 whatever the input."""

    weight_D: Float[Array, " D"] | None
    epsilon: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        x32 = x.astype(jnp.float32)
        y = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.epsilon)
        if self.weight_D is not None:
            y = y * self.weight_D.astype(jnp.float32).reshape((1,) * (y.ndim - 1) + (-1,))
        return y.astype(x.dtype)


class LayerNorm(eqx.Module):
    """Centres the last dimension and scales it to a variance of one; the statistics are float32 whatever the input."""

    weight_D: Float[Array, " D"]
    bias_D: Float[Array, " D"]
    epsilon: float = eqx.field(static=True)

    @staticmethod
    def init(width: int, *, epsilon: float) -> "LayerNorm":
        return LayerNorm(jnp.ones((width,), jnp.float32), jnp.zeros((width,), jnp.float32), epsilon)

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        y = centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.epsilon)
        shape = (1,) * (y.ndim - 1) + (-1,)
        y = y * self.weight_D.astype(jnp.float32).reshape(shape) + self.bias_D.astype(jnp.float32).reshape(shape)
        return y.astype(x.dtype)
