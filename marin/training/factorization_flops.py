"""FLOPs of matrix factorizations and triangular solves, which a traced program has as operations of their own.

Each by the formula of a textbook, whatever algorithm a backend takes: G. Golub and C. Van Loan, Matrix Computations, 4th edition (sections
in brackets), and for the product of Householder reflectors LAPACK Working Note 41. A multiply and add are 2; terms of lower order are left
out.

    cholesky              n^3 / 3                               [4.2]
    lu                    n^2 (m - n/3), m >= n                 [3.2]
    triangular_solve      n^2 for each right side               [3.1]
    tridiagonal_solve     8 n for each right side               [4.3]
    geqrf, geqp3, qr      2 n^2 (m - n/3), m >= n               [5.2]
    householder_product   4 m n k - 2 (m + n) k^2 + 4/3 k^3     (Working Note 41, xORGQR)
    tridiagonal           4 n^3 / 3                             [8.3]
    eigh                  9 n^3                                 [8.3]
    svd                   4 m n^2 - 4/3 n^3; with vectors 14 m n^2 + 8 n^3, of full size 4 m^2 n + 8 m n^2 + 9 n^3, m >= n   [8.6]
    hessenberg            10 n^3 / 3                            [7.4]
    eig, schur            10 n^3; with vectors 25 n^3           [7.5]
"""

import math
from collections.abc import Callable
from typing import Any


def _matrices(equation: Any) -> tuple[int, int, int]:
    """How many matrices there are, their longer and their shorter side."""
    *batch, one, other = equation.invars[0].aval.shape
    return math.prod(batch), max(one, other), min(one, other)


def _cubic(factor: float) -> Callable[[Any], float]:
    """`factor` n^3 for each square matrix."""

    def flops(equation: Any) -> float:
        count, _, n = _matrices(equation)
        return factor * count * n**3

    return flops


def _lu(equation: Any) -> float:
    count, m, n = _matrices(equation)
    return count * n**2 * (m - n / 3)


def _qr(equation: Any) -> float:
    reflectors = 2 * _lu(equation)
    if equation.primitive.name != "qr":
        return reflectors
    # An operation of both: the reflectors, and Q from them, which is made also where only R is used.
    count, _, k = _matrices(equation)
    rows = equation.invars[0].aval.shape[-2]
    return reflectors + count * _of_reflectors(rows, rows if equation.params["full_matrices"] else k, k)


def _triangular_solve(equation: Any) -> float:
    """n of the matrix for each number of the right sides."""
    return float(equation.invars[0].aval.shape[-1] * math.prod(equation.invars[1].aval.shape))


def _tridiagonal_solve(equation: Any) -> float:
    return 8.0 * math.prod(equation.invars[3].aval.shape)


def _householder_product(equation: Any) -> float:
    *batch, m, n = equation.invars[0].aval.shape
    k = equation.invars[1].aval.shape[-1]
    return math.prod(batch) * _of_reflectors(m, n, k)


def _of_reflectors(m: int, n: int, k: int) -> float:
    """For n columns of the product of k reflectors of length m."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 / 3 * k**3


def _svd(equation: Any) -> float:
    count, m, n = _matrices(equation)
    if not equation.params["compute_uv"]:
        return count * (4 * m * n**2 - 4 / 3 * n**3)
    if equation.params["full_matrices"]:
        return float(count * (4 * m**2 * n + 8 * m * n**2 + 9 * n**3))
    return float(count * (14 * m * n**2 + 8 * n**3))


def _eig(equation: Any) -> float:
    return _cubic(10.0 if len(equation.outvars) == 1 else 25.0)(equation)


FORMULAS: dict[str, Callable[[Any], float]] = {
    "cholesky": _cubic(1 / 3),
    "lu": _lu,
    "triangular_solve": _triangular_solve,
    "tridiagonal_solve": _tridiagonal_solve,
    "geqrf": _qr,
    "geqp3": _qr,
    "qr": _qr,
    "householder_product": _householder_product,
    "tridiagonal": _cubic(4 / 3),
    "eigh": _cubic(9.0),
    "svd": _svd,
    "hessenberg": _cubic(10 / 3),
    "eig": _eig,
    "schur": _eig,
}
