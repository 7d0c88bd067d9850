"""Muon (Jordan et al., 2024): momentum whose matrices are made nearly orthogonal by Newton-Schulz iteration.

Hidden matrices take Muon; embeddings, the head, norms and biases take AdamW at `adam_lr` on a schedule of the same
shape. A variant for the matrices extends `MuonConfig` and overrides `matrix_rule`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from marin.errors import ConfigError
from marin.optim.adamw import adamw, check_adam_fields
from marin.optim.config import LEAST_EPSILON, OptimizerConfig, by_name, check_range, is_hidden_matrix
from marin.optim.orthogonalize import QUINTIC, Coefficients, orthogonalize_all


@dataclasses.dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    """Muon for hidden matrices, AdamW for the rest.

    Args:
        lr: accepted for configs written for the reference, whose schedule takes `learning_rate` instead, as here.
        adam_lr: peak rate of the AdamW group.
        momentum, nesterov: of the matrices: m <- momentum m + g, and with Nesterov the update is momentum m + g.
        backend_steps: Newton-Schulz iterations.
        adam_weight_decay: weight decay of the AdamW group; None for `weight_decay`.
        beta1, beta2, epsilon: of the AdamW group.
        muon_epsilon: added to the norm that a matrix is divided by before the iterations.
        max_grad_norm: clips the AdamW group; orthogonalized updates have a fixed norm and need no clipping.
        use_kimi_scaling: scale updates by 0.2 sqrt(max(in, out)) (Liu et al., 2025, arXiv:2502.16982) in place of
            sqrt(max(1, out / in)).
    """

    lr: float = 0.02
    adam_lr: float = 6e-4
    momentum: float = 0.95
    nesterov: bool = True
    backend_steps: int = 5
    adam_weight_decay: float | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    muon_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    use_kimi_scaling: bool = False
    lr_schedule: str = dataclasses.field(default="linear", kw_only=True, metadata={"marin.omit_default": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_adam_fields(self)
        check_range("adam_lr", self.adam_lr, above=0.0)
        check_range("momentum", self.momentum, at_least=0.0, below=1.0)
        check_range("backend_steps", self.backend_steps, at_least=1, whole=True)
        check_range("muon_epsilon", self.muon_epsilon, at_least=LEAST_EPSILON)
        if self.adam_weight_decay is not None:
            check_range("adam_weight_decay", self.adam_weight_decay, at_least=0.0)
        if self.lr not in (0.02, self.learning_rate):
            raise ConfigError(
                f"`optimizer_config.lr` is {self.lr}, which nothing reads: set `learning_rate` instead, and leave `lr` at 0.02"
            )

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        adam_decay = self.weight_decay if self.adam_weight_decay is None else self.adam_weight_decay
        adam = adamw(self, num_train_steps, peak=self.adam_lr, weight_decay=adam_decay)
        return by_name(
            {"muon": self.matrix_rule(num_train_steps), "adam": adam},
            lambda path, leaf: "muon" if is_hidden_matrix(path, leaf) else "adam",
        )

    def matrix_rule(self, num_train_steps: int) -> optax.GradientTransformation:
        """From gradients of hidden matrices to their updates."""
        return optax.chain(
            scale_by_muon(self.momentum, self.nesterov, self.backend_steps, self.muon_epsilon, self.use_kimi_scaling),
            *self.decay_and_rate(num_train_steps),
        )


class MuonState(NamedTuple):
    """The momentum of each matrix."""

    momentum: optax.Updates


def scale_by_muon(
    momentum: float,
    nesterov: bool,
    num_steps: int,
    epsilon: float,
    use_kimi_scaling: bool = False,
    coefficients: Coefficients = QUINTIC,
) -> optax.GradientTransformation:
    """Replaces each gradient matrix [in, out] by the orthogonalized momentum, scaled for its shape."""

    def init(params: optax.Params) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: optax.Updates, state: MuonState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, MuonState]:
        buffers = jax.tree.map(lambda m, g: momentum * m + g, state.momentum, updates)
        directions = jax.tree.map(lambda m, g: momentum * m + g, buffers, updates) if nesterov else buffers
        leaves, structure = jax.tree.flatten(directions)
        orthogonal = orthogonalize_all(leaves, num_steps=num_steps, epsilon=epsilon, coefficients=coefficients)
        scaled = [leaf * shape_scale(leaf.shape, use_kimi_scaling) for leaf in orthogonal]
        return jax.tree.unflatten(structure, scaled), MuonState(buffers)

    return optax.GradientTransformation(init, update)


def shape_scale(shape: tuple[int, ...], use_kimi_scaling: bool) -> float:
    """How much an orthogonal update of shape [in, out] is scaled."""
    inputs, outputs = shape
    return 0.2 * max(inputs, outputs) ** 0.5 if use_kimi_scaling else max(1.0, outputs / inputs) ** 0.5
