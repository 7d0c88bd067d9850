"""The optimizer groups of nanochat at HEAD (Karpathy et al., 2026), for `marin.models.gpt.Gpt`.

    head                        AdamW    betas 0.8, 0.96    decay 0.01
    embedding                   AdamW    betas 0.8, 0.995   decay 0.001
    value embeddings            AdamW    betas 0.8, 0.995   decay 0.01
    residual scales             AdamW    betas 0.8, 0.95    decay 0.05
    input scales                AdamW    betas 0.96, 0.95
    smear, backout, the rest    AdamW    betas 0.8, 0.95
    matrices, gates of values   Muon     momentum and decay by step

Muon's update goes through six stages: Nesterov momentum; every output's gradients divided by their norm (MuonEq); Polar
Express; the Frobenius norm of an orthogonal matrix (Muon+); a running mean of squares along the longer side (NorMuon); and
decay where it agrees with the update. Nothing is clipped. All rates share one multiplier: a linear warmup, a flat stretch,
and a linear decay, whose share of the steps is cut to whole ones as in every schedule here (nanochat rounds it). Momentum
rises from 0.85 to 0.97 in 400 steps and falls to 0.90 while rates decay; the weight decay of matrices falls to zero along half
a cosine.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from marin.errors import ConfigError
from marin.optim.config import OMIT_DEFAULT, OptimizerConfig, by_name, check_range, parameter_role
from marin.optim.orthogonalize import POLAR_EXPRESS, orthogonalize_all
from marin.optim.schedule import Schedule, steps_of

_EPSILON = 1e-10
# Group: (field of the rate, beta1, beta2, weight decay).
_ADAM_GROUPS = {
    "head": ("head_lr", 0.8, 0.96, 0.01),
    "embedding": ("embedding_lr", 0.8, 0.995, 0.001),
    "value_embeddings": ("value_embedding_lr", 0.8, 0.995, 0.01),
    "residual_scale": ("residual_scale_lr", 0.8, 0.95, 0.05),
    "input_scale": ("input_scale_lr", 0.96, 0.95, 0.0),
    "rest": ("mixing_lr", 0.8, 0.95, 0.0),
}
_GROUP_OF_FIELD = {
    "value_embeddings": "value_embeddings",
    "residual_scale_L": "residual_scale",
    "input_scale_L": "input_scale",
}
_GROUP_OF_ROLE = {"matrix": "matrix", "embedding": "embedding", "head": "head", "other": "rest"}

_OWN_DECAY = "each group of this optimizer has a weight decay of its own"
_ONE_CYCLE = "the momentum and weight decay of this optimizer go through the run once"
_WITHOUT_EFFECT = {
    "weight_decay_modules": _OWN_DECAY,
    "default_weight_decay_mask": _OWN_DECAY,
    "rewarmup": _ONE_CYCLE,
    "cycles": _ONE_CYCLE,
    "cycle_length": _ONE_CYCLE,
}
"""Fields of every optimizer's config that this one cannot honour, and why."""


