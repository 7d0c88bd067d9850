"""FLOPs as the traced program counts them, beside what a config's own formula says.

`flops_per_token` is a method of the submitter's config, so it is shown next to this count and a disagreement is flagged.
Counted are matrix products and convolutions, at 2 FLOPs a multiply-add, through every nested program; loops count once a
turn, branches at their most expensive.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def counted_flops_per_token(model_config: Any, vocab_size: int) -> float:
    """Forward FLOPs for one token of the model that `model_config` builds, head included; nothing is computed.

    Where the config names an attention kernel, the reference kernel is counted in its place: its scores are those of the
    full square, as in the published formula, whatever a faster kernel skips.
    """
    if "attn_backend" in {field.name for field in dataclasses.fields(model_config)}:
        model_config = dataclasses.replace(model_config, attn_backend="VANILLA")
    shapes = eqx.filter_eval_shape(lambda: model_config.build(vocab_size, key=jax.random.key(0)))
    length = model_config.max_seq_len
    arrays, static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def forward(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
        model = eqx.combine(arrays, static)
        return model.activations(tokens_BT, segment_ids_BT) @ model.lm_head_DV

    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    return count_flops(jax.make_jaxpr(forward)(arrays, tokens, tokens).jaxpr) / length


def count_flops(jaxpr: Any) -> float:
    """FLOPs of the matrix products in a jaxpr."""
    total = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            spatial_and_inputs = (
                math.prod(kernel.shape) / kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
            )
            total += 2 * math.prod(equation.outvars[0].aval.shape) * spatial_and_inputs
        elif name == "scan":
            total += equation.params["length"] * count_flops(equation.params["jaxpr"].jaxpr)
        elif name == "cond":
            total += max(count_flops(branch.jaxpr) for branch in equation.params["branches"])
        else:
            total += sum(count_flops(inner) for inner in _inner_jaxprs(equation.params))
    return total


def _dot_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[dim] for dim in contracted)


def _inner_jaxprs(params: dict[str, Any]) -> list[Any]:
    inner = []
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if hasattr(item, "eqns"):
                inner.append(item)
            elif hasattr(item, "jaxpr") and hasattr(item.jaxpr, "eqns"):
                inner.append(item.jaxpr)
    return inner
