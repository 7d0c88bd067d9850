"""A model's activations at a few positions, as scoring asks for: the ends of questions, and not what leads up to them.

Of the last layer's block only keys and values are needed at every position; queries, attention and the feed-forward are computed
where they are asked for. With six layers that leaves out a seventh of the work.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.models.decoding import can_decode
from marin.models.gpt import Gpt, GptStreams, norm
from marin.nn import rotary_angles, rotary_angles_at
from marin.nn.attention_reference import attend
from marin.nn.axes import ambient_axes

# Each position gets a copy of its row's keys and values, so there must be few to a row.
_MOST_PER_ROW = 8


def activations_at(
    model: Any, tokens_RT: Int[Array, "R T"], row_N: Int[Array, " N"], position_N: Int[Array, " N"]
) -> Float[Array, "N D"]:
    """`model.activations(tokens_RT, None)[row_N, position_N]` up to rounding, for any `LmModel`.

    Models that `marin.models.decoding` does not know, many positions, and rows that several devices share are computed as that
    says.
    """
    if not can_decode(model) or len(row_N) > _MOST_PER_ROW * len(tokens_RT) or ambient_axes():
        return model.activations(tokens_RT, None)[row_N, position_N]
    return (_of_gpt if isinstance(model, Gpt) else _of_llama)(model, tokens_RT, row_N, position_N)


def _of_gpt(model: Gpt, tokens_RT: Array, row_N: Array, position_N: Array) -> Float[Array, "N D"]:
    config, last, block = model.config, len(model.blocks) - 1, model.blocks[-1]
    before = model.streams(tokens_RT, None, last)
    x_RTD = model.layer_input(before, last)
    angles = rotary_angles(config.rope, tokens_RT.shape[1], config.head_dim)
    _, k_RTKC, v_RTKC = block.attention.queries_keys_values(norm(x_RTD), model.token_values(tokens_RT, last), angles)
    x_N1D, first_N1D, middle_N1D = (part[row_N, position_N][:, None] for part in (x_RTD, before.first, before.middle))
    angles_N1 = rotary_angles_at(config.rope, position_N[:, None], config.head_dim)
    q_N1HC, _, _ = block.attention.queries_keys_values(norm(x_N1D), None, angles_N1)
    out_N1HC = _attend(q_N1HC, k_RTKC, v_RTKC, row_N, position_N, block.attention.window, None)
    x_N1D = x_N1D + block.attention.merged(out_N1HC, x_N1D.dtype)
    x_N1D = x_N1D + block.mlp(norm(x_N1D))
    streams = model.after_layer(GptStreams(x_N1D, first_N1D, middle_N1D), last, x_N1D)
    return model.ended(streams)[:, 0]


def _of_llama(model: Any, tokens_RT: Array, row_N: Array, position_N: Array) -> Float[Array, "N D"]:
    config, block = model.config, model.blocks[-1]
    x_RTD = model.stream(tokens_RT, None, len(model.blocks) - 1)
    angles = rotary_angles(config.rope, tokens_RT.shape[1], config.actual_head_dim)
    _, k_RTKC, v_RTKC = block.attention.queries_keys_values(block.attention_norm(x_RTD), angles)
    x_N1D = x_RTD[row_N, position_N][:, None]
    angles_N1 = rotary_angles_at(config.rope, position_N[:, None], config.actual_head_dim)
    q_N1HC, _, _ = block.attention.queries_keys_values(block.attention_norm(x_N1D), angles_N1)
    if config.upcast_attn:
        q_N1HC = q_N1HC.astype(jnp.float32)
    out_N1HC = _attend(q_N1HC, k_RTKC, v_RTKC, row_N, position_N, None, block.attention.sink_H)
    x_N1D = x_N1D + block.attention.merged(out_N1HC, x_N1D.dtype)
    x_N1D = x_N1D + block.mlp(block.mlp_norm(x_N1D))
    return model.final_norm(x_N1D)[:, 0]


def _attend(
    q_N1HC: Array,
    k_RTKC: Array,
    v_RTKC: Array,
    row_N: Array,
    position_N: Array,
    window: int | None,
    sink_H: Array | None,
) -> Float[Array, "N 1 H C"]:
    """Attention of each query to the keys of its row at or before its position."""
    back_NT = position_N[:, None] - jnp.arange(k_RTKC.shape[1])[None, :]
    mask_NT = back_NT >= 0
    if window is not None:
        mask_NT = mask_NT & (back_NT < window)
    return attend(q_N1HC, k_RTKC[row_N], v_RTKC[row_N], mask_NT[:, None, None, None, :], sink_H)
