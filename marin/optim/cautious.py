"""Cautious weight decay (Chen et al., 2025, arXiv:2510.12402): decay only where it agrees with the update.

An element w with the descent direction u (the parameter moves by -rate u) decays only where u w >= 0: where the step takes
it towards zero anyway. Where the step makes it larger, decay would undo what the gradient asks for.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array


def add_cautious_decay(weight_decay: float, mask: Callable[[object], object]) -> optax.GradientTransformation:
    """Adds `weight_decay * w` to the updates of the masked parameters wherever the two have the same sign.

    Stands where `optax.add_decayed_weights` would: after the direction, before the rate.
    """

    def add(update: Array, weight: Array) -> Array:
        return update + weight_decay * jnp.where(update * weight >= 0, weight, jnp.zeros_like(weight))

    def apply(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        return jax.tree.map(add, updates, params)

    return optax.masked(optax.stateless(apply), mask)
