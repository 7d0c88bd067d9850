"""What our parameters are called in the published layout of Llama and Qwen3 checkpoints, which is one for both.

A parameter that the layout has no place for is refused by name, never left out: a checkpoint that loads elsewhere and
computes something else is worse than none.
"""

import dataclasses
import re
from typing import Any

import equinox as eqx

from marin.nn.trees import is_array_or_shape, named_leaves

_MODEL_NAMES = {
    "embedding.weight_VD": "model.embed_tokens.weight",
    "final_norm.weight_D": "model.norm.weight",
    "lm_head.weight_IO": "lm_head.weight",
}
_MODULE_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_ARRAY_NAMES = {"weight_D": "weight", "weight_IO": "weight", "bias_O": "bias"}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.(\w+)")
# Tables of angles that old checkpoints hold beside the weights; they follow from the config.
_DERIVED = re.compile(r"(.*\.)?rotary_emb\.inv_freq")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a parameter stands in a checkpoint; matrices stand there with outputs first, ours with inputs first."""

    name: str
    transposed: bool


def parameters_of(model: Any) -> dict[str, Any]:
    """The arrays of a model, or the shapes that `eqx.filter_eval_shape` gives, by name, in the order of its tree."""
    return named_leaves(eqx.filter(model, is_array_or_shape))


def place_of(parameter: str) -> Place | None:
    """The place of one of our parameters, such as "blocks.0.mlp.up.weight_IO"; None if the layout has none for it."""
    if parameter in _MODEL_NAMES:
        return Place(_MODEL_NAMES[parameter], parameter.endswith("_IO"))
    match = _BLOCK.fullmatch(parameter)
    if match is None or match[2] not in _MODULE_NAMES or match[3] not in _ARRAY_NAMES:
        return None
    name = f"model.layers.{int(match[1])}.{_MODULE_NAMES[match[2]]}.{_ARRAY_NAMES[match[3]]}"
    return Place(name, match[3] == "weight_IO")


def is_derived(name: str) -> bool:
    """Whether an entry of a checkpoint holds no parameter, but what follows from its config."""
    return _DERIVED.fullmatch(name) is not None
