"""Norms and histograms of gradients, parameters and updates, computed inside the step on the steps that record them.

A histogram has 31 bins of equal width between the least and the largest value that is finite. It leaves the step as one array,
[least, largest, not finite, count, ..., count], and is written as `{"min": ..., "max": ..., "counts": [...]}`, with
`"not_finite": ...` where values are infinite or no numbers: that these come is what one looks at histograms for.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin.nn.trees import named_leaves
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
            for name, leaf in named_leaves(targets[target]).items():
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
    low, high, not_finite, *counts = value.tolist()
    found: dict[str, object] = {"min": low, "max": high, "counts": [int(count) for count in counts]}
    return found | {"not_finite": int(not_finite)} if not_finite else found


def _histogram(values: Float[Array, " N"]) -> Float[Array, " 34"]:
    """Counts by comparing with each edge, which every device does in one pass and without a scatter."""
    finite = jnp.isfinite(values)
    num_finite = jnp.sum(finite)
    low = jnp.where(num_finite > 0, jnp.min(values, where=finite, initial=jnp.inf), 0.0)
    high = jnp.where(num_finite > 0, jnp.max(values, where=finite, initial=-jnp.inf), 0.0)
    edges = low + (high - low) * (jnp.arange(1, _NUM_BINS, dtype=jnp.float32) / _NUM_BINS)
    below = jnp.sum((values[None, :] < edges[:, None]) & finite[None, :], axis=1)
    ends = jnp.concatenate([jnp.zeros(1, below.dtype), below, num_finite[None]])
    ranges = jnp.stack([low, high, (values.size - num_finite).astype(jnp.float32)])
    return jnp.concatenate([ranges, jnp.diff(ends).astype(jnp.float32)])
