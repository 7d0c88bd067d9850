"""Matrix products in 8 bits, for training: FP8 with a scale a tensor (`marin.nn.fp8`), int8 with a scale a row.

Weights stay in float32 and are quantized anew in each step from their largest absolute value, so there is no state. What
is multiplied in 8 bits:

    product                 FP8 (Micikevicius et al., 2022, arXiv:2209.05433)   int8 (as AQT's default for training)
    y = x W                 e4m3 x e4m3                                         int8 x int8, a scale a token and an output
    gradient of x: g W^T    e5m2 x e4m3                                         int8 x int8, a scale a token and an input
    gradient of W: x^T g    e4m3 x e5m2                                         compute format: its sums are over tokens

Rounding is to the nearest; AQT rounds gradients stochastically. Only `Linear`s whose both sides are multiples of 16 and at
least 128 are quantized: smaller ones gain nothing. Embeddings and attention's own products keep the compute format, and so does
the head but for one: what FP8 makes of the gradient of its inputs (`marin.nn.loss`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.nn.axes import lay_out_activations
from marin.nn.fp8 import fp8_product
from marin.nn.linear import Linear
from marin.nn.wide_sums import shifted

_MULTIPLE, _LEAST = 16, 128
_TINY = 1e-30  # a tensor of zeros has a scale too


class QuantizedLinear(eqx.Module):
    """A `Linear` whose products are in 8 bits; made for one step from the weights of that step."""

    weight_IO: Float[Array, "I O"]
    bias_O: Float[Array, " O"] | None
    products: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        multiply = fp8_product if self.products == "fp8" else int8_product
        y_NO = multiply(x.reshape(-1, x.shape[-1]), self.weight_IO)
        if self.bias_O is not None:
            y_NO = shifted(y_NO, self.bias_O[None, :])
        return lay_out_activations(y_NO.reshape(*x.shape[:-1], -1))


def quantize_linears(model: Any, products: str) -> Any:
    """The same model with each `Linear` that is large enough in 8 bits; `products` is "fp8" or "int8"."""

    def quantize(leaf: Any) -> Any:
        return QuantizedLinear(leaf.weight_IO, leaf.bias_O, products) if _is_large_linear(leaf) else leaf

    return jax.tree.map(quantize, model, is_leaf=_is_large_linear)


def has_quantizable_linears(model: Any) -> bool:
    """Whether `quantize_linears` changes anything; the model may hold shapes in place of arrays."""
    return any(map(_is_large_linear, jax.tree.leaves(model, is_leaf=_is_large_linear)))


def _is_large_linear(leaf: Any) -> bool:
    return isinstance(leaf, Linear) and all(size % _MULTIPLE == 0 and size >= _LEAST for size in leaf.weight_IO.shape)


# --- int8 -----------------------------------------------------------------------------------------------------------


@jax.custom_vjp
def int8_product(x_NI: Float[Array, "N I"], weight_IO: Float[Array, "I O"]) -> Float[Array, "N O"]:
    """`x W` in int8, accumulated in int32, in the type of `x`."""
    return _int8_forward(x_NI, weight_IO)[0]


def _int8_forward(x_NI: Array, weight_IO: Array) -> tuple[Array, tuple[Array, Array]]:
    x, x_scale_N1 = _to_int8(x_NI, 1)
    weight, weight_scale_1O = _to_int8(weight_IO, 0)
    y_NO = _contract(x, weight, 1, 0).astype(jnp.float32) * x_scale_N1 * weight_scale_1O
    return y_NO.astype(x_NI.dtype), (x_NI, weight_IO)


def _int8_backward(saved: tuple[Array, Array], grad_NO: Array) -> tuple[Array, Array]:
    x_NI, weight_IO = saved
    grad, grad_scale_N1 = _to_int8(grad_NO, 1)
    weight, weight_scale_I1 = _to_int8(weight_IO, 1)
    grad_x_NI = _contract(grad, weight, 1, 1).astype(jnp.float32) * grad_scale_N1 * weight_scale_I1.T
    return grad_x_NI.astype(grad_NO.dtype), x_NI.T @ grad_NO


int8_product.defvjp(_int8_forward, _int8_backward)


def _to_int8(tensor: Float[Array, "R S"], axis: int) -> tuple[Int[Array, "R S"], Array]:
    """The tensor in 8-bit whole numbers with a scale for each slice along the other axis, and those scales.

    The scale of a slice that holds a NaN is NaN: no whole number is one, and on a CPU a maximum leaves it out.
    """
    largest = jnp.maximum(jnp.max(jnp.abs(tensor.astype(jnp.float32)), axis=axis, keepdims=True), _TINY)
    scale = jnp.where(jnp.any(jnp.isnan(tensor), axis=axis, keepdims=True), jnp.nan, largest / 127.0)
    return jnp.round(tensor.astype(jnp.float32) / scale).astype(jnp.int8), scale


def _contract(one: Int[Array, "..."], other: Int[Array, "..."], one_axis: int, other_axis: int) -> Int[Array, "..."]:
    """A product of whole numbers over the named axes, accumulated in int32."""
    dimensions = (((one_axis,), (other_axis,)), ((), ()))
    return jax.lax.dot_general(one, other, dimensions, preferred_element_type=jnp.int32)
