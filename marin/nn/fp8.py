"""Matrix products in FP8 with one scale a tensor (Micikevicius et al., 2022, arXiv:2209.05433).

A tensor's scale is made anew from its largest value each time, so there is no state. NVIDIA's matrix units multiply 8-bit numbers only where
those that are added up lie beside each other. In the gradient of the weights these are of different tokens, so both of its operands have to be
turned, and XLA turns bytes at half of a GPU's bandwidth. On one NVIDIA GPU a kernel of ours writes a tensor in 8 bits both ways at once: on an H200
0.56 ms and not 0.93 for 65,536 x 7,168 from bfloat16, of which memory alone takes 0.45.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from marin.nn.triton import call_triton, has_triton

FORWARD, BACKWARD = jnp.float8_e4m3fn, jnp.float8_e5m2
_TINY = 1e-30  # a tensor of zeros has a scale too
# Rows and columns that one block of threads takes, and its warps: the fastest of four on an H200.
_TILE, _WARPS = 128, 8


class Fp8(NamedTuple):
    """A matrix in an 8-bit float format, and what its values are to be multiplied by: a power of two."""

    values: Array
    scale: Float[Array, ""]


# --- a layer's products -------------------------------------------------------------------------------------------------


@jax.custom_vjp
def fp8_product(x_NI: Float[Array, "N I"], weight_IO: Float[Array, "I O"]) -> Float[Array, "N O"]:
    """`x W` in FP8, accumulated in float32, in the type of `x`."""
    return _forward(x_NI, weight_IO)[0]


def _forward(x_NI: Array, weight_IO: Array) -> tuple[Array, tuple[Fp8, Fp8]]:
    (x_NI8, x_IN8), weight_IO8 = _both_ways(x_NI, FORWARD), to_fp8(weight_IO, FORWARD)
    # The 8-bit tensors are what the backward pass keeps: half the memory of the compute format.
    return contract(x_NI8, weight_IO8, 1, 0, x_NI.dtype), (x_IN8, weight_IO8)


def _backward(saved: tuple[Fp8, Fp8], grad_NO: Array) -> tuple[Array, Array]:
    x_IN8, weight_IO8 = saved
    grad_NO8, grad_ON8 = _both_ways(grad_NO, BACKWARD)
    exact = jax.lax.Precision.HIGHEST
    grad_x_NI = contract(grad_NO8, weight_IO8, 1, 1, grad_NO.dtype, exact)
    return grad_x_NI, contract(x_IN8, grad_ON8, 1, 1, grad_NO.dtype, exact)


fp8_product.defvjp(_forward, _backward)


# --- scales and products ------------------------------------------------------------------------------------------------


def to_fp8(tensor: Float[Array, "*N"], dtype: Any, largest: Float[Array, ""] | None = None) -> Fp8:
    """The tensor in 8 bits, scaled by the least power of two for which its largest value is in range.

    Args:
        largest: that no absolute value exceeds, where it is known; else it is looked for.
    """
    scale, inverse = _scale(tensor, dtype, largest)
    return Fp8(_rounded(tensor, inverse, dtype), scale)


def contract(
    one: Fp8, other: Fp8, one_axis: int, other_axis: int, dtype: Any, precision: jax.lax.Precision | None = None
) -> Array:
    """The product of two scaled matrices over the named axes, in `dtype`.

    The product itself leaves in `dtype`, half of what float32 would send through memory: as the scales are powers of two, nothing
    is rounded once more by them. By XLA's convention "highest" forbids NVIDIA's fast accumulation, which keeps fewer bits.
    """
    dimensions = (((one_axis,), (other_axis,)), ((), ()))
    unscaled = jax.lax.dot_general(
        one.values, other.values, dimensions, precision=precision, preferred_element_type=jnp.dtype(dtype)
    )
    return (unscaled.astype(jnp.float32) * (one.scale * other.scale)).astype(dtype)


def _scale(tensor: Array, dtype: Any, largest: Array | None) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The scale of a tensor, and its inverse; both are exact.

    Those of a tensor that holds an infinity are NaN: clipped to the range it would be a number like any other, and a step
    that overflowed would pass for a good one.
    """
    if largest is None:
        largest = jnp.max(jnp.abs(tensor))
    largest = jnp.maximum(largest.astype(jnp.float32), _TINY)
    _, exponent = jnp.frexp(largest / float(jnp.finfo(dtype).max))
    one, finite = jnp.ones((), jnp.float32), jnp.isfinite(largest)
    return (
        jnp.where(finite, jnp.ldexp(one, exponent), jnp.nan),
        jnp.where(finite, jnp.ldexp(one, -exponent), jnp.nan),
    )


def _rounded(tensor: Array, inverse: Float[Array, "*one"], dtype: Any) -> Array:
    # A tensor's largest value may have been rounded down; past the end of the range is not-a-number in e4m3.
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(tensor.astype(jnp.float32) * inverse, -limit, limit).astype(dtype)


# --- both ways at once --------------------------------------------------------------------------------------------------


def _both_ways(tensor_NI: Float[Array, "N I"], dtype: Any) -> tuple[Fp8, Fp8]:
    """The matrix in 8 bits as [N, I] and as [I, N]."""
    scale, inverse = _scale(tensor_NI, dtype, None)
    if _has_kernel(tensor_NI):
        values_NI, values_IN = _turn(tensor_NI, inverse.reshape(1), dtype)
    else:
        values_NI = _rounded(tensor_NI, inverse, dtype)
        values_IN = values_NI.T
    return Fp8(values_NI, scale), Fp8(values_IN, scale)


def _has_kernel(tensor_NI: Array) -> bool:
    """Whether the kernel can take this matrix here: whole tiles, whose places are counted in 32 bits."""
    whole = all(size % _TILE == 0 for size in tensor_NI.shape)
    return whole and tensor_NI.size < 2**31 and has_triton()


def _turn(tensor_NI: Array, inverse_1: Array, dtype: Any, *, interpret: bool = False) -> tuple[Array, Array]:
    num_rows, width = tensor_NI.shape
    values_NI, values_IN = call_triton(
        functools.partial(_turn_tile, dtype=dtype),
        tensor_NI,
        inverse_1,
        grid=(num_rows // _TILE, width // _TILE),
        in_specs=[((_TILE, _TILE), lambda row, column: (row, column)), ((1,), lambda row, column: (0,))],
        out_specs=[
            ((_TILE, _TILE), lambda row, column: (row, column)),
            ((_TILE, _TILE), lambda row, column: (column, row)),
        ],
        out_shape=[jax.ShapeDtypeStruct(shape, dtype) for shape in ((num_rows, width), (width, num_rows))],
        num_warps=_WARPS,
        interpret=interpret,
    )
    return values_NI, values_IN


def _turn_tile(tensor: Any, inverse: Any, values: Any, turned: Any, *, dtype: Any) -> None:
    """One tile of `_turn`, by references to its operands and results."""
    rounded = _rounded(tensor[...], inverse[0], dtype)
    values[...] = rounded
    turned[...] = rounded.T
