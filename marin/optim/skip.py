"""Leaving out updates whose loss or gradient is not to be trusted."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int


class SkipBadStepsState(NamedTuple):
    """Recent losses and gradient norms (rows of `history`), how many were seen, and how many updates were left out."""

    inner: optax.OptState
    history: Float[Array, "2 window"]
    num_taken: Int[Array, ""]
    skipped: Int[Array, ""]


def skip_bad_steps(
    inner: optax.GradientTransformation, *, window: int = 128, num_deviations: float = 6.0
) -> optax.GradientTransformationExtraArgs:
    """Skips a step whose loss or gradient norm is not finite, or far above what was usual lately.

    "Far above" is more than `num_deviations` standard deviations over the mean of the last `window` steps that were
    taken, once that many have been. A skipped step changes neither parameters nor optimizer state. `update` needs the
    keyword `loss`.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> SkipBadStepsState:
        zero = jnp.zeros((), jnp.int32)
        return SkipBadStepsState(inner.init(params), jnp.zeros((2, window), jnp.float32), zero, zero)

    def update(
        updates: optax.Updates,
        state: SkipBadStepsState,
        params: optax.Params | None = None,
        *,
        loss: Float[Array, ""],
        **extra: object,
    ) -> tuple[optax.Updates, SkipBadStepsState]:
        measured = jnp.stack([loss.astype(jnp.float32), optax.tree.norm(updates).astype(jnp.float32)])
        good = _is_usual(measured, state, window, num_deviations)
        # Zeros in place of bad gradients, so that no NaN reaches the inner arithmetic.
        safe = jax.tree.map(lambda g: jnp.where(good, g, jnp.zeros_like(g)), updates)
        new_updates, new_inner = inner.update(safe, state.inner, params, **extra)
        keep = lambda new, old: jnp.where(good, new, old)  # noqa: E731
        history = state.history.at[:, state.num_taken % window].set(measured)
        return (
            jax.tree.map(lambda u: jnp.where(good, u, jnp.zeros_like(u)), new_updates),
            SkipBadStepsState(
                inner=jax.tree.map(keep, new_inner, state.inner),
                history=jnp.where(good, history, state.history),
                num_taken=state.num_taken + good.astype(jnp.int32),
                skipped=state.skipped + (~good).astype(jnp.int32),
            ),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _is_usual(
    measured: Float[Array, " 2"], state: SkipBadStepsState, window: int, num_deviations: float
) -> Bool[Array, ""]:
    limit = jnp.mean(state.history, axis=1) + num_deviations * jnp.std(state.history, axis=1)
    outlier = jnp.any(measured > limit) & (state.num_taken >= window)
    return jnp.all(jnp.isfinite(measured)) & ~outlier
