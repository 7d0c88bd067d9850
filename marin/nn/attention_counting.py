"""What attention costs, told to a trace that counts products: a stand-in with the right shapes and the right number of FLOPs.

Kernels differ in what they compute: one holds the whole square, one skips blocks, a vendor's is a call that shows nothing.
A count must not depend on that. While `counting_attention` holds, `marin.nn.attention.attention` multiplies each query with
as many keys as a query sees on average, and as many values; the result means nothing and is never computed. Derivatives
follow by JAX's own rules: twice the forward products, as attention needs whose weights are kept.

With "visible" keys a causal query of T tokens sees T / 2 on average, and with a window of W tokens W - W^2 / 2T: the area
under the causal band, so that plain causal attention is half of the square. With "all" it sees T. Fractions of a key are
rounded up.

`windows_of` says which windows a function asks attention for.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Keys = Literal["all", "visible"]

# A context that JAX's own caches of traces know: a trace made for counting is never used for computing.
_counted = jax.make_user_context(None)
# Where `note_window` writes; None where nobody asks.
_windows: contextvars.ContextVar[set[int | None] | None] = contextvars.ContextVar("windows", default=None)


@contextlib.contextmanager
def counting_attention(keys: Keys) -> Iterator[None]:
    """While it holds, traces have the stand-in in the place of attention."""
    with _counted(keys):
        yield


def counted_keys() -> Keys | None:
    """Which keys are counted; None where attention is to be computed."""
    return _counted.value


def keys_per_query(keys: Keys, num_tokens: int, window: int | None) -> int:
    """How many keys a query is multiplied with, rounded up."""
    if keys == "all":
        return num_tokens
    width = num_tokens if window is None else min(window, num_tokens)
    return max(1, math.ceil(width - width**2 / (2 * num_tokens)))


def stand_in_attention(
    q_BTHC: Float[Array, "B T H C"],
    k_BTKC: Float[Array, "B T K C"],
    v_BTKC: Float[Array, "B T K C"],
    num_keys: int,
) -> Float[Array, "B T H C"]:
    """Two products of every query with `num_keys` keys and values."""
    num_rows, num_tokens, num_heads, head_dim = q_BTHC.shape
    num_kv_heads = k_BTKC.shape[2]
    q_BTKGC = q_BTHC.reshape(num_rows, num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scores = jnp.einsum("btkgc,bskc->bkgts", q_BTKGC, k_BTKC[:, :num_keys]).astype(v_BTKC.dtype)
    return jnp.einsum("bkgts,bskc->btkgc", scores, v_BTKC[:, :num_keys]).reshape(q_BTHC.shape)


def windows_of(function: Callable[..., Any], *arguments: Any) -> set[int | None]:
    """The windows that `function` asks attention for, None for the whole context; it is traced, and nothing is computed."""
    found: set[int | None] = set()
    before = _windows.set(found)
    try:
        with counting_attention("all"):
            jax.eval_shape(function, *arguments)
    finally:
        _windows.reset(before)
    return found


def note_window(window: int | None) -> None:
    """Called by attention with what it is asked for."""
    found = _windows.get()
    if found is not None:
        found.add(window)
