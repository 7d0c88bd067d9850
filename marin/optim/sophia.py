"""Sophia-H (Liu et al., 2023, arXiv:2305.14342): momentum divided by a running estimate of the Hessian's diagonal, clipped.

    every `update_interval` steps:  h <- beta2 h + (1 - beta2) r * (H r),  r random signs
    update = clip(m / max(gamma h, epsilon), 1)

The signs follow from the run's seed (`with_seed`). H r costs about two gradients, on those steps only. `update` needs the keyword `obj_fn`, the loss as a function of the
parameters, which the training step gives. The diagonal is Optax's estimate; Optax's own Sophia is not used, as it
corrects m for its start and divides by the h of the step before, where the paper does neither.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin.optim.adamw import check_adam_fields
from marin.optim.config import OptimizerConfig, check_range, clip

_HUTCHINSON = optax.contrib.hutchinson_estimator_diag_hessian()


@dataclasses.dataclass(frozen=True)
class SophiaConfig(OptimizerConfig):
    """Sophia-H with decoupled weight decay, for every parameter.

    Args:
        gamma: with a larger one, fewer elements are clipped; the paper wants 10 to 50 % that are not.
        update_interval: steps between two estimates of the diagonal.
        max_grad_norm: clips the gradient before the momentum.
    """

    beta1: float = 0.96
    beta2: float = 0.99
    gamma: float = 0.01
    epsilon: float = 1e-12
    update_interval: int = 10
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adam_fields(self)
        check_range("gamma", self.gamma, above=0.0)
        check_range("update_interval", self.update_interval, at_least=1, whole=True)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        return optax.chain(
            clip(self.max_grad_norm),
            scale_by_sophia(self.beta1, self.beta2, self.gamma, self.epsilon, self.update_interval),
            *self.decay_and_rate(num_train_steps),
        )


class SophiaState(NamedTuple):
    """Steps so far, momentum, the averaged diagonal, and the state of the random signs."""

    num_steps: Int[Array, ""]
    momentum: optax.Updates
    diagonal: optax.Updates
    signs: optax.OptState


def with_seed(opt_state: optax.OptState, seed: int) -> optax.OptState:
    """A new state of any optimizer, with what it draws at random made to follow from the seed: the signs of Sophia."""

    def seeded(node: object) -> object:
        if not isinstance(node, SophiaState):
            return node
        drawn = optax.contrib.hutchinson_estimator_diag_hessian(jax.random.PRNGKey(seed))
        return node._replace(signs=drawn.init(node.momentum))

    return jax.tree.map(seeded, opt_state, is_leaf=lambda node: isinstance(node, SophiaState))


def scale_by_sophia(
    beta1: float, beta2: float, gamma: float, epsilon: float, update_interval: int
) -> optax.GradientTransformationExtraArgs:
    """Replaces gradients by Sophia's directions, whose elements lie in [-1, 1]."""

    def init(params: optax.Params) -> SophiaState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SophiaState(jnp.zeros((), jnp.int32), zeros, zeros, _HUTCHINSON.init(params))

    def update(
        updates: optax.Updates,
        state: SophiaState,
        params: optax.Params | None = None,
        *,
        obj_fn: Callable[[optax.Params], Float[Array, ""]],
        **extra: object,
    ) -> tuple[optax.Updates, SophiaState]:
        momentum = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.momentum, updates)

        def estimate() -> tuple[optax.Updates, optax.OptState]:
            curvature, signs = _HUTCHINSON.update(updates, state.signs, params, obj_fn=obj_fn)
            return jax.tree.map(lambda h, c: beta2 * h + (1 - beta2) * c, state.diagonal, curvature), signs

        diagonal, signs = jax.lax.cond(
            state.num_steps % update_interval == 0, estimate, lambda: (state.diagonal, state.signs)
        )
        directions = jax.tree.map(
            lambda m, h: jnp.clip(m / jnp.maximum(gamma * h, epsilon), -1.0, 1.0), momentum, diagonal
        )
        return directions, SophiaState(state.num_steps + 1, momentum, diagonal, signs)

    return optax.GradientTransformationExtraArgs(init, update)
