"""MARS (Yuan et al., 2024, arXiv:2411.10438): AdamW on gradients corrected for their variance.

    c_t = g_t + gamma beta1 / (1 - beta1) (g_t - g_{t-1}),  scaled to a norm of at most 1

and Adam's moments are those of c_t. This is the paper's approximate form, which takes the gradient of the step before as
it was, on its own batch, instead of computing it again on this one: one gradient a step.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from marin.optim.adamw import check_adam_fields
from marin.optim.config import OptimizerConfig, check_range, clip


@dataclasses.dataclass(frozen=True)
class MarsConfig(OptimizerConfig):
    """MARS-AdamW.

    Args:
        gamma: how much of the correction is applied; 0 is AdamW.
        max_grad_norm: of the corrected gradient, over all parameters together.
    """

    beta1: float = 0.95
    beta2: float = 0.99
    gamma: float = 0.025
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adam_fields(self)
        check_range("gamma", self.gamma, at_least=0.0)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        return optax.chain(
            correct_variance(self.gamma * self.beta1 / (1.0 - self.beta1)),
            clip(self.max_grad_norm),
            optax.scale_by_adam(self.beta1, self.beta2, self.epsilon),
            *self.decay_and_rate(num_train_steps),
        )


class CorrectVarianceState(NamedTuple):
    """Steps so far, and the gradient of the last."""

    num_steps: Int[Array, ""]
    gradient: optax.Updates


def correct_variance(strength: float) -> optax.GradientTransformation:
    """Adds `strength` times the change of the gradient since the last step; the first step has no change."""

    def init(params: optax.Params) -> CorrectVarianceState:
        return CorrectVarianceState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: optax.Updates, state: CorrectVarianceState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, CorrectVarianceState]:
        corrected = jax.tree.map(
            lambda g, last: g + strength * jnp.where(state.num_steps > 0, g - last, jnp.zeros_like(g)),
            updates,
            state.gradient,
        )
        return corrected, CorrectVarianceState(state.num_steps + 1, updates)

    return optax.GradientTransformation(init, update)
