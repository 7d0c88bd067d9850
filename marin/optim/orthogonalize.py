"""The orthogonal factor of matrices by polynomial iteration: products only, which accelerators are fast at.

For G = U S V^T the aim is U V^T. Each step takes X to aX + (bA + cA^2)X with A = X X^T, which acts on every singular
value x as ax + bx^3 + cx^5. Matrices of equal shape are worked on in one batched product, which keeps accelerators busy; one
processor takes them one by one, as XLA's single products there are the faster ones, and small ones side by side, as a small
product keeps only one of its cores busy (docs/LOG.md). On several devices each has its share of the matrices: whole ones, as
dividing one would need sums over devices at each step.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from marin.nn.axes import ambient_axes, lay_out_stack, stack_padding

# (a, b, c) of each step; the last is repeated for further steps.
Coefficients = tuple[tuple[float, float, float], ...]

# Chosen by its authors for the steepest slope at zero (Jordan et al., 2024): values end in about [0.7, 1.2], not at 1.
QUINTIC: Coefficients = ((3.4445, -4.7750, 2.0315),)

# Polar Express (Amsel et al., 2025, arXiv:2505.16932): at each step the best polynomial for where singular values from
# 1e-3 on can be by then, as listed in the paper. The divisors keep rounding in bfloat16 from carrying a value over the end
# of that range, beyond which the iteration diverges; the last polynomial needs none.
_SAFETY = 1.01
_OPTIMAL = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
)
POLAR_EXPRESS: Coefficients = (
    *((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _OPTIMAL),
    (1.875, -1.25, 0.375),
)

# On a processor matrices of so few rows, up to so many, are programs of their own, each of which takes time to compile.
_SMALL_ROWS, _FEW = 256, 32

COEFFICIENTS: dict[str, Coefficients] = {"quintic": QUINTIC, "polar_express": POLAR_EXPRESS}


def orthogonalize_all(
    matrices: list[Float[Array, "I O"]], *, num_steps: int, epsilon: float, coefficients: Coefficients = QUINTIC
) -> list[Float[Array, "I O"]]:
    """Each matrix with its singular values pushed towards one; equal shapes are worked on together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        groups.setdefault((rows, columns), []).append(index)
    results: list[Array] = list(matrices)
    for members in groups.values():
        wide = jnp.stack([_wide(matrices[index]) for index in members])
        padding = stack_padding(len(members))
        if padding:
            wide = jnp.pad(wide, ((0, padding), (0, 0), (0, 0)))
        done = _each(lay_out_stack(wide), lambda x_RS: _iterate(x_RS, num_steps, epsilon, coefficients))
        for position, index in enumerate(members):
            tall = matrices[index].shape[0] > matrices[index].shape[1]
            results[index] = (done[position].T if tall else done[position]).astype(matrices[index].dtype)
    return results


def _wide(matrix: Float[Array, "I O"]) -> Float[Array, "R S"]:
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _each(
    x_nRS: Float[Array, "n R S"], function: Callable[[Float[Array, "R S"]], Float[Array, "R S"]]
) -> Float[Array, "n R S"]:
    if jax.default_backend() != "cpu" or ambient_axes():
        return lay_out_stack(jax.vmap(function)(x_nRS))
    count, rows, _ = x_nRS.shape
    if rows <= _SMALL_ROWS and count <= _FEW:
        return jnp.stack([function(x_RS) for x_RS in x_nRS])
    return jax.lax.map(function, x_nRS)


def _iterate(
    x_RS: Float[Array, "R S"], num_steps: int, epsilon: float, coefficients: Coefficients
) -> Float[Array, "R S"]:
    """The iteration from X scaled to a Frobenius norm of one (a little less for Polar Express); R <= S.

    Works in bfloat16 where products are faster in it (the iteration is stable in it by design), in the input's type on CPU.
    """
    norm = jnp.linalg.norm(x_RS)
    x = x_RS / ((norm * _SAFETY if coefficients is POLAR_EXPRESS else norm) + epsilon)
    steps = [coefficients[min(step, len(coefficients) - 1)] for step in range(num_steps)]
    if jax.default_backend() != "cpu":
        x = x.astype(jnp.bfloat16)
    elif x.shape[1] >= 2 * x.shape[0] and steps:
        return _by_gram(x, steps).astype(x_RS.dtype)
    for a, b, c in steps:
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.astype(x_RS.dtype)


def _by_gram(x_RS: Float[Array, "R S"], steps: Sequence[tuple[float, float, float]]) -> Float[Array, "R S"]:
    """The same steps on A = X X^T alone, which is small where X is wide: X becomes PX, so A becomes PAP as all commute.

    The product of all P meets X once, at the end. It needs float32: it is as large as the slope at zero of all steps together,
    a thousand for five of Polar Express, and is rounded to its own size.
    """
    gram, total = x_RS @ x_RS.T, jnp.eye(x_RS.shape[0], dtype=x_RS.dtype)
    for number, (a, b, c) in enumerate(steps):
        factor = a * jnp.eye(len(gram), dtype=gram.dtype) + b * gram + c * (gram @ gram)
        total = factor @ total if number else factor
        if number + 1 < len(steps):
            gram = factor @ (gram @ factor)
    return total @ x_RS
