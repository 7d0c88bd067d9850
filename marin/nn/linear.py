"""Matrices that models learn: `Linear` and `Embedding`.

Weights are held in float32 and cast by the caller's precision policy before the forward pass; nothing here casts.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin.nn.axes import SEQUENCE, ambient_axes, lay_out_activations, replicate
from marin.nn.weight_gradients import leaves_cores_idle, product
from marin.nn.wide_sums import rows_of, shifted


class Linear(eqx.Module):
    """`y = x W (+ b)`, with the weight stored inputs first so that no transpose is needed."""

    weight_IO: Float[Array, "I O"]
    bias_O: Float[Array, " O"] | None

    @staticmethod
    def init(inputs: int, outputs: int, *, key: PRNGKeyArray, std: float, use_bias: bool = False) -> "Linear":
        """Normal initial values of standard deviation `std`, cut at three deviations; the bias starts at zero."""
        weight = std * jax.random.truncated_normal(key, -3.0, 3.0, (inputs, outputs), jnp.float32)
        return Linear(weight, jnp.zeros((outputs,), jnp.float32) if use_bias else None)

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        # As one matrix of all positions: on CPU the weight's gradient, a contraction over [B, T], takes XLA 1.6 times as
        # long when the two stay apart (2 AVX-512 cores, width 192). Where both are divided they cannot become one.
        flat = x if SEQUENCE in ambient_axes() else x.reshape(-1, x.shape[-1])
        y = product(flat, self.weight_IO) if leaves_cores_idle(flat, self.weight_IO) else flat @ self.weight_IO
        if self.bias_O is not None:
            y = shifted(y, self.bias_O.reshape((1,) * (y.ndim - 1) + (-1,)))
        y = y.reshape(*x.shape[:-1], -1)
        return lay_out_activations(y)


class Embedding(eqx.Module):
    """A row of numbers for each token id."""

    weight_VD: Float[Array, "V D"]

    @staticmethod
    def init(vocab_size: int, width: int, *, key: PRNGKeyArray, std: float) -> "Embedding":
        return Embedding(std * jax.random.normal(key, (vocab_size, width), jnp.float32))

    def __call__(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        # Gathered first: the rows of a divided table would be exchanged through all activations on every device.
        return lay_out_activations(rows_of(replicate(self.weight_VD), tokens))
