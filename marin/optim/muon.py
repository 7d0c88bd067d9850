"""Muon (Jordan et al., 2024): momentum whose matrices are made nearly orthogonal by Newton-Schulz iteration.

Hidden matrices take Muon; embeddings, the head, norms and biases take AdamW at `adam_lr` on a schedule of the same
shape. Matrices of equal shape are orthogonalized in one batched product, which keeps small models fast.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from marin.errors import ConfigError
from marin.optim.adamw import check_adam_fields
from marin.optim.config import OptimizerConfig, check_range, is_hidden_matrix, map_with_path

# Coefficients of the quintic iteration, chosen by its authors for the steepest slope at zero.
_QUINTIC = (3.4445, -4.7750, 2.0315)


@dataclasses.dataclass(frozen=True)
class MuonConfig(OptimizerConfig):
    """Muon for hidden matrices, AdamW for the rest.

    Args:
        lr: accepted for configs written for the reference, whose schedule takes `learning_rate` instead, as here.
        adam_lr: peak rate of the AdamW group.
        backend_steps: Newton-Schulz iterations.
        adam_weight_decay: weight decay of the AdamW group; None for `weight_decay`.
        beta1, beta2, epsilon: of the AdamW group.
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
        check_range("muon_epsilon", self.muon_epsilon, above=0.0)
        if self.adam_weight_decay is not None:
            check_range("adam_weight_decay", self.adam_weight_decay, at_least=0.0)
        if self.lr not in (0.02, self.learning_rate):
            raise ConfigError(
                f"`optimizer_config.lr` is {self.lr}, which nothing reads: set `learning_rate` instead, and leave `lr` at 0.02"
            )

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        adam_decay = self.weight_decay if self.adam_weight_decay is None else self.adam_weight_decay
        muon = optax.chain(
            scale_by_muon(self.momentum, self.nesterov, self.backend_steps, self.muon_epsilon, self.use_kimi_scaling),
            optax.add_decayed_weights(self.weight_decay, self.decay_mask()),
            optax.scale_by_learning_rate(self.schedule(num_train_steps)),
        )
        adam = optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm) if self.max_grad_norm else optax.identity(),
            optax.scale_by_adam(self.beta1, self.beta2, self.epsilon),
            optax.add_decayed_weights(adam_decay, self.decay_mask()),
            optax.scale_by_learning_rate(self.schedule(num_train_steps, peak=self.adam_lr)),
        )
        return optax.partition(
            {"muon": muon, "adam": adam},
            lambda params: map_with_path(lambda path, leaf: "muon" if is_hidden_matrix(path, leaf) else "adam", params),
        )


class MuonState(NamedTuple):
    """The momentum of each matrix."""

    momentum: optax.Updates


def scale_by_muon(
    momentum: float, nesterov: bool, num_steps: int, epsilon: float, use_kimi_scaling: bool = False
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
        orthogonal = orthogonalize_all(leaves, num_steps=num_steps, epsilon=epsilon)
        scaled = [leaf * shape_scale(leaf.shape, use_kimi_scaling) for leaf in orthogonal]
        return jax.tree.unflatten(structure, scaled), MuonState(buffers)

    return optax.GradientTransformation(init, update)


def shape_scale(shape: tuple[int, ...], use_kimi_scaling: bool) -> float:
    """How much an orthogonal update of shape [in, out] is scaled."""
    inputs, outputs = shape
    return 0.2 * max(inputs, outputs) ** 0.5 if use_kimi_scaling else max(1.0, outputs / inputs) ** 0.5


def orthogonalize_all(
    matrices: list[Float[Array, "I O"]], *, num_steps: int, epsilon: float
) -> list[Float[Array, "I O"]]:
    """Each matrix with its singular values pushed towards one; equal shapes are worked on together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        groups.setdefault((rows, columns), []).append(index)
    results: list[Array] = list(matrices)
    for members in groups.values():
        wide = jnp.stack([_wide(matrices[index]) for index in members])
        done = _newton_schulz(wide, num_steps, epsilon)
        for position, index in enumerate(members):
            tall = matrices[index].shape[0] > matrices[index].shape[1]
            results[index] = (done[position].T if tall else done[position]).astype(matrices[index].dtype)
    return results


def _wide(matrix: Float[Array, "I O"]) -> Float[Array, "R S"]:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _newton_schulz(x_nRS: Float[Array, "n R S"], num_steps: int, epsilon: float) -> Float[Array, "n R S"]:
    """`num_steps` of X <- aX + (bA + cA^2)X with A = X X^T, from X scaled to a Frobenius norm of one; R <= S.

    Works in bfloat16 where products are faster in it (the iteration is stable in it by design), in float32 on CPU.
    """
    a, b, c = _QUINTIC
    x = x_nRS / (jnp.linalg.norm(x_nRS, axis=(-2, -1), keepdims=True) + epsilon)
    if jax.default_backend() != "cpu":
        x = x.astype(jnp.bfloat16)
    for _ in range(num_steps):
        gram = jnp.einsum("nrs,nts->nrt", x, x)
        x = a * x + jnp.einsum("nrt,nts->nrs", b * gram + c * jnp.einsum("nrt,ntu->nru", gram, gram), x)
    return x.astype(jnp.float32)
