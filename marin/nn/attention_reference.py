"""What attention must compute, written for reading: all scores at once, softmax in float32.

A query attends to keys at or before its position that carry the same segment id and, where there is a window, to no key
further back than that. Every kernel is held against this one.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MASKED = -1e30


def reference_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    sink_H: Float[Array, " H"] | None = None,
    window: int | None = None,
) -> Float[Array, "B T H C"]:
    """Causal attention within segments and within the window; the arguments are those of `attention`."""
    num_tokens = q_BTHC.shape[1]
    mask = attention_mask(segment_ids_BT, 0, num_tokens, num_tokens, window)
    return attend(q_BTHC, k_BTKC, v_BTKC, mask, sink_H)


def attention_mask(
    segment_ids_BT: Int[Array, "B T"] | None, start: int, stop: int, num_keys: int, window: int | None = None
) -> Bool[Array, "b 1 1 t s"]:
    """True where query `start..stop` may see key `0..num_keys`."""
    query_t1, key_1s = jnp.arange(start, stop)[:, None], jnp.arange(num_keys)[None, :]
    mask = (query_t1 >= key_1s)[None]
    if window is not None:
        mask = mask & (query_t1 - key_1s < window)[None]
    if segment_ids_BT is not None:
        mask = mask & (segment_ids_BT[:, start:stop, None] == segment_ids_BT[:, None, :num_keys])
    return mask[:, None, None]


def attend(
    q_BTHC: Float[Array, "B T H C"],
    k_BSKC: Float[Array, "B S K C"],
    v_BSKC: Float[Array, "B S K C"],
    mask: Bool[Array, "b 1 1 T S"],
    sink_H: Float[Array, " H"] | None,
) -> Float[Array, "B T H C"]:
    """Attention of some queries to some keys under a mask; scores and softmax in float32."""
    num_rows, num_queries, num_heads, head_dim = q_BTHC.shape
    num_kv_heads = k_BSKC.shape[2]
    q_BTKGC = q_BTHC.reshape(num_rows, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = jnp.einsum("btkgc,bskc->bkgts", q_BTKGC, k_BSKC, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores * (1.0 / math.sqrt(head_dim)), MASKED)
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
