"""The gradient of a layer's weights, where one NVIDIA GPU would leave some of its multiprocessors idle.

It is a sum over tokens with as many tiles as the weights have: 112 of 1,024 x 3,584, each for one of the 132 multiprocessors of an H100 or
H200. Cut into four parts of the tokens, each with tiles of its own, an H200 adds up 65,536 tokens in 0.75 ms and not in 0.84. Weights of
1,024 x 2,048 gain nothing: products with few tiles are cut by the library.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from marin import hardware
from marin.nn.axes import ambient_axes

_TILE = (128, 256)  # what a library's product computes at once on Hopper
_PARTS, _LEAST_TOKENS = 4, 16_384
_FROM, _TO = 0.75, 0.9  # of the multiprocessors busy: around what was measured


def leaves_cores_idle(x: Float[Array, "..."], weight_IO: Float[Array, "I O"]) -> bool:
    """Whether this product is to be computed by `product`, for the sake of its gradient."""
    # The type first: what describes a model traces it in float32, before processes know each other and JAX may begin.
    if x.ndim != 2 or not x.dtype == weight_IO.dtype == jnp.bfloat16 or ambient_axes():
        return False
    device = jax.local_devices()[0]
    if not hardware.is_nvidia_gpu(device) or len(x) % _PARTS or len(x) < _LEAST_TOKENS:
        return False
    tiles = -(-weight_IO.shape[0] // _TILE[0]) * -(-weight_IO.shape[1] // _TILE[1])
    return _FROM <= tiles / device.core_count <= _TO


@jax.custom_vjp
def product(x_NI: Float[Array, "N I"], weight_IO: Float[Array, "I O"]) -> Float[Array, "N O"]:
    """`x W`, of which the gradient of `W` is added up in parts, in float32."""
    return x_NI @ weight_IO


def _forward(x_NI: Array, weight_IO: Array) -> tuple[Array, tuple[Array, Array]]:
    # Not by `product`, which has no derivative in this direction: Sophia takes that of the gradient.
    return x_NI @ weight_IO, (x_NI, weight_IO)


def _backward(saved: tuple[Array, Array], grad_NO: Array) -> tuple[Array, Array]:
    x_NI, weight_IO = saved
    x_PnI, grad_PnO = (array.reshape(_PARTS, -1, array.shape[1]) for array in (x_NI, grad_NO))
    of_parts_PIO = jnp.einsum("pni,pno->pio", x_PnI, grad_PnO, preferred_element_type=jnp.float32)
    # Without the barrier XLA makes one product of it again.
    grad_IO = jnp.sum(jax.lax.optimization_barrier(of_parts_PIO), axis=0)
    return grad_NO @ weight_IO.T, grad_IO.astype(weight_IO.dtype)


product.defvjp(_forward, _backward)
