"""What an encoder is called in Hugging Face's layouts: `config.json` of BERT, RoBERTa and GTE, and the names of their weights.

An encoder that a layout cannot say, and a config that this encoder cannot build, are refused by field, never approximated.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from marin.errors import CheckpointError, ConfigError
from marin.models.encoder import EncoderModelConfig
from marin.models.hf_values import HfValues
from marin.nn import ACTIVATIONS, NtkRotaryConfig, RotaryConfig

_BERT_TYPES = ("bert", "roberta", "xlm-roberta", "camembert")
GTE = "new"
# transformers' names of the same functions.
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
# What a checkpoint may hold beside the encoder: heads, and what follows from the config.
_BESIDE = re.compile(
    r".*(pooler|cls|classifier|lm_head|qa_outputs)\..*|.*(position_ids|token_type_ids|inv_freq)|.*_cached"
)

_EMBEDDINGS = {
    "embedding.weight_VD": "embeddings.word_embeddings.weight",
    "position_embedding.weight_VD": "embeddings.position_embeddings.weight",
    "type_embedding.weight_VD": "embeddings.token_type_embeddings.weight",
    "embedding_norm.weight_D": "embeddings.LayerNorm.weight",
    "embedding_norm.bias_D": "embeddings.LayerNorm.bias",
}
# Ours -> (theirs, which part of how many of their rows).
_MODULES: dict[str, dict[str, tuple[tuple[str, ...], tuple[int, int]]]] = {
    "bert": {
        "attention.qkv": (("attention.self.query", "attention.self.key", "attention.self.value"), (0, 1)),
        "attention.output": (("attention.output.dense",), (0, 1)),
        "attention_norm": (("attention.output.LayerNorm",), (0, 1)),
        "mlp.up": (("intermediate.dense",), (0, 1)),
        "mlp.down": (("output.dense",), (0, 1)),
        "mlp_norm": (("output.LayerNorm",), (0, 1)),
    },
    GTE: {
        "attention.qkv": (("attention.qkv_proj",), (0, 1)),
        "attention.output": (("attention.o_proj",), (0, 1)),
        "attention_norm": (("attn_ln",), (0, 1)),
        "mlp.up": (("mlp.up_gate_proj",), (0, 2)),
        "mlp.gate": (("mlp.up_gate_proj",), (1, 2)),
        "mlp.down": (("mlp.down_proj",), (0, 1)),
        "mlp_norm": (("mlp_ln",), (0, 1)),
    },
}
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)\.(\w+)")
_ARRAYS = {"weight_IO": "weight", "weight_D": "weight", "bias_O": "bias", "bias_D": "bias"}


@dataclasses.dataclass(frozen=True)
class EncoderPlace:
    """Where a parameter stands: the rows of these arrays one after the other, of which it is one of some equal parts.

    Matrices stand there with outputs first, ours with inputs first.
    """

    names: tuple[str, ...]
    transposed: bool
    part: tuple[int, int] = (0, 1)


def place_of(parameter: str, kind: str) -> EncoderPlace:
    """The place of one of our parameters, such as "blocks.0.mlp.up.weight_IO", in the layout of `kind`."""
    if parameter in _EMBEDDINGS:
        return EncoderPlace((_EMBEDDINGS[parameter],), False)
    match = _BLOCK.fullmatch(parameter)
    assert match is not None, parameter
    modules, part = _MODULES[kind][match[2]]
    names = tuple(f"encoder.layer.{match[1]}.{module}.{_ARRAYS[match[3]]}" for module in modules)
    return EncoderPlace(names, match[3] == "weight_IO", part)


def is_beside(name: str) -> bool:
    """Whether an entry of a checkpoint is no part of the encoder: a head, or what follows from the config."""
    return _BESIDE.fullmatch(name) is not None


def layout_of(config: EncoderModelConfig) -> str:
    """The layout that can say an encoder: that of BERT, or that of GTE."""
    if config.gated:
        return GTE
    if config.rope is not None:
        raise ConfigError("an encoder with `rope` and without `gated` has no published layout: set both, or neither")
    return "bert"


def from_hf_encoder_config(hf: Mapping[str, Any], where: str) -> EncoderModelConfig:
    """The config that a folder's `config.json` describes.

    Raises:
        CheckpointError: it is of another architecture, or asks for what this encoder does not do.
    """
    values = HfValues(hf, where)
    kind = hf.get("model_type")
    if not isinstance(kind, str) or kind not in (*_BERT_TYPES, GTE):
        raise CheckpointError(
            f"{where} is of a `{kind}` model: encoders of {', '.join((*_BERT_TYPES, GTE + ' (GTE)'))} can be read"
        )
    is_gte = kind == GTE
    activation = values.text("hidden_act", "gelu")
    activation = _ACTIVATIONS.get(activation, activation)
    if activation not in ACTIVATIONS:
        values.refuse("hidden_act", f"expected one of {', '.join(ACTIVATIONS)}")
    expected: dict[str, tuple[Any, ...]] = {"is_decoder": (None, False), "add_cross_attention": (None, False)}
    if is_gte:
        expected |= {
            "layer_norm_type": (None, "layer_norm"),
            "logn_attention_scale": (None, False),
            "pack_qkv": (None, True),
        }
    else:
        expected |= {"position_embedding_type": (None, "absolute"), "embedding_size": (None, hf.get("hidden_size"))}
    for field, allowed in expected.items():
        if hf.get(field) not in allowed:
            values.refuse(field, f"this encoder does {allowed[-1]!r} only")
    rotates = is_gte and hf.get("position_embedding_type", "rope") == "rope"
    first = 0 if kind in ("bert", GTE) else values.whole("pad_token_id", 1, least=0) + 1
    try:
        return EncoderModelConfig(
            max_seq_len=values.whole("max_position_embeddings") - first,
            hidden_dim=values.whole("hidden_size"),
            intermediate_dim=values.whole("intermediate_size"),
            num_layers=values.whole("num_hidden_layers"),
            num_heads=values.whole("num_attention_heads"),
            activation=activation,
            layer_norm_epsilon=values.number("layer_norm_eps", 1e-12),
            rope=_rope_of(values) if rotates else None,
            gated=is_gte,
            num_token_types=values.whole("type_vocab_size", 0 if is_gte else 2, least=0),
            first_position=first,
            initializer_range=values.number("initializer_range", 0.02),
        )
    except ConfigError as error:
        raise CheckpointError(f"{where} describes an encoder that cannot be built: {error}") from None


def to_hf_encoder_config(config: EncoderModelConfig, vocab_size: int, pad_id: int) -> dict[str, Any]:
    """The `config.json` of an encoder, in the layout that can say it.

    Raises:
        ConfigError: none can.
    """
    kind = layout_of(config)
    described: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "hidden_act": config.activation,
        "max_position_embeddings": config.max_seq_len + config.first_position,
        "type_vocab_size": config.num_token_types,
        "layer_norm_eps": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": pad_id,
        "torch_dtype": "float32",
    }
    if kind == "bert":
        if config.first_position:
            # There positions count from behind the padding's id, whatever id the tokenizer pads with.
            behind = {"pad_token_id": config.first_position - 1}
            return {"architectures": ["RobertaModel"], "model_type": "roberta", **described, **behind}
        return {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "position_embedding_type": "absolute",
            **described,
        }
    positions: dict[str, Any] = {"position_embedding_type": "absolute" if config.rope is None else "rope"}
    if config.rope is not None:
        positions |= {"rope_theta": config.rope.theta, "rope_scaling": _rope_scaling(config.rope)}
    fixed = {"layer_norm_type": "layer_norm", "pack_qkv": True, "logn_attention_scale": False}
    return {"architectures": ["NewModel"], "model_type": GTE, **positions, **fixed, **described}


def _rope_of(values: HfValues) -> RotaryConfig:
    theta, scaling = values.number("rope_theta", 10000), values.part("rope_scaling")
    if not scaling.values:
        return RotaryConfig(theta)
    kind = scaling.values.get("type", scaling.values.get("rope_type"))
    if kind != "ntk" or scaling.values.get("mixed_b") is not None:
        values.refuse("rope_scaling", "expected none, or type 'ntk' with a factor")
    return NtkRotaryConfig(theta, scaling.number("factor"))


def _rope_scaling(rope: RotaryConfig) -> dict[str, Any] | None:
    if type(rope) is NtkRotaryConfig:
        return {"type": "ntk", "factor": rope.factor}
    if type(rope) is RotaryConfig and rope.factor == 1.0:
        return None
    raise ConfigError(f"`rope` is {rope}: the layout of GTE knows RotaryConfig without a factor, and NtkRotaryConfig")
