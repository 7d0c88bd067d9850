"""The gated feed-forward block (Shazeer, 2020, arXiv:2002.05202) and the activations that a config can name."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from marin.nn.linear import Linear

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "relu2": lambda x: jax.numpy.square(jax.nn.relu(x)),
    "tanh": jax.numpy.tanh,
}


class GatedMlp(eqx.Module):
    """`down(activation(gate(x)) * up(x))`: SwiGLU where the activation is silu."""

    gate: Linear
    up: Linear
    down: Linear
    activation: str = eqx.field(static=True)

    @staticmethod
    def init(
        width: int, hidden: int, *, key: PRNGKeyArray, std: float, activation: str = "silu", use_bias: bool = False
    ) -> "GatedMlp":
        gate_key, up_key, down_key = jax.random.split(key, 3)
        return GatedMlp(
            gate=Linear.init(width, hidden, key=gate_key, std=std, use_bias=use_bias),
            up=Linear.init(width, hidden, key=up_key, std=std, use_bias=use_bias),
            down=Linear.init(hidden, width, key=down_key, std=std, use_bias=use_bias),
            activation=activation,
        )

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate, up = self.gate(x), self.up(x)
        # The format first: what describes a model traces it in float32, before processes know each other and JAX may begin.
        if gate.dtype == jnp.bfloat16 and jax.default_backend() == "gpu":
            # Their gradients are computed together. Otherwise XLA takes each as a part of the product that it goes into, and computes it
            # by itself where that product is then a library's: what both need is read twice.
            gate, up = jax.lax.optimization_barrier((gate, up))
        return self.down(ACTIVATIONS[self.activation](gate) * up)
