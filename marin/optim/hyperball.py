"""Hyperball (Wen et al., 2026, arXiv:2606.16899): weights and updates of hidden matrices keep a fixed norm.

Weight decay holds the norm of a matrix near some value, and that norm decides how far an update turns it. Hyperball sets
both: with R the initial Frobenius norm and |x| = x / norm(x),

    W <- R |W - rate R |u||

for the direction u of any base optimizer. The rate is then the angle of a step. AdamH and MuonH are Adam and Muon under
it; what is no hidden matrix takes AdamW at `adam_lr` on a schedule of the same shape. Hidden matrices do not decay.

A matrix that begins at zero, such as the projections back into the stream in many models, has a sphere of radius zero, which
it would never leave: training refuses it (`check_radii`). `GroupsConfig` gives such matrices another optimizer.
"""

import dataclasses
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin.errors import ConfigError
from marin.nn.trees import named_leaves
from marin.optim.adamw import AdamConfig, adamw
from marin.optim.config import by_name, check_range, clip, is_hidden_matrix
from marin.optim.muon import MuonConfig, scale_by_muon
from marin.optim.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class MuonHConfig(MuonConfig):
    """Muon under Hyperball for hidden matrices, AdamW for the rest, whose `weight_decay` is the only one.

    Args:
        learning_rate: of the matrices, as a part of their norm.
    """

    learning_rate: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_kimi_scaling:
            raise ConfigError("`use_kimi_scaling` is True, but MuonH takes only directions from Muon: leave it False")

    def matrix_rule(self, num_train_steps: int) -> optax.GradientTransformation:
        muon = scale_by_muon(self.momentum, self.nesterov, self.backend_steps, self.muon_epsilon)
        return optax.chain(muon, keep_norm(self.schedule(num_train_steps)))


@dataclasses.dataclass(frozen=True)
class AdamHConfig(AdamConfig):
    """Adam under Hyperball for hidden matrices, AdamW for the rest.

    Args:
        learning_rate: of the matrices, as a part of their norm.
        adam_lr: peak rate of the rest.
        max_grad_norm: clips the matrices by their norm together, and the rest by theirs; None does not clip.
    """

    learning_rate: float = 0.02
    adam_lr: float = 6e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("adam_lr", self.adam_lr, above=0.0)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        matrices = optax.chain(
            clip(self.max_grad_norm),
            optax.scale_by_adam(self.beta1, self.beta2, self.epsilon, nesterov=self.nesterov),
            keep_norm(self.schedule(num_train_steps)),
        )
        rest = adamw(self, num_train_steps, peak=self.adam_lr, weight_decay=self.weight_decay, nesterov=self.nesterov)
        return by_name(
            {"matrix": matrices, "adam": rest},
            lambda path, leaf: "matrix" if is_hidden_matrix(path, leaf) else "adam",
        )


class KeepNormState(NamedTuple):
    """Steps so far, and the initial norm of each matrix."""

    step: Int[Array, ""]
    radius: optax.Params


def keep_norm(schedule: Schedule) -> optax.GradientTransformation:
    """The end of a chain: turns directions into the updates that keep each matrix on the sphere of its initial norm.

    A zero direction leaves a matrix alone. One that starts at zero stays there; `check_radii` looks for such.
    """

    def init(params: optax.Params) -> KeepNormState:
        return KeepNormState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.linalg.norm, params))

    def update(
        updates: optax.Updates, state: KeepNormState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, KeepNormState]:
        rate = schedule(state.step)

        def move(weight: Float[Array, "I O"], direction: Float[Array, "I O"], radius: Float[Array, ""]) -> Array:
            moved = weight - rate.astype(weight.dtype) * radius * _unit(direction)
            return radius * _unit(moved) - weight

        return jax.tree.map(move, params, updates, state.radius), KeepNormState(state.step + 1, state.radius)

    return optax.GradientTransformation(init, update)


def check_radii(opt_state: optax.OptState) -> None:
    """Looks whether every matrix under Hyperball can move, in the state of any optimizer that training begins with.

    Raises:
        ConfigError: naming those that begin at zero.
    """
    held = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, KeepNormState))
    still = [
        path
        for state in held
        if isinstance(state, KeepNormState)
        for path, radius in named_leaves(state.radius).items()
        if float(radius) == 0.0
    ]
    if still:
        kinds = sorted({re.sub(r"^blocks\.\d+\.", "", path) for path in still})
        raise ConfigError(
            f"MuonH and AdamH keep a matrix at the norm that it begins with, and {len(still):,} begin at zero, such as `{still[0]}`: they"
            " would never move. Give them another optimizer with `GroupsConfig`:"
            f" ParameterGroup('re:{'|'.join(kinds)}', MuonConfig(...)) before the others, or a model that"
            " begins with other values"
        )


def _unit(x: Float[Array, "I O"]) -> Float[Array, "I O"]:
    return x / jnp.maximum(jnp.linalg.norm(x), jnp.finfo(x.dtype).tiny)
