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
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin import hardware

_CUDNN_TYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
# cuDNN's widest head: on Hopper and later, and before.
_WIDEST, _WIDEST_BEFORE_HOPPER = 256, 128
_HOPPER = 9.0
KERNEL = "dot_product_attention_fwd"
"""JAX's names for cuDNN's kernel of the forward pass begin so."""

CHOICE = "documents"
"""What the choice between the ways is called in a compiled program, forward and backward; the first of its branches is the causal mask alone."""

MOST_PACKED = 16
"""Documents in a row for which the packed layout has places: each costs time and memory, whether it is there or not."""
# Bytes that the packed layout's backward pass may take beside its operands and results.
_WORKSPACE = 4 * 2**30


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
    if segment_ids_BT is None:
        return _causal(q_BTHC, k_BTKC, v_BTKC, window=window)
    biased = functools.partial(_biased, window=window)
    if not _can_pack(q_BTHC, k_BTKC):
        return biased(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)

    def causal(q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array) -> Array:
        return _causal(q_BTHC, k_BTKC, v_BTKC, window=window)

    ways = (
        causal,
        functools.partial(_packed, window=window),
        # The bias is made again for the backward pass: kept, each layer of every batch would have room for one.
        jax.checkpoint(biased),
    )

    def choose(*arrays: Array) -> Array:
        with jax.named_scope(CHOICE):
            return jax.lax.switch(_way(segment_ids_BT), ways, *arrays)

    # For the backward pass a choice would copy queries, keys and values, which are kept anyway.
    kept = jax.checkpoint(choose, policy=functools.partial(_is_kept, _packed_rows(q_BTHC, k_BTKC) == q_BTHC.shape[0]))
    return kept(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)


def _is_kept(at_once: bool, primitive: Any, *values: Any, **parameters: Any) -> bool:
    """Whether the backward pass is left what the forward pass gave: packed a few rows at a time each layer would keep it twice."""
    found = _packed_kernel()
    is_packed = found is not None and parameters.get("mask_type") == found[1]
    return primitive.name.startswith(KERNEL) and (at_once or not is_packed)


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


def _causal(q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, *, window: int | None, mask: Array | None = None) -> Array:
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
    return _causal(q_BTHC, k_BTKC, v_BTKC, window=window, mask=mask)


def _packed(q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array, *, window: int | None) -> Array:
    arrays = (q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)
    rows = _packed_rows(q_BTHC, k_BTKC)
    if rows == q_BTHC.shape[0]:
        return _packed_at_once(*arrays, window=window)
    parts = [array.reshape(-1, rows, *array.shape[1:]) for array in arrays]
    out = jax.lax.map(lambda part: _packed_at_once(*part, window=window), parts)
    return out.reshape(q_BTHC.shape)


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
