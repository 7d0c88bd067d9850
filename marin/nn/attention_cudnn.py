"""Attention by cuDNN's flash kernels, on NVIDIA GPUs.

A function says, before anything is traced, why the kernels cannot do what is asked; None where they can. What they compute is
what `reference_attention` says.

cuDNN hides documents from each other in two ways: by a bias [B, 1, T, T], which every head reads, or by where each document of
a row begins (its packed layout), so that the keys of other documents are not even looked at. The second has a fixed number of
places for documents in a row. Which one a batch takes is seen when it is there:

    one document in each row             the causal mask alone
    at most `MOST_PACKED` in each row    packed
    more, or ids that do not rise        the bias

Forward and backward on an H200 (JAX 0.11, 16 rows of 4,096 tokens at once, bfloat16, 32 places), in ms:

    heads                   causal    packed, one document    packed, documents of 1,000    bias
    8 of 64                    2.6                     3.7                           2.3     4.7
    16 of 128, 8 of keys       8.6                    10.9                           6.6    16.5

In its backward pass the packed layout needs memory for every place as if a document there were as long as the row (34 GB in the last
line above), so rows are taken a few at a time.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from marin import hardware

_CUDNN_TYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
# cuDNN's widest head: on Hopper and later, and before.
_WIDEST, _WIDEST_BEFORE_HOPPER = 256, 128
_HOPPER = 9.0
Way = Callable[..., Array]
KEPT = "attention by cuDNN"
"""The name under which `jax.checkpoint` finds what attention's backward pass needs beside queries, keys and values."""

CHOICE = "documents"
"""What the choice between the ways is called in a compiled program, forward and backward; the first of its branches is the causal mask alone."""

MOST_PACKED = 16
"""Documents in a row for which the packed layout has places: each costs time and memory, whether it is there or not."""
# Bytes that the packed layout's backward pass may take beside its operands and results.
_WORKSPACE = 4 * 2**30
# How often the packed kernels stand in a layer's program, each of which takes its time to compile; beyond it there is a loop.
_MOST_WRITTEN = 4


def why_not_cudnn(q_BTHC: Array, v_BTKC: Array, *, has_segments: bool, has_sink: bool) -> str | None:
    """Why cuDNN cannot attend with these arguments on this process's devices."""
    num_tokens, head_dim = q_BTHC.shape[1], q_BTHC.shape[3]
    device = jax.local_devices()[0]
    if not hardware.is_nvidia_gpu(device):
        return f"needs an NVIDIA GPU, and this is {device.platform} ({device.device_kind})"
    if q_BTHC.dtype not in _CUDNN_TYPES or v_BTKC.dtype != q_BTHC.dtype:
        return f"needs bfloat16 or float16, and queries are {q_BTHC.dtype}, values {v_BTKC.dtype}"
    if has_sink:
        return "has no attention sink"
    widest = _WIDEST if float(device.compute_capability) >= _HOPPER else _WIDEST_BEFORE_HOPPER
    if head_dim % 8 or head_dim > widest:
        return f"needs heads of a multiple of 8 up to {widest}, and they have width {head_dim}"
    if has_segments and num_tokens % 2:
        return f"needs an even context where documents are masked, and it is {num_tokens}"
    return None


def cudnn_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    window: int | None = None,
) -> Float[Array, "B T H C"]:
    """Attention by cuDNN; pass None where a row is one document."""
    ways: tuple[Way, ...] = (_biased,)
    if segment_ids_BT is None:
        ways = (_causal,)
    elif _can_pack(q_BTHC, k_BTKC):
        ways = (_causal, _packed, _biased)
    return _attended(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, ways, window)


# JAX differentiates a choice by handing out of it all that any of its branches keeps: queries, keys and values were copied, results
# were there twice, and the backward pass chose twice. Here each way keeps its result and the statistics of its softmax.
@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attended(
    q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array | None, ways: tuple[Way, ...], window: int | None
) -> Float[Array, "B T H C"]:
    """Attention by that one of the ways which the batch can take."""

    def run(way: Way, *arrays: Any) -> Array:
        return way(*arrays, window=window)

    return _chosen(ways, run, segment_ids_BT, q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)


def _forward(
    q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array | None, ways: tuple[Way, ...], window: int | None
) -> tuple[Array, tuple[Any, ...]]:
    shapes = _shapes(ways, q_BTHC, k_BTKC)

    def run(way: Way, *arrays: Any) -> tuple[Array, list[Array]]:
        own = _shape(way, q_BTHC, k_BTKC)
        if own is None:
            out, found = way(*arrays, window=window), []
        else:
            out, pull = _differentiated(way, *arrays, window=window)
            found = [leaf for leaf in jax.tree.leaves(pull) if _are_statistics(leaf, own)]
        return out, [found[0] if found and shape == own else jnp.zeros(shape, jnp.float32) for shape in shapes]

    arrays = (q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)
    kept = _chosen(ways, run, segment_ids_BT, *arrays)
    out_BTHC, statistics = jax.tree.map(lambda array: checkpoint_name(array, KEPT), kept)
    return out_BTHC, (*arrays, out_BTHC, statistics)


