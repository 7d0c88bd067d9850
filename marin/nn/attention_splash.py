"""Attention by Splash, the TPU's fused kernel.

A function says, before anything is traced, why the kernel cannot do what is asked; None where it can. What it computes is what
`reference_attention` says.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

# Splash reads keys in tiles of this many lanes; its backward pass has no smaller tile.
_SPLASH_TILE = 128


def why_not_splash(q_BTHC: Array) -> str | None:
    """Why Splash cannot attend with these queries on this process's devices."""
    platform, num_tokens = jax.default_backend(), q_BTHC.shape[1]
    if platform != "tpu":
        return f"needs a TPU, and this is {platform}"
    if num_tokens % _SPLASH_TILE:
        return f"needs a context of a multiple of {_SPLASH_TILE}, and it is {num_tokens}"
    return None


def splash_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    sink_H: Float[Array, " H"] | None = None,
    window: int | None = None,
    interpret: bool = False,
) -> Float[Array, "B T H C"]:
    """Attention by Splash, which skips the tiles that the causal mask or the window leaves empty.

    Args:
        interpret: run the kernel's program without a TPU: exact, and slower by orders of magnitude.
    """
    # Pallas takes 0.5 s to import, and only TPUs need it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, num_tokens, num_heads, head_dim = q_BTHC.shape
    left = None if window is None else window - 1
    head_mask = masks.LocalMask((num_tokens, num_tokens), window_size=(left, 0), offset=0)
    tile = next(size for size in (512, 256, _SPLASH_TILE) if num_tokens % size == 0)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([head_mask] * num_heads),
        block_sizes=kernels.BlockSizes(
            block_q=tile, block_kv=tile, block_q_dkv=tile, block_kv_dkv=tile, block_q_dq=tile, block_kv_dq=tile
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    # The kernel leaves the scaling of scores to its caller.
    q_BTHC = (q_BTHC.astype(jnp.float32) * (1.0 / math.sqrt(head_dim))).astype(q_BTHC.dtype)
    q_BHTC, k_BKTC, v_BKTC = (jnp.moveaxis(x, 1, 2) for x in (q_BTHC, k_BTKC, v_BTKC))

    def row(q_HTC: Array, k_KTC: Array, v_KTC: Array, segment_ids_T: Array | None) -> Array:
        segments = None if segment_ids_T is None else kernels.SegmentIds(segment_ids_T, segment_ids_T)
        return kernel(q_HTC, k_KTC, v_KTC, segments, sink_H)

    with jax.numpy_dtype_promotion("standard"):  # the kernel's own code mixes number types
        out_BHTC = jax.vmap(row)(q_BHTC, k_BKTC, v_BKTC, segment_ids_BT)
    return jnp.moveaxis(out_BHTC, 1, 2).astype(v_BTKC.dtype)
