"""SOAP (Vyas et al., 2024, arXiv:2409.11321): Adam in the eigenbasis of Shampoo's preconditioner.

For a matrix with gradient G, L and R average G G^T and G^T G; with the columns of Q_L and Q_R their eigenvectors,

    M <- beta1 M + (1 - beta1) G,   V <- beta2 V + (1 - beta2) (Q_L^T G Q_R)^2
    update = Q_L [ (Q_L^T M Q_R) / (sqrt(V) + epsilon) ] Q_R^T          with Adam's corrections for the start

Every `precondition_frequency` steps Q becomes the orthogonal factor of L Q (one power iteration and a QR decomposition).
The first step only measures L and R, and moves nothing. The vocabulary's side of embedding and head is not rotated, nor
one longer than `max_precondition_dim`; parameters that are no matrices take Adam.

A run repeats to the bit on the same devices, but on others it soon is another run, as with no other optimizer here. The products of
the first gradient, a matrix of N x M with N > M, have N - M eigenvalues of zero, and any basis of that space will do: which one comes
out is left to rounding. Adam works on coordinates, so the direction follows the basis. Where two runs' gradients differ by 1e-7,
directions of about 1 differ in their second step by 7e-5 for 32 x 33, and by 1.6 for 32 x 48 (in float64 with 1e-12: 3e-11 and 1.8).
After three steps at a rate of 0.01 the tiny template's weights on one device and on two differ by 0.03, and by 2e-6 where
`max_precondition_dim` is as low as its shorter sides, which leaves such spaces out.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin.nn.trees import named_leaves
from marin.optim.adamw import AdamConfig
from marin.optim.config import check_range, clip, parameter_role


@dataclasses.dataclass(frozen=True)
class SoapConfig(AdamConfig):
    """SOAP with decoupled weight decay, for every parameter.

    Args:
        beta2: of the second moment and of L and R.
        precondition_frequency: steps between two changes of the basis.
        max_precondition_dim: the longest side that is rotated; its L takes side^2 numbers, and so does its basis.
    """

    beta1: float = 0.95
    beta2: float = 0.95
    precondition_frequency: int = 10
    max_precondition_dim: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("precondition_frequency", self.precondition_frequency, at_least=1, whole=True)
        check_range("max_precondition_dim", self.max_precondition_dim, at_least=0, whole=True)

    def build(self, model: object, num_train_steps: int) -> optax.GradientTransformation:
        return optax.chain(clip(self.max_grad_norm), scale_by_soap(self), *self.decay_and_rate(num_train_steps))


class Side(NamedTuple):
    """One side of a matrix: the averaged outer products of gradients, and the eigenbasis that is in use."""

    products: Float[Array, "N N"]
    basis: Float[Array, "N N"]


class SoapState(NamedTuple):
    """Steps so far, the first moment, the second in the rotated basis, and for each parameter its rotated sides by axis."""

    num_steps: Int[Array, ""]
    first: optax.Updates
    second: optax.Updates
    sides: list[dict[str, Side]]


def scale_by_soap(config: SoapConfig) -> optax.GradientTransformation:
    """Replaces gradients by SOAP's directions."""

    def init(params: optax.Params) -> SoapState:
        sides = [
            {
                str(axis): Side(jnp.zeros((size, size), leaf.dtype), jnp.eye(size, dtype=leaf.dtype))
                for axis, size in enumerate(leaf.shape)
                if axis in rotated_axes(path, leaf) and size <= config.max_precondition_dim
            }
            for path, leaf in named_leaves(params).items()
        ]
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SoapState(jnp.zeros((), jnp.int32), zeros, zeros, sides)

    def update(
        updates: optax.Updates, state: SoapState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, SoapState]:
        gradients, structure = jax.tree.flatten(updates)
        firsts, seconds = jax.tree.leaves(state.first), jax.tree.leaves(state.second)
        stepped = [
            _step_one(config, state.num_steps, *leaf)
            for leaf in zip(gradients, firsts, seconds, state.sides, strict=True)
        ]
        directions, first, second, sides = zip(*stepped, strict=True)
        return jax.tree.unflatten(structure, directions), SoapState(
            state.num_steps + 1,
            jax.tree.unflatten(structure, first),
            jax.tree.unflatten(structure, second),
            list(sides),
        )

    return optax.GradientTransformation(init, update)


def _step_one(
    config: SoapConfig, count: Int[Array, ""], gradient: Array, first: Array, second: Array, sides: dict[str, Side]
) -> tuple[Array, Array, Array, dict[str, Side]]:
    """One parameter's direction, moments and sides; on the first step (count 0) only the sides change."""
    mean = config.beta1 * first + (1 - config.beta1) * gradient
    square = config.beta2 * second + (1 - config.beta2) * jnp.square(rotate(gradient, sides))
    taken = count > 0
    num_taken = jnp.maximum(count, 1)
    corrected = optax.tree.bias_correction(square, config.beta2, num_taken)
    rotated = rotate(optax.tree.bias_correction(mean, config.beta1, num_taken), sides)
    direction = rotate(rotated / (jnp.sqrt(corrected) + config.epsilon), sides, back=True)
    return (
        jnp.where(taken, direction, jnp.zeros_like(direction)),
        jnp.where(taken, mean, first),
        jnp.where(taken, square, second),
        {axis: _turn(config, count, gradient if axis == "0" else gradient.T, side) for axis, side in sides.items()},
    )


def _turn(config: SoapConfig, count: Int[Array, ""], gradient: Float[Array, "N M"], side: Side) -> Side:
    """The side with this gradient's products, and another basis where it is time for one."""
    products = config.beta2 * side.products + (1 - config.beta2) * gradient @ gradient.T
    # None yet, time for another, or the one that is there. Largest eigenvalues first, as the power iteration has them.
    which = jnp.where(count == 0, 0, jnp.where(count % config.precondition_frequency == 0, 1, 2))
    basis = jax.lax.switch(
        which,
        [
            lambda: jnp.linalg.eigh(products)[1][:, ::-1],
            lambda: jnp.linalg.qr(products @ side.basis)[0],
            lambda: side.basis,
        ],
    )
    return Side(products, basis)


def rotated_axes(path: str, leaf: Array) -> tuple[int, ...]:
    """The sides that may be rotated.

    Rows of a vocabulary get gradients for few tokens at a time, so most directions of a basis would hold noise only: the
    template at CPU size with 256 bytes reaches 3.26 nats in 200 steps with that side rotated and 2.52 without (Adam with
    the same rates: 2.86; one seed; `benchmarks/optimizers.py`).
    """
    return {"matrix": (0, 1), "embedding": (1,), "head": (0,), "other": ()}[parameter_role(path, leaf)]


def rotate(matrix: Array, sides: dict[str, Side], back: bool = False) -> Array:
    """Q_L^T matrix Q_R with the bases of the sides that have one; `back` is the inverse."""
    if "0" in sides:
        matrix = (sides["0"].basis if back else sides["0"].basis.T) @ matrix
    if "1" in sides:
        matrix = matrix @ (sides["1"].basis.T if back else sides["1"].basis)
    return matrix
