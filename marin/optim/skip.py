"""Leaving out updates whose loss or gradient is not to be trusted."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

_LEAST_DEVIATION = 1e-6  # of losses that are all the same


class SkipBadStepsState(NamedTuple):
    """Recent losses and gradient norms (rows of `history`), how many went into it, and how many updates were left out."""

    inner: optax.OptState
    history: Float[Array, "2 window"]
    num_seen: Int[Array, ""]
    skipped: Int[Array, ""]


def skip_bad_steps(
    inner: optax.GradientTransformation, *, window: int = 128, num_deviations: float = 6.0
) -> optax.GradientTransformationExtraArgs:
    """Skips a step whose loss or gradient norm is not finite, or far above what was usual lately.

    "Far above" is more than `num_deviations` standard deviations over the mean of the last `window` finite steps, once there
    have been that many. A skipped step changes neither parameters nor optimizer state. In the history it counts as no more
    than the limit that it passed: one outlier does not let others through, and where the loss has risen for good the limit
    follows within a window, so that training goes on. `update` needs the keyword `loss`.
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
        limit = _limit(state, window, num_deviations)
        finite = jnp.all(jnp.isfinite(measured))
        good = finite & jnp.all(measured <= limit)
        # Zeros in place of bad gradients, so that no NaN reaches the inner arithmetic.
        safe = jax.tree.map(lambda g: jnp.where(good, g, jnp.zeros_like(g)), updates)
        new_updates, new_inner = inner.update(safe, state.inner, params, **extra)
        keep = lambda new, old: jnp.where(good, new, old)  # noqa: E731
        history = state.history.at[:, state.num_seen % window].set(jnp.minimum(measured, limit))
        return (
            jax.tree.map(lambda u: jnp.where(good, u, jnp.zeros_like(u)), new_updates),
            SkipBadStepsState(
                inner=jax.tree.map(keep, new_inner, state.inner),
                history=jnp.where(finite, history, state.history),
                num_seen=state.num_seen + finite.astype(jnp.int32),
                skipped=state.skipped + (~good).astype(jnp.int32),
            ),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _limit(state: SkipBadStepsState, window: int, num_deviations: float) -> Float[Array, " 2"]:
    """Of a loss and a gradient norm that are usual; infinite before there is a window of them."""
    deviation = jnp.maximum(jnp.std(state.history, axis=1), _LEAST_DEVIATION)
    limit = jnp.mean(state.history, axis=1) + num_deviations * deviation
    return jnp.where(state.num_seen >= window, limit, jnp.inf)
