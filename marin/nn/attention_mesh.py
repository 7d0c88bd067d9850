"""Attention on a mesh of devices: each computes its own rows, heads and positions, with any kernel for the first two.

Where positions are divided (long contexts), every device gathers the keys and values of whole rows and attends from its own
queries, a block of them at a time; the backward pass recomputes each block. The last device's queries see all keys, and the
others wait for it, so that skipping what the causal mask hides would save no time.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from marin.nn.attention_reference import attend
from marin.nn.axes import BATCH_AXES, SEQUENCE, TENSOR, Axes, dividing

# (q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H) -> out_BTHC; equal ones must compare equal.
Kernel = Callable[[Array, Array, Array, Array | None, Array | None], Array]

# The most queries whose scores with all keys exist at once.
_BLOCK = 512


def attention_over_mesh(
    kernel: Kernel,
    arrays: tuple[Array, Array, Array, Array | None, Array | None],
    sizes: dict[str, int],
    *,
    window: int | None = None,
    block_size: int | None = None,
) -> Float[Array, "B T H C"]:
    """`kernel(*arrays)` with rows, heads and positions divided along the axes whose sizes are given.

    A dimension that an axis does not divide stays whole, and its devices do the same work twice.

    Args:
        window, block_size: as in `attention`, for where positions are divided and the kernel is not used.
    """
    q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H = arrays
    num_rows, num_tokens, num_heads, _ = q_BTHC.shape
    rows, positions = dividing(sizes, BATCH_AXES, num_rows), dividing(sizes, (SEQUENCE,), num_tokens)
    heads, copies = _heads(sizes, num_heads, k_BTKC.shape[2])
    if copies > 1:
        k_BTKC, v_BTKC = jnp.repeat(k_BTKC, copies, axis=2), jnp.repeat(v_BTKC, copies, axis=2)

    run = _over_mesh(kernel, rows, positions, heads, window, block_size or _BLOCK)
    return run(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H)


@functools.lru_cache(maxsize=64)
def _over_mesh(
    kernel: Kernel, rows: Axes, positions: Axes, heads: Axes, window: int | None, block: int
) -> Callable[..., Array]:
    """Each device's part, as one function for all layers: JAX traces it once, which takes most of a layer's time."""

    def of_device(q: Array, k: Array, v: Array, segment_ids: Array | None, sink: Array | None) -> Array:
        if positions is None:
            return kernel(q, k, v, segment_ids, sink)
        return _attend_from_own_queries(q, k, v, segment_ids, sink, window, block)

    def run(q: Array, k: Array, v: Array, segment_ids: Array | None, sink: Array | None) -> Array:
        spec_BTHC = PartitionSpec(rows, positions, heads)
        specs = (spec_BTHC, spec_BTHC, spec_BTHC, PartitionSpec(rows, positions), PartitionSpec(heads))
        mapped = jax.shard_map(of_device, in_specs=specs, out_specs=spec_BTHC, check_vma=False)
        return mapped(q, k, v, segment_ids, sink)

    return jax.jit(run)


def _heads(sizes: dict[str, int], num_heads: int, num_kv_heads: int) -> tuple[Axes, int]:
    """The axes that heads are divided along, and how many copies of each key head that needs."""
    copies = math.lcm(num_kv_heads, sizes.get(TENSOR, 1)) // num_kv_heads
    if num_heads % (num_kv_heads * copies):
        return None, 1
    return dividing(sizes, (TENSOR,), num_kv_heads * copies), copies


def _attend_from_own_queries(
    q_BtHC: Float[Array, "B t H C"],
    k_BtKC: Float[Array, "B t K C"],
    v_BtKC: Float[Array, "B t K C"],
    segment_ids_Bt: Int[Array, "B t"] | None,
    sink_H: Float[Array, " H"] | None,
    window: int | None,
    block: int,
) -> Float[Array, "B t H C"]:
    """One device's part of attention over rows whose positions are divided along the sequence axis."""

    num_queries = q_BtHC.shape[1]
    first = jax.lax.axis_index(SEQUENCE) * num_queries
    (k_BTKC, k_sums_BTKC), (v_BTKC, v_sums_BTKC) = _whole_rows(k_BtKC), _whole_rows(v_BtKC)
    segment_ids_BT = None if segment_ids_Bt is None else _of_all(segment_ids_Bt)
    key_1T = jnp.arange(k_BTKC.shape[1])[None, :]
    num_blocks = -(-num_queries // block)
    block = -(-num_queries // num_blocks)
    # Where blocks do not divide the queries the last begins in the one before it: divisors may be as small as 1.
    last, done = num_queries - block, num_blocks * block - num_queries

    @jax.checkpoint
    def of_block(start: Array) -> Array:
        q_BbHC = jax.lax.dynamic_slice_in_dim(q_BtHC, start, block, axis=1)
        query_b1 = (first + start + jnp.arange(block))[:, None]
        mask = (query_b1 >= key_1T)[None]
        if window is not None:
            mask = mask & (query_b1 - key_1T < window)[None]
        if segment_ids_Bt is not None and segment_ids_BT is not None:
            own_Bb = jax.lax.dynamic_slice_in_dim(segment_ids_Bt, start, block, axis=1)
            mask = mask & (own_Bb[:, :, None] == segment_ids_BT[:, None, :])
        keys, values = _summed_in(k_sums_BTKC, k_BTKC), _summed_in(v_sums_BTKC, v_BTKC)
        return attend(q_BbHC, keys, values, mask[:, None, None], sink_H)

    out_nBbHC = jax.lax.map(of_block, jnp.minimum(jnp.arange(num_blocks) * block, last))
    if done:
        before_BtHC = jnp.moveaxis(out_nBbHC[:-1], 0, 1).reshape(q_BtHC.shape[0], last + done, *q_BtHC.shape[2:])
        return jnp.concatenate([before_BtHC, out_nBbHC[-1][:, done:]], axis=1)
    return jnp.moveaxis(out_nBbHC, 0, 1).reshape(q_BtHC.shape)


def _of_all(x_Bt: Array) -> Array:
    return jax.lax.all_gather(x_Bt, SEQUENCE, axis=1, tiled=True)


def _gather(x_Bt: Array) -> tuple[Array, Array]:
    x_BT = _of_all(x_Bt)
    return x_BT, jnp.zeros(x_BT.shape, jnp.float32 if jnp.finfo(x_BT.dtype).bits < 32 else x_BT.dtype)


@jax.custom_vjp
def _whole_rows(x_Bt: Array) -> tuple[Array, Array]:
    """What all devices have of each row, and zeros of that shape in float32; `_summed_in` lets the gradient be added up in those.

    Each block of queries of each device adds to the gradients of all keys and values. In bfloat16 their sum was off by 0.8 % with
    128 blocks on each of 2 devices and by 2 % with 512 blocks whose terms had one sign; added up in float32, and rounded once, by
    0.3 and 0.2 %. It takes no longer, and the sums twice their memory: 5 % of what the backward pass needs.
    """
    return _gather(x_Bt)


def _whole_rows_back(like: Array, grads: tuple[Array, Array]) -> tuple[Array]:
    _, sums_BT = grads
    return (jax.lax.psum_scatter(sums_BT, SEQUENCE, scatter_dimension=1, tiled=True).astype(like.dtype),)


_whole_rows.defvjp(lambda x_Bt: (_gather(x_Bt), jnp.zeros((), x_Bt.dtype)), _whole_rows_back)


@jax.custom_vjp
def _summed_in(sums: Array, x: Array) -> Array:
    """`x`, of which the gradient goes to `sums`, in the type of that."""
    return x


_summed_in.defvjp(lambda sums, x: (x, jnp.zeros((), sums.dtype)), lambda like, grad: (grad.astype(like.dtype), None))
