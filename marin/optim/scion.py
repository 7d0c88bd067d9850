"""Scion (Pethick et al., 2025, arXiv:2502.07529): steps of a fixed norm, with a norm for each kind of parameter.

With the averaged gradient d <- (1 - alpha) d + alpha g, a parameter moves by the point of a ball of radius rho that goes
furthest against d:

    hidden matrix [in, out]   rho sqrt(out / in) U V^T   for d = U S V^T (spectral norm)
    head [in, out]            rho / in  sign(d)          (largest element)
    embedding [vocab, width]  rho sign(d)                (largest element; its inputs are one-hot)
    the rest                  rho d / rms(d)

With `weight_decay=1`, the default, W <- (1 - rate) W + rate * point: the constrained algorithm, whose weights stay in the
balls. With 0 it is the unconstrained one. There is no second moment and no other optimizer beside it.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from marin.optim.config import LEAST_EPSILON, OptimizerConfig, by_name, check_range, parameter_role
from marin.optim.orthogonalize import QUINTIC, orthogonalize_all


@dataclasses.dataclass(frozen=True)
class ScionConfig(OptimizerConfig):
    """Scion. Radii of hidden matrices and head are the paper's for GPT-2 sizes; the two others are a start.

    Args:
        alpha: the part of a new gradient in the average; 1 keeps no average.
        hidden_radius, head_radius, embedding_radius, other_radius: rho of each kind.
        backend_steps: Newton-Schulz iterations.
    """

    learning_rate: float = 2**-12
    weight_decay: float = 1.0
    default_weight_decay_mask: bool | None = False
    alpha: float = 0.1
    hidden_radius: float = 50.0
    head_radius: float = 3000.0
    embedding_radius: float = 50.0
    other_radius: float = 1.0
    backend_steps: int = 5
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("alpha", self.alpha, above=0.0, at_most=1.0)
        for field in ("hidden_radius", "head_radius", "embedding_radius", "other_radius"):
            check_range(field, getattr(self, field), above=0.0)
        check_range("epsilon", self.epsilon, at_least=LEAST_EPSILON)
        check_range("backend_steps", self.backend_steps, at_least=1, whole=True)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        points = {
            "matrix": optax.stateless(lambda d, _: self._spectral(d)),
            "head": _each(lambda d: self.head_radius / d.shape[0] * jnp.sign(d)),
            "embedding": _each(lambda d: self.embedding_radius * jnp.sign(d)),
            "other": _each(lambda d: self.other_radius * d / (jnp.sqrt(jnp.mean(jnp.square(d))) + self.epsilon)),
        }
        return optax.chain(
            average_gradients(self.alpha), by_name(points, parameter_role), *self.decay_and_rate(num_train_steps)
        )

    def _spectral(self, averages: optax.Updates) -> optax.Updates:
        leaves, structure = jax.tree.flatten(averages)
        factors = orthogonalize_all(leaves, num_steps=self.backend_steps, epsilon=self.epsilon, coefficients=QUINTIC)
        return jax.tree.unflatten(
            structure, [self.hidden_radius * (u.shape[1] / u.shape[0]) ** 0.5 * u for u in factors]
        )


class AverageState(NamedTuple):
    """The averaged gradient."""

    average: optax.Updates


def average_gradients(alpha: float) -> optax.GradientTransformation:
    """d <- (1 - alpha) d + alpha g from d = 0, without a correction for the start: only the direction counts here."""

    def init(params: optax.Params) -> AverageState:
        return AverageState(jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: optax.Updates, state: AverageState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, AverageState]:
        average = jax.tree.map(lambda d, g: (1 - alpha) * d + alpha * g, state.average, updates)
        return average, AverageState(average)

    return optax.GradientTransformation(init, update)


def _each(point: Callable[[Array], Array]) -> optax.GradientTransformation:
    return optax.stateless(lambda averages, _: jax.tree.map(point, averages))