def _backward(
    ways: tuple[Way, ...], window: int | None, saved: tuple[Any, ...], grad_BTHC: Array
) -> tuple[Array, Array, Array, None]:
    shapes = _shapes(ways, saved[0], saved[1])

    def run(way: Way, *arrays_and_results: Any) -> tuple[Array, Array, Array]:
        q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, out_BTHC, statistics, grad_BTHC = arrays_and_results
        arrays = (q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)
        own = _shape(way, q_BTHC, k_BTKC)
        if own is None:
            return _packed_gradients(*arrays, grad_BTHC, window=window)
        again, pull = _differentiated(way, *arrays, window=window)
        leaves, structure = jax.tree.flatten(pull)
        if any(_are_statistics(leaf, own) for leaf in leaves):
            # What the forward pass gave stands for what it would give again, and which nothing needs then.
            given = statistics[shapes.index(own)]
            leaves = [out_BTHC if leaf is again else given if _are_statistics(leaf, own) else leaf for leaf in leaves]
        return jax.tree.unflatten(structure, leaves)(grad_BTHC)

    return *_chosen(ways, run, saved[3], *saved, grad_BTHC), None


_attended.defvjp(_forward, _backward)


def _chosen(ways: tuple[Way, ...], run: Callable[..., Any], segment_ids_BT: Array | None, *arrays: Any) -> Any:
    """`run(way, *arrays)` for the way that the batch can take."""
    if segment_ids_BT is None or len(ways) == 1:
        return run(ways[0], *arrays)
    with jax.named_scope(CHOICE):
        return jax.lax.switch(_way(segment_ids_BT), [functools.partial(run, way) for way in ways], *arrays)


def _differentiated(
    way: Way, q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array | None, *, window: int | None
) -> tuple[Array, Any]:
    """What a way gives, and the function of its gradients, a tree of which the leaves are what that function needs."""
    return jax.vjp(lambda q, k, v: way(q, k, v, segment_ids_BT, window=window), q_BTHC, k_BTKC, v_BTKC)


def _shape(way: Way, q_BTHC: Array, k_BTKC: Array) -> tuple[int, int, int] | None:
    """The shape of the softmax's statistics that a way keeps; None where its forward pass is run again.

    Packed, they have room for each place as if a document there were as long as the row: too much for each layer to keep where rows
    are so wide that only a few are packed at once.
    """
    num_rows, num_tokens, num_heads, _ = q_BTHC.shape
    if way is not _packed:
        return num_rows, num_heads, num_tokens
    at_once = _packed_rows(q_BTHC, k_BTKC) == num_rows
    return (num_rows * MOST_PACKED, num_heads, num_tokens) if at_once else None


def _shapes(ways: tuple[Way, ...], q_BTHC: Array, k_BTKC: Array) -> list[tuple[int, int, int]]:
    """Those of all ways, each once."""
    shapes = [_shape(way, q_BTHC, k_BTKC) for way in ways]
    return [shape for shape in dict.fromkeys(shapes) if shape is not None]


def _are_statistics(leaf: Array, shape: tuple[int, int, int]) -> bool:
    return leaf.dtype == jnp.float32 and leaf.shape == shape


def _way(segment_ids_BT: Int[Array, "B T"]) -> Int[Array, ""]:
    """Which of the ways of `cudnn_attention` a batch can take."""
    rises = _is_first(segment_ids_BT)
    falls = segment_ids_BT[:, 1:] < segment_ids_BT[:, :-1]
    most = jnp.max(jnp.sum(rises, axis=1, dtype=jnp.int32))
    return jnp.where(jnp.any(falls) | (most > MOST_PACKED), 2, jnp.where(most > 1, 1, 0))


