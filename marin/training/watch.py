"""Norms and histograms of gradients, parameters and updates, computed inside the step on the steps that record them.

A histogram has 31 bins of equal width between the least and the largest value. It leaves the step as one array, [least,
largest, count, ..., count], and is written as `{"min": ..., "max": ..., "counts": [...]}`.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin.training.config import WatchConfig

_NUM_BINS = 31


def watched_figures(watch: WatchConfig, step: Int[Array, ""], targets: dict[str, object]) -> dict[str, Array]:
    """What is watched by name ("grads/norm", "params/norm/blocks.0.mlp.up.weight_IO", "grads/histogram/..."); zeros on
    steps that do not record."""

    def compute() -> dict[str, Array]:
        figures: dict[str, Array] = {}
        for target in watch.watch_targets:
            if watch.include_norms:
                figures[f"{target}/norm"] = optax.tree.norm(targets[target]).astype(jnp.float32)
            for path, leaf in jax.tree_util.tree_leaves_with_path(targets[target]):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                values = leaf.astype(jnp.float32).reshape(-1)
                if watch.include_per_parameter_norms:
                    figures[f"{target}/norm/{name}"] = jnp.linalg.norm(values)
                if watch.include_histograms:
                    figures[f"{target}/histogram/{name}"] = _histogram(values)
        return figures

    shapes = jax.eval_shape(compute)
    return jax.lax.cond(
        is_recorded(watch, step),
        compute,
        lambda: {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()},
    )


def is_recorded(watch: WatchConfig, step: Int[Array, ""] | int) -> Array | bool:
    return step % watch.interval == 0


def as_figure(value: Float[Array, "..."]) -> float | dict[str, object]:
    """A number, or a histogram as it is written."""
    if value.ndim == 0:
        return float(value)
    low, high, *counts = value.tolist()
    return {"min": low, "max": high, "counts": [int(count) for count in counts]}


def _histogram(values: Float[Array, " N"]) -> Float[Array, " 33"]:
    """Counts by comparing with each edge, which every device does in one pass and without a scatter."""
    low, high = jnp.min(values), jnp.max(values)
    edges = low + (high - low) * (jnp.arange(1, _NUM_BINS, dtype=jnp.float32) / _NUM_BINS)
    below = jnp.sum(values[None, :] < edges[:, None], axis=1)
    ends = jnp.concatenate([jnp.zeros(1, below.dtype), below, jnp.full(1, values.size, below.dtype)])
    return jnp.concatenate([jnp.stack([low, high]), jnp.diff(ends).astype(jnp.float32)])
