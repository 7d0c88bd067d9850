"""Causal self-attention within documents: one reference that states the meaning, and the kernels that must agree with it.

A query attends to keys at or before its position that carry the same segment id. `attention` picks a kernel by backend:

- VANILLA: the reference; holds all T x T scores.
- JAX_FLASH (also what "auto" takes on CPU and TPU): cuts the queries into blocks; a block sees only keys up to its own
  end, so the half of the scores that the causal mask would discard is never computed, and each block's scores are
  recomputed in the backward pass when the context is long.
- CUDNN: NVIDIA's fused kernel through `jax.nn.dot_product_attention`; needs a GPU and bfloat16 or float16.
"""

import enum
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin.errors import ConfigError

# Above this many keys a block's scores are recomputed in the backward pass instead of kept.
_RECOMPUTE_FROM = 1024
# More query blocks than this make compilation slow without saving much of the discarded half.
_MOST_BLOCKS = 16
_MASKED = -1e30


class AttentionBackend(enum.Enum):
    """Kernels that a config can ask for; None in a config means the best for the device."""

    VANILLA = "vanilla"
    JAX_FLASH = "jax_flash"
    CUDNN = "cudnn"


def attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    sink_H: Float[Array, " H"] | None = None,
    backend: AttentionBackend | None = None,
    block_size: int | None = None,
    upcast: bool = False,
) -> Float[Array, "B T H C"]:
    """Causal attention within segments; `H` must be a multiple of `K` (grouped queries).

    Args:
        segment_ids_BT: None where a row is one document.
        sink_H: a learned logit for each head that takes part in the softmax and attends to nothing (Xiao et al., 2023,
            arXiv:2309.17453, in the learned form).
        block_size: queries per block of JAX_FLASH; None chooses.
        upcast: compute the scores from float32 queries and keys.
    Raises:
        ConfigError: if the backend cannot do what is asked.
    """
    if backend is None:
        backend = _default_backend(q_BTHC, sink_H)
    if upcast:
        q_BTHC, k_BTKC = q_BTHC.astype(jnp.float32), k_BTKC.astype(jnp.float32)
    if backend is AttentionBackend.VANILLA:
        return reference_attention(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H=sink_H)
    if backend is AttentionBackend.CUDNN:
        return _cudnn_attention(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H)
    return _blocked_attention(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H, block_size)


def reference_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    sink_H: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H C"]:
    """What every kernel must compute, written for reading: all scores at once, softmax in float32."""
    num_tokens = q_BTHC.shape[1]
    return _attend(q_BTHC, k_BTKC, v_BTKC, _mask(segment_ids_BT, 0, num_tokens, num_tokens), sink_H)


def _mask(segment_ids_BT: Int[Array, "B T"] | None, start: int, stop: int, num_keys: int) -> Bool[Array, "b 1 1 t s"]:
    """True where query `start..stop` may see key `0..num_keys`."""
    mask = (jnp.arange(start, stop)[:, None] >= jnp.arange(num_keys)[None, :])[None]
    if segment_ids_BT is not None:
        mask = mask & (segment_ids_BT[:, start:stop, None] == segment_ids_BT[:, None, :num_keys])
    return mask[:, None, None]


def _attend(
    q_BTHC: Array, k_BSKC: Array, v_BSKC: Array, mask: Bool[Array, "b 1 1 t s"], sink_H: Array | None
) -> Float[Array, "B T H C"]:
    """Attention of some queries to some keys under a mask; scores and softmax in float32."""
    num_rows, num_queries, num_heads, head_dim = q_BTHC.shape
    num_kv_heads = k_BSKC.shape[2]
    q_BTKGC = q_BTHC.reshape(num_rows, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = jnp.einsum("btkgc,bskc->bkgts", q_BTKGC, k_BSKC, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores * (1.0 / math.sqrt(head_dim)), _MASKED)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if sink_H is not None:
        sink = sink_H.astype(jnp.float32).reshape(1, num_kv_heads, -1, 1, 1)
        top = jnp.maximum(top, sink)
    top = jax.lax.stop_gradient(top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sink_H is not None:
        total = total + jnp.exp(sink - top)
    weights = (weights / total).astype(v_BSKC.dtype)
    return jnp.einsum("bkgts,bskc->btkgc", weights, v_BSKC).reshape(num_rows, num_queries, num_heads, head_dim)


def _blocked_attention(
    q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array | None, sink_H: Array | None, block: int | None
) -> Float[Array, "B T H C"]:
    num_tokens = q_BTHC.shape[1]
    # 64 is the fastest block on a 2-core AVX-512 machine at T = 256 and T = 512.
    block = block or max(64, -(-num_tokens // _MOST_BLOCKS))
    attend = jax.checkpoint(_attend) if num_tokens > _RECOMPUTE_FROM else _attend
    outputs = []
    for start in range(0, num_tokens, block):
        stop = min(start + block, num_tokens)
        mask = _mask(segment_ids_BT, start, stop, stop)
        outputs.append(attend(q_BTHC[:, start:stop], k_BTKC[:, :stop], v_BTKC[:, :stop], mask, sink_H))
    return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)


def _cudnn_attention(
    q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array | None, sink_H: Array | None
) -> Float[Array, "B T H C"]:
    if sink_H is not None:
        raise ConfigError(
            "`attn_backend` CUDNN has no attention sink: use JAX_FLASH, or set `use_attention_sink=False`"
        )
    if _platform() != "gpu" or q_BTHC.dtype == jnp.float32:
        raise ConfigError(
            f"`attn_backend` CUDNN needs a GPU and bfloat16, here are {_platform()} and {q_BTHC.dtype}: use JAX_FLASH or None"
        )
    mask = None
    if segment_ids_BT is not None:
        mask = (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :])[:, None]
    return jax.nn.dot_product_attention(q_BTHC, k_BTKC, v_BTKC, mask=mask, is_causal=True, implementation="cudnn")


def _default_backend(q_BTHC: Array, sink_H: Array | None) -> AttentionBackend:
    if _platform() == "gpu" and q_BTHC.dtype != jnp.float32 and sink_H is None:
        return AttentionBackend.CUDNN
    return AttentionBackend.JAX_FLASH


@functools.cache
def _platform() -> str:
    return jax.default_backend()
