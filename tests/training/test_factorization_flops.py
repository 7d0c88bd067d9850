"""FLOPs of factorizations against what XLA counts: of its own operations, and of the textbook's algorithms written out.

What iterates (eigh, svd, eig, schur) has a convention and no algorithm of a known length, and what saves half of its work by symmetry
(tridiagonal) cannot be written in products of blocks.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from marin.training.traced_flops import count_flops

M, N = 64, 32


def _counted(program: Callable[..., object], *shapes: tuple[int, ...]) -> float:
    return count_flops(jax.make_jaxpr(program)(*map(_array, shapes)).jaxpr).flops


def _by_xla(program: Callable[..., object], *shapes: tuple[int, ...], platform: str = "cpu") -> float:
    lowered = jax.jit(program).trace(*map(_array, shapes)).lower(lowering_platforms=(platform,))
    found: float = lowered.cost_analysis()["flops"]
    return found


def _array(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_cholesky_and_triangular_solves_are_those_of_xla():
    # For a TPU both are operations of XLA's; for a processor they are calls into LAPACK, of which it sees nothing.
    def cholesky(x: jax.Array) -> jax.Array:
        return jax.lax.linalg.cholesky(x, symmetrize_input=False)

    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.linalg.triangular_solve(a, b, left_side=True, lower=True)

    large = (2048, 2048)
    assert _counted(cholesky, large) == pytest.approx(_by_xla(cholesky, large, platform="tpu"), rel=0.01)
    # XLA takes the triangle for a whole matrix.
    shapes = (512, 512), (512, 64)
    assert _counted(solve, *shapes) == pytest.approx(_by_xla(solve, *shapes, platform="tpu") / 2, rel=0.01)


def _reflected(a: jax.Array, v: jax.Array) -> jax.Array:
    return a - v[:, None] * (v @ a)[None, :]


def _lu(a: jax.Array) -> jax.Array:
    for k in range(a.shape[1]):
        column = a[k + 1 :, k] / a[k, k]
        a = a.at[k + 1 :, k + 1 :].set(a[k + 1 :, k + 1 :] - column[:, None] * a[k, k + 1 :][None, :])
    return a


def _reflectors(a: jax.Array) -> jax.Array:
    for k in range(a.shape[1]):
        a = a.at[k:, k:].set(_reflected(a[k:, k:], a[k:, k]))
    return a


def _product(v: jax.Array) -> jax.Array:
    q = v
    for k in reversed(range(v.shape[1])):
        q = q.at[k:, k:].set(_reflected(q[k:, k:], v[k:, k]))
    return q


def _hessenberg(a: jax.Array) -> jax.Array:
    for k in range(a.shape[0] - 2):
        v = a[k + 1 :, k]
        a = a.at[k + 1 :, k:].set(_reflected(a[k + 1 :, k:], v))
        a = a.at[:, k + 1 :].set(_reflected(a[:, k + 1 :].T, v).T)
    return a


def _thomas(d: jax.Array, b: jax.Array) -> jax.Array:
    upper, x = [d[2, 0] / d[1, 0]], [b[0] / d[1, 0]]
    for k in range(1, b.shape[0]):
        pivot = d[1, k] - d[0, k] * upper[-1]
        upper.append(d[2, k] / pivot)
        x.append((b[k] - d[0, k] * x[-1]) / pivot)
    for k in reversed(range(b.shape[0] - 1)):
        x[k] = x[k] - upper[k] * x[k + 1]
    return jnp.stack(x)


@pytest.mark.parametrize(
    ("operation", "written_out", "shapes"),
    [
        (lambda a: jax.lax.linalg.lu(a)[0], _lu, [(N, N)]),
        (lambda a: jax.lax.linalg.lu(a)[0], _lu, [(M, N)]),
        (lambda a: jnp.linalg.qr(a, mode="raw"), _reflectors, [(M, N)]),
        (lambda v: jax.lax.linalg.householder_product(v, v[0]), _product, [(M, N)]),
        (lambda a: jax.lax.linalg.hessenberg(a)[0], _hessenberg, [(N, N)]),
        (lambda d, b: jax.lax.linalg.tridiagonal_solve(d[0], d[1], d[2], b[:, None]), _thomas, [(3, N), (N,)]),
    ],
    ids=["lu", "tall-lu", "reflectors", "product", "hessenberg", "tridiagonal-solve"],
)
def test_factorization_counts_as_its_algorithm_written_out(operation, written_out, shapes):
    assert _counted(operation, *shapes) == pytest.approx(_by_xla(written_out, *shapes), rel=0.06)
