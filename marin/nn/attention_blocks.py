"""Causal attention cut into blocks of queries, each of which sees only the keys that a mask of positions lets it see.

The scores that the causal mask or the window would discard are never computed. The backward pass is written out: it keeps
the output and one log-sum-exp a query, and computes each block's weights again from them (Dao, 2023, arXiv:2307.08691,
section 3.1), so the memory for scores is that of one block whatever the context.

Inside, the `G = H / K` query heads that share keys are rows of one product: queries lie as [B, K, R, C] with row
`r = t * G + g`. The gradients of keys and values are summed transposed, [B, K, C, T]: XLA's CPU products that contract over
their rows run at 30 GFLOP/s on a core with the key as the output's row and at 48 with it as the column (f32, 64 x 512).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin.nn.attention_reference import MASKED, attend, attention_mask
from marin.nn.precision import wide_einsum

# Up to here `_short_attention` is used: differentiated by JAX, the program that the committed results were made with.
_SHORT = 256
# The fastest block of `_short_attention` on a 2-core AVX-512 machine at T = 256.
_SHORT_BLOCK = 64

Saved = tuple[Array, Array, Array, Array | None, Array | None, Array, Array]


def blocked_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    sink_H: Float[Array, " H"] | None = None,
    window: int | None = None,
    block_size: int | None = None,
) -> Float[Array, "B T H C"]:
    """Causal attention within segments and within the window; the arguments are those of `attention`."""
    num_tokens = q_BTHC.shape[1]
    if window is not None and window >= num_tokens:
        window = None
    if num_tokens <= _SHORT and window is None:
        return _short_attention(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H, block_size or _SHORT_BLOCK)
    return _attention(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H, window, block_size or _block(num_tokens))


def _block(num_tokens: int) -> int:
    """Queries per block: a quarter of the context within 128 and 512, as each block adds to the program that is compiled.

    Processor time of forward and backward on a 2-core AVX-512 machine (f32, head width 64, segments; medians of 5 to 9):
    at T = 512 blocks of 128 take 0.92 of those of 64; at T = 1,024 blocks of 64, 128 and 256 take 1.12, 1.01 and 1; at
    T = 4,096 blocks of 128, 256 and 512 take 1.05, 1.04 and 1.
    """
    return min(512, max(128, num_tokens // 4))


def _short_attention(
    q_BTHC: Array, k_BTKC: Array, v_BTKC: Array, segment_ids_BT: Array | None, sink_H: Array | None, block: int
) -> Float[Array, "B T H C"]:
    num_tokens = q_BTHC.shape[1]
    outputs = []
    for start in range(0, num_tokens, block):
        stop = min(start + block, num_tokens)
        mask = attention_mask(segment_ids_BT, start, stop, stop)
        outputs.append(attend(q_BTHC[:, start:stop], k_BTKC[:, :stop], v_BTKC[:, :stop], mask, sink_H))
    return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attention(
    q_BTHC: Array,
    k_BTKC: Array,
    v_BTKC: Array,
    segment_ids_BT: Array | None,
    sink_H: Array | None,
    window: int | None,
    block: int,
) -> Float[Array, "B T H C"]:
    return _forward(q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H, window, block)[0]


def _forward(
    q_BTHC: Array,
    k_BTKC: Array,
    v_BTKC: Array,
    segment_ids_BT: Array | None,
    sink_H: Array | None,
    window: int | None,
    block: int,
) -> tuple[Array, Saved]:
    num_tokens, num_kv_heads = k_BTKC.shape[1:3]
    group = q_BTHC.shape[2] // num_kv_heads
    q_BKRC, k_BKTC, v_BKTC = (_rows(x, num_kv_heads) for x in (q_BTHC, k_BTKC, v_BTKC))
    sink_1KR = None if sink_H is None else _sink_rows(sink_H, num_kv_heads, num_tokens)
    outputs, log_totals = [], []
    for start, stop, first in _blocks(num_tokens, block, window):
        rows = slice(start * group, stop * group)
        scores = _scores(q_BKRC, k_BKTC, segment_ids_BT, (start, stop, first), window)
        top = jnp.max(scores, axis=-1, keepdims=True)
        if sink_1KR is not None:
            top = jnp.maximum(top, sink_1KR[..., rows, None])
        weights = jnp.exp(scores - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        if sink_1KR is not None:
            total = total + jnp.exp(sink_1KR[..., rows, None] - top)
        seen = v_BKTC[:, :, first:stop]
        values = wide_einsum("bkrs,bksc->bkrc", weights.astype(seen.dtype), seen)
        outputs.append((values / total).astype(seen.dtype))
        log_totals.append((top + jnp.log(total))[..., 0])
    out_BKRC, log_total_BKR = jnp.concatenate(outputs, axis=2), jnp.concatenate(log_totals, axis=2)
    return _heads(out_BKRC, num_tokens), (q_BKRC, k_BKTC, v_BKTC, segment_ids_BT, sink_H, out_BKRC, log_total_BKR)


def _backward(
    window: int | None, block: int, saved: Saved, grad_BTHC: Array
) -> tuple[Array, Array, Array, None, Array | None]:
    q_BKRC, k_BKTC, v_BKTC, segment_ids_BT, sink_H, out_BKRC, log_total_BKR = saved
    num_rows, num_kv_heads, num_tokens, head_dim = k_BKTC.shape
    group = q_BKRC.shape[2] // num_tokens
    grad_BKRC = _rows(grad_BTHC, num_kv_heads)
    # Of each query: the sum over keys of weight x gradient of the weight, which the softmax's derivative subtracts.
    mean_BKR = jnp.sum(grad_BKRC.astype(jnp.float32) * out_BKRC.astype(jnp.float32), axis=-1)
    grad_k_BKCT = jnp.zeros((num_rows, num_kv_heads, head_dim, num_tokens), jnp.float32)
    grad_v_BKCT = grad_k_BKCT
    grad_qs = []
    for start, stop, first in _blocks(num_tokens, block, window):
        rows, seen = slice(start * group, stop * group), slice(first, stop)
        q, grad, k, v = q_BKRC[:, :, rows], grad_BKRC[:, :, rows], k_BKTC[:, :, seen], v_BKTC[:, :, seen]
        scores = _scores(q_BKRC, k_BKTC, segment_ids_BT, (start, stop, first), window)
        weights = jnp.exp(scores - log_total_BKR[:, :, rows, None])
        grad_weights = wide_einsum("bkrc,bksc->bkrs", grad, v)
        grad_scores = weights * (grad_weights - mean_BKR[:, :, rows, None]) * (1.0 / math.sqrt(head_dim))
        grad_scores, weights = grad_scores.astype(q.dtype), weights.astype(grad.dtype)
        grad_qs.append(jnp.einsum("bkrs,bksc->bkrc", grad_scores, k))
        grad_k_BKCT = grad_k_BKCT.at[..., seen].add(wide_einsum("bkrc,bkrs->bkcs", q, grad_scores))
        grad_v_BKCT = grad_v_BKCT.at[..., seen].add(wide_einsum("bkrc,bkrs->bkcs", grad, weights))
    grad_sink_H = None
    if sink_H is not None:
        # A sink has a weight as a key has, and a value of zero.
        weight_BKR = jnp.exp(_sink_rows(sink_H, num_kv_heads, num_tokens) - log_total_BKR)
        by_query = (weight_BKR * mean_BKR).reshape(num_rows, num_kv_heads, num_tokens, group)
        grad_sink_H = -jnp.sum(by_query, axis=(0, 2)).reshape(-1).astype(sink_H.dtype)
    return (
        _heads(jnp.concatenate(grad_qs, axis=2), num_tokens),
        _heads(grad_k_BKCT.swapaxes(2, 3).astype(k_BKTC.dtype), num_tokens),
        _heads(grad_v_BKCT.swapaxes(2, 3).astype(v_BKTC.dtype), num_tokens),
        None,
        grad_sink_H,
    )


_attention.defvjp(_forward, _backward)


def _blocks(num_tokens: int, block: int, window: int | None) -> list[tuple[int, int, int]]:
    """Of each block of queries its first, its end, and the first key that any of them sees."""
    return [
        (start, min(start + block, num_tokens), 0 if window is None else max(0, start - window + 1))
        for start in range(0, num_tokens, block)
    ]


def _scores(
    q_BKRC: Array, k_BKTC: Array, segment_ids_BT: Array | None, where: tuple[int, int, int], window: int | None
) -> Float[Array, "B K r s"]:
    """The scaled scores of a block's queries with the keys that it sees, in float32, masked."""
    start, stop, first = where
    head_dim, group = q_BKRC.shape[3], q_BKRC.shape[2] // k_BKTC.shape[2]
    q, k = q_BKRC[:, :, start * group : stop * group], k_BKTC[:, :, first:stop]
    scores = wide_einsum("bkrc,bksc->bkrs", q, k)
    mask = _mask(segment_ids_BT, where, group, window)
    return jnp.where(mask, scores * (1.0 / math.sqrt(head_dim)), MASKED)


