"""The polynomial iterations: what they do to singular values, and where the published coefficients come from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.optim.orthogonalize import _OPTIMAL, COEFFICIENTS, POLAR_EXPRESS, QUINTIC, orthogonalize_all


def _aligned(before: jax.Array, after: jax.Array) -> np.ndarray:
    """`after` in the singular bases of `before`: diagonal where the singular vectors are kept."""
    u, _, v = np.linalg.svd(np.asarray(before, np.float64), full_matrices=False)
    return u.T @ np.asarray(after) @ v.T


def test_quintic_brings_singular_values_near_one_and_keeps_singular_vectors():
    matrices = [
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(16, 16), (16, 40), (40, 16)] * 2)
    ]
    for before, after in zip(matrices, orthogonalize_all(matrices, num_steps=5, epsilon=1e-7), strict=True):
        assert after.shape == before.shape
        aligned = _aligned(before, after)
        assert np.abs(aligned - np.diag(np.diag(aligned))).max() < 1e-3
        # The quintic sends all but the smallest singular values into about [0.7, 1.2].
        values = np.linalg.svd(np.asarray(before), compute_uv=False)
        assert np.diag(aligned)[values > 0.1 * values.max()].min() > 0.6
        assert np.diag(aligned).max() < 1.25


@pytest.mark.parametrize("shape", [(12, 12), (12, 30), (30, 12)])
def test_polar_express_ends_at_the_orthogonal_factor_where_the_quintic_does_not(shape: tuple[int, int]):
    matrix = jax.random.normal(jax.random.key(1), shape)
    worst = {}
    for name, coefficients in COEFFICIENTS.items():
        (factor,) = orthogonalize_all([matrix], num_steps=9, epsilon=1e-7, coefficients=coefficients)
        worst[name] = np.abs(_aligned(matrix, factor) - np.eye(12)).max()
    assert worst["polar_express"] < 1e-4
    assert worst["quintic"] > 0.05


def test_polar_express_coefficients_are_the_best_polynomials_of_their_intervals():
    """Each error 1 - p equioscillates at 4 points of the interval that singular values are in by then.

    That characterizes the best odd polynomial of degree 5. Where the interval is wide, its lower end is the paper's
    0.0240733 of the upper one, and the polynomial is scaled so that what lies below ends as far under 1 as others over it.
    """
    low, high = 1e-3, 1.0
    for a, b, c in _OPTIMAL[:6]:
        fitted = max(low, 0.02407327424182761 * high)
        roots = np.roots([5 * c, 0, 3 * b, 0, a])
        extrema = np.sort(roots[(np.abs(roots.imag) < 1e-9) & (roots.real > fitted) & (roots.real < high)].real)
        assert len(extrema) == 2
        points = np.array([fitted, *extrema, high])
        values = a * points + b * points**3 + c * points**5
        # Errors of alternating sign and equal size, about the middle of the smallest and the largest value.
        middle = (values[0] + values[1]) / 2
        np.testing.assert_allclose(values - middle, (values[1] - middle) * np.array([-1, 1, -1, 1]), atol=1e-9)
        low = a * low + b * low**3 + c * low**5
        high = 2 - low
        assert high == pytest.approx(values.max(), abs=1e-9)
    assert high - low < 0.003


@pytest.mark.parametrize("count", [4, 34])  # a processor takes few side by side, many one by one
def test_orthogonalize_works_on_equal_shapes_together_as_on_each_alone(count: int):
    matrices = [jax.random.normal(jax.random.key(i), (8, 6) if i % 2 else (6, 8)) for i in range(count)]
    together = orthogonalize_all(matrices, num_steps=5, epsilon=1e-7, coefficients=POLAR_EXPRESS)
    for matrix, joint in zip(matrices, together, strict=True):
        (alone,) = orthogonalize_all([matrix], num_steps=5, epsilon=1e-7, coefficients=POLAR_EXPRESS)
        np.testing.assert_allclose(joint, alone, rtol=1e-5, atol=1e-5)  # 2.2e-6 on a processor without AVX-512


@pytest.mark.parametrize("shape", [(24, 24), (24, 48), (96, 24)])
@pytest.mark.parametrize("smallest", [0.1, 1e-6])
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_orthogonalize_is_the_iteration_in_double_precision_whatever_the_condition(
    shape: tuple[int, int], smallest: float, name: str
):
    """Wide matrices are worked on by their small products X X^T, in which a small singular value is squared."""
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=(size, 24)))[0] for size in shape)
    matrix = (left * np.geomspace(1.0, smallest, 24)) @ right.T
    (factor,) = orthogonalize_all(
        [jnp.asarray(matrix, jnp.float32)], num_steps=5, epsilon=1e-7, coefficients=COEFFICIENTS[name]
    )
    x = matrix / (np.linalg.norm(matrix) * (1.01 if name == "polar_express" else 1.0))
    for step in range(5):
        a, b, c = COEFFICIENTS[name][min(step, len(COEFFICIENTS[name]) - 1)]
        x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
    assert np.abs(np.asarray(factor) - x).max() < 1e-3  # entries are about 0.1


def test_orthogonalize_of_zeros_is_zeros():
    for coefficients in (QUINTIC, POLAR_EXPRESS):
        (factor,) = orthogonalize_all([jnp.zeros((3, 4))], num_steps=5, epsilon=1e-7, coefficients=coefficients)
        np.testing.assert_array_equal(factor, 0.0)
