"""Norms of gradients, parameters and updates, computed inside the step on the steps that record them."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from marin.training.config import WatchConfig


def watched_norms(watch: WatchConfig, step: Int[Array, ""], targets: dict[str, object]) -> dict[str, Array]:
    """Norms by name ("grads/norm", "params/norm/blocks.0.mlp.up.weight_IO"); zeros on steps that do not record."""

    def compute() -> dict[str, Array]:
        norms: dict[str, Array] = {}
        for target in watch.watch_targets:
            if watch.include_norms:
                norms[f"{target}/norm"] = optax.tree.norm(targets[target]).astype(jnp.float32)
            if watch.include_per_parameter_norms:
                for path, leaf in jax.tree_util.tree_leaves_with_path(targets[target]):
                    name = jax.tree_util.keystr(path, simple=True, separator=".")
                    norms[f"{target}/norm/{name}"] = jnp.linalg.norm(leaf.astype(jnp.float32).reshape(-1))
        return norms

    shapes = jax.eval_shape(compute)
    return jax.lax.cond(
        is_recorded(watch, step),
        compute,
        lambda: {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()},
    )


def is_recorded(watch: WatchConfig, step: Int[Array, ""] | int) -> Array | bool:
    return step % watch.interval == 0