def _mask(
    segment_ids_BT: Array | None, where: tuple[int, int, int], group: int, window: int | None
) -> Bool[Array, "b 1 r s"]:
    start, stop, first = where
    query_r1, key_1s = jnp.repeat(jnp.arange(start, stop), group)[:, None], jnp.arange(first, stop)[None, :]
    mask = (query_r1 >= key_1s)[None]
    if window is not None:
        mask = mask & (query_r1 - key_1s < window)[None]
    if segment_ids_BT is not None:
        segment_Br = jnp.repeat(segment_ids_BT[:, start:stop], group, axis=1)
        mask = mask & (segment_Br[:, :, None] == segment_ids_BT[:, None, first:stop])
    return mask[:, None]


def _rows(x_BTHC: Array, num_kv_heads: int) -> Float[Array, "B K R C"]:
    num_rows, num_tokens, num_heads, head_dim = x_BTHC.shape
    x_BTKGC = x_BTHC.reshape(num_rows, num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    return jnp.moveaxis(x_BTKGC, 2, 1).reshape(num_rows, num_kv_heads, -1, head_dim)


def _heads(x_BKRC: Array, num_tokens: int) -> Float[Array, "B T H C"]:
    num_rows, num_kv_heads, _, head_dim = x_BKRC.shape
    x_BKTGC = x_BKRC.reshape(num_rows, num_kv_heads, num_tokens, -1, head_dim)
    return jnp.moveaxis(x_BKTGC, 1, 2).reshape(num_rows, num_tokens, -1, head_dim)


def _sink_rows(sink_H: Array, num_kv_heads: int, num_tokens: int) -> Float[Array, "1 K R"]:
    return jnp.tile(sink_H.astype(jnp.float32).reshape(1, num_kv_heads, -1), (1, 1, num_tokens))