def _is_first(segment_ids_BT: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Whether a token is the first of its document."""
    changes = segment_ids_BT[:, 1:] != segment_ids_BT[:, :-1]
    return jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)


def _causal(
    q_BTHC: Array,
    k_BTKC: Array,
    v_BTKC: Array,
    segment_ids_BT: Array | None,
    *,
    window: int | None,
    mask: Array | None = None,
) -> Array:
    return jax.nn.dot_product_attention(
        q_BTHC,
        k_BTKC,
        v_BTKC,
        mask=mask,
        is_causal=True,
        # JAX counts the keys before the query's own position.
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )


def _biased(q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array, *, window: int | None) -> Array:
    mask = (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :])[:, None]
    return _causal(q_BTHC, k_BTKC, v_BTKC, None, window=window, mask=mask)


def _packed(q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array, *, window: int | None) -> Array:
    rows = _packed_rows(q_BTHC, k_BTKC)
    run = functools.partial(_packed_at_once, window=window)
    return _few_rows_at_once(rows, run, q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)


def _packed_gradients(
    q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array, grad_BTHC: Array, *, window: int | None
) -> tuple[Array, Array, Array]:
    """Those of `_packed`, a few rows at a time, which run their forward pass again."""

    def of_rows(*arrays: Array) -> tuple[Array, Array, Array]:
        *inputs, grad = arrays
        return _differentiated(_packed_at_once, *inputs, window=window)[1](grad)

    rows = _packed_rows(q_BTHC, k_BTKC)
    return _few_rows_at_once(rows, of_rows, q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, grad_BTHC)


def _few_rows_at_once(rows: int, run: Callable[..., Any], *arrays: Array) -> Any:
    """What `run` makes of the arrays, `rows` of their rows after the other; all at once where there are no more."""
    if len(arrays[0]) > _MOST_WRITTEN * rows:
        parts = [array.reshape(-1, rows, *array.shape[1:]) for array in arrays]
        made = jax.lax.map(lambda part: run(*part), parts)
        return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), made)
    # Written out: a loop within a choice keeps the choice off the GPU's own launches, and it waits for a processor that reads the ids.
    made = [run(*(array[first : first + rows] for array in arrays)) for first in range(0, len(arrays[0]), rows)]
    return made[0] if len(made) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts), *made)


def _packed_rows(q_BTHC: Array, k_BTKC: Array) -> int:
    """How many rows are packed at once, a divisor of all; 0 where one asks for too much memory."""
    num_rows, num_tokens, num_heads, head_dim = q_BTHC.shape
    # The gradient of queries is added up in float32; where heads share keys, those of keys and values are first made for each head.
    width = 4 if num_heads == k_BTKC.shape[2] else 8
    most = _WORKSPACE // (MOST_PACKED * num_heads * num_tokens * head_dim * width)
    return max((rows for rows in range(1, num_rows + 1) if num_rows % rows == 0 and rows <= most), default=0)


def _packed_at_once(q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array, *, window: int | None) -> Array:
    kernel, causal = _packed_kernel()
    lengths, starts = _documents(segment_ids_BT)
    return kernel(
        q_BTHC,
        k_BTKC,
        v_BTKC,
        q_seqlen=lengths,
        kv_seqlen=lengths,
        q_offsets=starts,
        kv_offsets=starts,
        scale=q_BTHC.shape[-1] ** -0.5,
        mask_type=causal,
        sliding_window_length=window,
    )


def _documents(segment_ids_BT: Int[Array, "B T"]) -> tuple[Int[Array, "B M"], Int[Array, "B M1"]]:
    """Lengths of the documents in each row, and where they begin; -1 for those that are not there."""
    document_BT = jnp.cumsum(_is_first(segment_ids_BT), axis=1, dtype=jnp.int32) - 1
    places_M = jnp.arange(MOST_PACKED, dtype=jnp.int32)
    lengths_BM = jnp.sum(document_BT[:, None, :] == places_M[None, :, None], axis=2, dtype=jnp.int32)
    starts_BM = jnp.cumsum(lengths_BM, axis=1, dtype=jnp.int32) - lengths_BM
    there_BM = lengths_BM > 0
    lengths_BM = jnp.where(there_BM, lengths_BM, -1)
    starts_BM = jnp.where(there_BM, starts_BM, -1)
    return lengths_BM, jnp.pad(starts_BM, ((0, 0), (0, 1)), constant_values=-1)


def _can_pack(q_BTHC: Array, k_BTKC: Array) -> bool:
    """Whether this GPU and this JAX attend to packed documents of such queries and keys."""
    found = _packed_kernel()
    if found is None or float(jax.local_devices()[0].compute_capability) < _HOPPER:
        return False
    # JAX 0.10 finds the keys of a document as if there were as many heads of them as of queries.
    if q_BTHC.shape[2] != k_BTKC.shape[2] and hardware.version_of(jax.__version__) < (0, 11):
        return False
    # So few rows that cuDNN, which is told so, has 32 bits enough for where a document begins.
    return _packed_rows(q_BTHC, k_BTKC) > 0


@functools.cache
def _packed_kernel():  # type: ignore[no-untyped-def]
    """JAX's binding of cuDNN's attention with its packed layout, and its word for the causal mask there; None if JAX has moved them.

    `jax.nn.dot_product_attention`, which is made on it, cannot say where documents begin.
    """
    try:
        from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

        wanted = {"q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets", "scale", "mask_type", "sliding_window_length"}
        return (
            (dot_product_attention, MaskType.PADDING_CAUSAL)
            if wanted <= inspect.signature(dot_product_attention).parameters.keys()
            else None
        )
    except (ImportError, AttributeError):
        return None
