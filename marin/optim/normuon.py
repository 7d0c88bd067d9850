"""NorMuon (Li et al., 2025, arXiv:2510.05491): Muon whose update has a like size for every output neuron.

An orthogonalized update can be large for some neurons and small for others. NorMuon keeps a running mean of the squared
update of each output neuron (a column of [in, out]), divides by its root, and brings the whole matrix back to the norm
that Muon's would have. With it come two more settings of Muon for the matrices: the coefficients of the iteration (Polar
Express) and cautious weight decay.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from marin.errors import ConfigError
from marin.optim.cautious import add_cautious_decay
from marin.optim.config import LEAST_EPSILON, check_range
from marin.optim.muon import MuonConfig, scale_by_muon, shape_scale
from marin.optim.orthogonalize import COEFFICIENTS


@dataclasses.dataclass(frozen=True)
class NorMuonConfig(MuonConfig):
    """NorMuon for hidden matrices, AdamW for the rest. `use_kimi_scaling=True` is the paper's scale.

    Args:
        variance_beta: decay rate of the squared updates of neurons; None leaves them as Muon makes them.
        variance_epsilon: added to their root.
        coefficients: of the iteration, "polar_express" or "quintic".
        cautious_decay: decay the matrices only where that agrees with the update (see `marin.optim.cautious`).
    """

    use_kimi_scaling: bool = True
    variance_beta: float | None = 0.95
    variance_epsilon: float = 1e-8
    coefficients: str = "polar_express"
    cautious_decay: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.variance_beta is not None:
            check_range("variance_beta", self.variance_beta, at_least=0.0, below=1.0)
        check_range("variance_epsilon", self.variance_epsilon, at_least=LEAST_EPSILON)
        if self.coefficients not in COEFFICIENTS:
            raise ConfigError(f"`coefficients` is {self.coefficients!r}: use one of {', '.join(COEFFICIENTS)}")

    def matrix_rule(self, num_train_steps: int) -> optax.GradientTransformation:
        muon = scale_by_muon(
            self.momentum,
            self.nesterov,
            self.backend_steps,
            self.muon_epsilon,
            self.use_kimi_scaling,
            COEFFICIENTS[self.coefficients],
        )
        decay, rate = self.decay_and_rate(num_train_steps)
        return optax.chain(
            muon,
            optax.identity()
            if self.variance_beta is None
            else normalize_neurons(self.variance_beta, self.variance_epsilon, self.use_kimi_scaling),
            add_cautious_decay(self.weight_decay, self.decay_mask()) if self.cautious_decay else decay,
            rate,
        )


class NeuronVarianceState(NamedTuple):
    """For each matrix [in, out], a running mean of the squared update of each output."""

    variance: optax.Updates


def normalize_neurons(beta: float, epsilon: float, use_kimi_scaling: bool) -> optax.GradientTransformation:
    """Divides each output's updates by their root mean square over time, and keeps the size that Muon gives a matrix.

    That size is a Frobenius norm of sqrt(min(in, out)), an orthogonal matrix's, times `shape_scale`; with Kimi scaling it
    is the paper's 0.2 sqrt(in out).
    """

    def init(params: optax.Params) -> NeuronVarianceState:
        return NeuronVarianceState(jax.tree.map(lambda p: jnp.zeros(p.shape[1:], p.dtype), params))

    def normalize(update_IO: Float[Array, "I O"], variance_O: Float[Array, " O"]) -> Float[Array, "I O"]:
        scaled_IO = update_IO / (jnp.sqrt(variance_O) + epsilon)[None, :]
        size = shape_scale(scaled_IO.shape, use_kimi_scaling) * min(scaled_IO.shape) ** 0.5
        norm = jnp.linalg.norm(scaled_IO)
        return scaled_IO * jnp.where(norm > 0, size / norm, 0.0)  # a gradient of zero stays an update of zero

    def update(
        updates: optax.Updates, state: NeuronVarianceState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, NeuronVarianceState]:
        # Of the update without the scale of its shape, as the paper's epsilon is added to an orthogonal matrix's.
        plain = jax.tree.map(lambda u: u / shape_scale(u.shape, use_kimi_scaling), updates)
        variance = jax.tree.map(
            lambda v, u: beta * v + (1 - beta) * jnp.mean(jnp.square(u), axis=0), state.variance, plain
        )
        return jax.tree.map(normalize, plain, variance), NeuronVarianceState(variance)

    return optax.GradientTransformation(init, update)