@dataclasses.dataclass(frozen=True)
class GptMuonConfig(OptimizerConfig):
    """Rates of the groups, as they are at the flat stretch of the schedule.

    `marin.gpt2.depth` works them out for a depth and a batch size; the defaults are those of depth 12 and 2^19 tokens a step.
    With another model than `Gpt` a parameter's role decides about its group.

    Args:
        learning_rate: of the matrices; one with more outputs than inputs takes sqrt(outputs / inputs) of it.
        embedding_lr, value_embedding_lr, head_lr, residual_scale_lr, input_scale_lr: of the groups of these names.
        mixing_lr: of smear, backout, and vectors of other models.
        weight_decay: of the matrices, at the first step.
        momentum_start, momentum, momentum_end: of the matrices: at first, after `momentum_steps` steps, and at the end.
        variance_beta: decay rate of the mean squares of updates.
        polar_steps: iterations of Polar Express.
    """

    learning_rate: float = 0.02
    weight_decay: float = 0.28
    min_lr_ratio: float = 0.05
    warmup: float = 40
    decay: float | None = 0.65
    lr_schedule: str = dataclasses.field(default="linear", kw_only=True, metadata=OMIT_DEFAULT)
    embedding_lr: float = 0.3
    value_embedding_lr: float = 0.15
    head_lr: float = 0.008
    residual_scale_lr: float = 0.005
    input_scale_lr: float = 0.5
    mixing_lr: float = 0.2
    momentum_start: float = 0.85
    momentum: float = 0.97
    momentum_end: float = 0.90
    momentum_steps: int = 400
    variance_beta: float = 0.9
    polar_steps: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, why in _WITHOUT_EFFECT.items():
            value = getattr(self, field)
            if value not in (None, 0.0) or value is False:
                raise ConfigError(
                    f"config field `{field}` is {value!r}, but {why}: leave it out, or write a variant of marin/optim/gpt_muon.py"
                )
        for rate, *_ in _ADAM_GROUPS.values():
            check_range(rate, getattr(self, rate), above=0.0)
        check_range("momentum_steps", self.momentum_steps, at_least=1, whole=True)
        check_range("polar_steps", self.polar_steps, at_least=1, whole=True)
        for name in ("momentum_start", "momentum", "momentum_end", "variance_beta"):
            check_range(name, getattr(self, name), at_least=0.0, below=1.0)

    def schedule(self, num_train_steps: int, peak: float | None = None) -> Schedule:
        """The learning rate by step; with a warmup of n steps, step i (0-based) takes (i + 1) / n of the peak."""
        usual = super().schedule(num_train_steps, peak)
        rise = steps_of(self.warmup, num_train_steps, "warmup")

        def rate(step: Array) -> Array:
            step = jnp.asarray(step).astype(jnp.float32)
            return usual(jnp.where(step < rise, step + 1.0, step))

        return rate

    def momentum_at(self, num_steps: int) -> Schedule:
        """Muon's momentum by step."""
        fall = num_steps if self.decay is None else steps_of(self.decay, num_steps, "decay")

        def momentum(step: Array) -> Float[Array, ""]:
            step = jnp.asarray(step).astype(jnp.float32)
            risen = jnp.minimum(step / self.momentum_steps, 1.0)
            rising = self.momentum_start + (self.momentum - self.momentum_start) * risen
            fallen = (step - (num_steps - fall)) / max(fall, 1)
            falling = self.momentum + (self.momentum_end - self.momentum) * fallen
            # In a short run rates decay before the rise is over.
            return jnp.where(step < max(self.momentum_steps, num_steps - fall), rising, falling)

        return momentum

    def decay_at(self, num_steps: int) -> Schedule:
        """The weight decay of matrices by step."""

        def decay(step: Array) -> Float[Array, ""]:
            share = jnp.asarray(step).astype(jnp.float32) / num_steps
            return self.weight_decay * 0.5 * (1.0 + jnp.cos(math.pi * share))

        return decay

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        rules = {
            group: optax.chain(
                optax.scale_by_adam(beta1, beta2, _EPSILON),
                optax.add_decayed_weights(decay),
                optax.scale_by_learning_rate(self.schedule(num_train_steps, peak=getattr(self, rate))),
            )
            for group, (rate, beta1, beta2, decay) in _ADAM_GROUPS.items()
        }
        return by_name(rules | {"matrix": self.matrix_rule(num_train_steps)}, group_of)

    def matrix_rule(self, num_train_steps: int) -> optax.GradientTransformation:
        """From gradients of the blocks' matrices to what is added to them."""
        rate, decay = self.schedule(num_train_steps), self.decay_at(num_train_steps)
        momentum = self.momentum_at(num_train_steps)

        def init(params: optax.Params) -> GptMuonState:
            return GptMuonState(
                jnp.zeros((), jnp.int32),
                jax.tree.map(jnp.zeros_like, params),
                jax.tree.map(lambda p: jnp.zeros(_variance_shape(p.shape), p.dtype), params),
            )

        def update(updates: optax.Updates, state: GptMuonState, params: optax.Params | None = None) -> Any:
            assert params is not None
            mu = momentum(state.step)
            buffers = jax.tree.map(lambda m, g: mu * m + (1.0 - mu) * g, state.momentum, updates)
            nesterov = jax.tree.map(lambda m, g: mu * m + (1.0 - mu) * g, buffers, updates)
            leaves, structure = jax.tree.flatten(nesterov)
            polar = orthogonalize_all(
                [equilibrated(leaf) for leaf in leaves],
                num_steps=self.polar_steps,
                epsilon=1e-6,
                coefficients=POLAR_EXPRESS,
            )
            sized = jax.tree.unflatten(structure, [_with_norm(leaf, min(leaf.shape) ** 0.5) for leaf in polar])
            pairs = jax.tree.map(lambda u, v: normalized(u, v, self.variance_beta), sized, state.variance)
            directions = jax.tree.map(lambda pair: pair[0], pairs, is_leaf=_is_pair)
            variance = jax.tree.map(lambda pair: pair[1], pairs, is_leaf=_is_pair)

            def step(direction: Array, weight: Array) -> Array:
                inputs, outputs = direction.shape
                scaled = rate(state.step) * max(1.0, outputs / inputs) ** 0.5
                kept = jnp.where(direction * weight >= 0, weight, jnp.zeros_like(weight))
                return -scaled * (direction + decay(state.step) * kept)

            return jax.tree.map(step, directions, params), GptMuonState(state.step + 1, buffers, variance)

        return optax.GradientTransformation(init, update)


class GptMuonState(NamedTuple):
    """For each matrix its momentum, and the mean square of its update along the longer side."""

    step: Array
    momentum: optax.Updates
    variance: optax.Updates


def group_of(path: str, leaf: jax.Array) -> str:
    """The group of a parameter."""
    return _GROUP_OF_FIELD.get(path.split(".")[0]) or _GROUP_OF_ROLE[parameter_role(path, leaf)]


def equilibrated(gradient_IO: Float[Array, "I O"]) -> Float[Array, "I O"]:
    """The gradients of each output divided by their norm (MuonEq), so that no output rules the iteration's start."""
    norm_O = jnp.linalg.norm(gradient_IO, axis=0, keepdims=True)
    return gradient_IO / jnp.maximum(norm_O, jnp.asarray(_EPSILON, norm_O.dtype))


def normalized(update_IO: Float[Array, "I O"], variance: Array, beta: float) -> tuple[Array, Array]:
    """The update divided by the root of its mean square over time, with the norm that it had; and the new mean square.

    Mean squares are kept along the longer side (of equal sides, the outputs), as in NorMuon (arXiv:2510.05491).
    """
    axis = _reduced_axis(update_IO.shape)
    variance = beta * variance + (1.0 - beta) * jnp.mean(jnp.square(update_IO), axis=axis)
    scaled_IO = update_IO * jnp.expand_dims(jax.lax.rsqrt(jnp.maximum(variance, _EPSILON)), axis)
    return _with_norm(scaled_IO, jnp.linalg.norm(update_IO)), variance


def _reduced_axis(shape: tuple[int, ...]) -> int:
    inputs, outputs = shape
    return 0 if outputs >= inputs else 1


def _variance_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (max(shape),)


def _with_norm(update: Array, norm: Array | float) -> Array:
    """The update with this Frobenius norm; zero stays zero."""
    return update * (norm / jnp.maximum(jnp.linalg.norm(update), _EPSILON))


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, jax.Array) for part in value)
