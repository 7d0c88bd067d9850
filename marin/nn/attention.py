"""Causal self-attention within documents: which kernel computes it on which device.

A query attends to keys at or before its position that carry the same segment id, and with a window to no more than its
last `window` keys. `attention` picks a kernel by backend:

- VANILLA: the reference (`attention_reference`); holds all T x T scores.
- JAX_FLASH: blocks of queries that skip the keys they cannot see (`attention_blocks`); runs on every device.
- CUDNN: NVIDIA's fused kernels (`attention_cudnn`); SPLASH: the TPU's (`attention_splash`).

Where no backend is asked for, the device's fused kernel is taken if it can do what is asked, with a message and JAX_FLASH
if not, and JAX_FLASH on a CPU. A backend that is asked for by name and cannot do it is refused. On a mesh of devices each
runs the kernel on its own rows and heads (`attention_mesh`). The fused kernels are each for one kind of device and
few number formats, and have no second derivative: while `without_fused_kernels` holds, JAX_FLASH stands in for them.
"""

import contextlib
import dataclasses
import enum
import functools
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.errors import ConfigError
from marin.nn.attention_blocks import blocked_attention
from marin.nn.attention_counting import counted_keys, keys_per_query, note_window, stand_in_attention
from marin.nn.attention_cudnn import cudnn_attention, why_not_cudnn
from marin.nn.attention_mesh import attention_over_mesh
from marin.nn.attention_reference import reference_attention
from marin.nn.attention_splash import splash_attention, why_not_splash
from marin.nn.axes import ambient_axes


class AttentionBackend(enum.Enum):
    """Kernels that a config can ask for; None in a config means the best for the device."""

    VANILLA = "vanilla"
    JAX_FLASH = "jax_flash"
    CUDNN = "cudnn"
    SPLASH = "splash"

    @property
    def is_fused(self) -> bool:
        """Whether it is the kernel of one kind of device alone."""
        return self in _FUSED.values()


# The fused kernel of each kind of device.
_FUSED = {"gpu": AttentionBackend.CUDNN, "tpu": AttentionBackend.SPLASH}
# A context that JAX's own caches of traces know.
_unfused = jax.make_user_context(False)


@contextlib.contextmanager
def without_fused_kernels() -> Iterator[None]:
    """While it holds, traces have attention that runs on every device in every format, and whose gradient can be differentiated."""
    with _unfused(True):
        yield


def attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    segment_ids_BT: Int[Array, "B T"] | None,
    *,
    sink_H: Float[Array, " H"] | None = None,
    window: int | None = None,
    backend: AttentionBackend | None = None,
    block_size: int | None = None,
    upcast: bool = False,
) -> Float[Array, "B T H C"]:
    """Causal attention within segments; `H` must be a multiple of `K` (grouped queries).

    Args:
        segment_ids_BT: None where a row is one document.
        sink_H: a learned logit for each head that takes part in the softmax and attends to nothing (Xiao et al., 2023,
            arXiv:2309.17453, in the learned form).
        window: how many keys a query sees, its own position among them; None for all before it.
        block_size: queries per block of JAX_FLASH; None chooses.
        upcast: compute the scores from float32 queries and keys.
    Raises:
        ConfigError: if the backend cannot do what is asked, or the window holds no key.
    """
    if window is not None and window < 1:
        raise ConfigError(f"the attention window is {window}: use at least 1, or None for the whole context")
    note_window(window)
    counted = counted_keys()
    if counted is not None:
        return stand_in_attention(q_BTHC, k_BTKC, v_BTKC, keys_per_query(counted, q_BTHC.shape[1], window))
    if window is not None and window >= k_BTKC.shape[1]:
        window = None  # it holds every key
    if upcast:
        q_BTHC, k_BTKC = q_BTHC.astype(jnp.float32), k_BTKC.astype(jnp.float32)
    backend = _usable_backend(
        backend, q_BTHC, v_BTKC, has_segments=segment_ids_BT is not None, has_sink=sink_H is not None
    )
    kernel = _Kernel(backend, window, block_size)
    arrays = (q_BTHC, k_BTKC, v_BTKC, segment_ids_BT, sink_H)
    sizes = ambient_axes()
    return (
        attention_over_mesh(kernel, arrays, sizes, window=window, block_size=block_size) if sizes else kernel(*arrays)
    )


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A kernel with its options."""

    backend: AttentionBackend
    window: int | None
    block_size: int | None

    def __call__(
        self,
        q_BTHC: Float[Array, "B T H C"],
        k_BTKC: Float[Array, "B T K C"],
        v_BTKC: Float[Array, "B T K C"],
        segment_ids_BT: Int[Array, "B T"] | None,
        sink_H: Float[Array, " H"] | None,
    ) -> Float[Array, "B T H C"]:
        arrays = (q_BTHC, k_BTKC, v_BTKC, segment_ids_BT)
        if self.backend is AttentionBackend.VANILLA:
            return reference_attention(*arrays, sink_H=sink_H, window=self.window)
        if self.backend is AttentionBackend.CUDNN:
            return cudnn_attention(*arrays, window=self.window)
        if self.backend is AttentionBackend.SPLASH:
            return splash_attention(*arrays, sink_H=sink_H, window=self.window)
        return blocked_attention(*arrays, sink_H=sink_H, window=self.window, block_size=self.block_size)


def _usable_backend(
    asked: AttentionBackend | None, q_BTHC: Array, v_BTKC: Array, *, has_segments: bool, has_sink: bool
) -> AttentionBackend:
    """The backend that was asked for, or the device's fused kernel where none was and it can do what is asked."""
    backend = asked or _FUSED.get(_platform(), AttentionBackend.JAX_FLASH)
    if _unfused.value and backend.is_fused:
        return AttentionBackend.JAX_FLASH
    problem = None
    if backend is AttentionBackend.CUDNN:
        problem = why_not_cudnn(q_BTHC, v_BTKC, has_segments=has_segments, has_sink=has_sink)
    elif backend is AttentionBackend.SPLASH:
        problem = why_not_splash(q_BTHC)
    if problem is None:
        return backend
    if asked is not None:
        raise ConfigError(f"`attn_backend` {backend.name} {problem}: use JAX_FLASH, or None for the device's best")
    _warn_once(f"attention runs as JAX_FLASH, since {backend.name} {problem}")
    return AttentionBackend.JAX_FLASH


@functools.cache
def _warn_once(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _platform() -> str:
    return jax.default_backend()
