"""`config.json` of Llama and Qwen3 checkpoints from our config, and our config from it.

Qwen3 is Llama with normalized queries and keys. What one side says and the other cannot is refused by the name of its
field: a checkpoint that loads elsewhere and computes something else is worse than none.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marin.errors import CheckpointError, ConfigError
from marin.models.hf_values import HfValues
from marin.models.llama import LlamaConfig
from marin.nn import Llama3RotaryConfig, RmsNormConfig, RotaryConfig

CANNOT = "such a model cannot be exported"
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_ACTIVATIONS = {"swish": "silu", "gelu_pytorch_tanh": "gelu_new"}  # the other names are ours too
_BIASES = "this engine has biases everywhere or nowhere"
# Switches of ours that the layout has no word for.
_MUST_BE_OFF = ("input_embedding_norm", "use_attention_sink")
_CONFIG_FIELDS = (
    *("seq_len", "hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim"),
    *("activation_function", "use_bias", "use_layer_norm_weight", "layer_norm_epsilon", "tie_word_embeddings"),
    *("rope", "qk_norm", "initializer_range", *_MUST_BE_OFF),
)


# --- ours to theirs -------------------------------------------------------------------------------------------------


def to_hf_config(config: Any, vocab_size: int) -> dict[str, Any]:
    """`config.json` of a model that `config` describes, a `LlamaConfig` or one with the same fields.

    Positions are given in the keys of transformers 4 (`rope_theta`, `rope_scaling`), which 5 and other programs read too.

    Raises:
        ConfigError: naming the first field that is missing, or whose value the layout cannot say.
    """
    for field in _CONFIG_FIELDS:
        if not hasattr(config, field):
            raise ConfigError(
                f"{type(config).__name__} has no field `{field}`, which Hugging Face's Llama layout needs: {CANNOT}"
            )
    _refuse_unsayable(config)
    model_type = "llama" if config.qk_norm is None else "qwen3"
    described = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.intermediate_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim or config.hidden_dim // config.num_heads,
        "hidden_act": config.activation_function,
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.layer_norm_epsilon,
        "rope_theta": float(config.rope.theta),
        "rope_scaling": _rope_scaling(config.rope),
        "attention_bias": config.use_bias,
        "attention_dropout": 0.0,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "use_cache": True,
    }
    if model_type == "llama":
        return described | {"mlp_bias": config.use_bias, "pretraining_tp": 1}
    return described | {"use_sliding_window": False, "sliding_window": None}


def config_from_json(described: Mapping[str, Any]) -> LlamaConfig:
    """The config that `run.json` holds as plain values, if it has LlamaConfig's fields and no others.

    Raises:
        ConfigError: naming the first field that is missing or that LlamaConfig does not have.
    """
    known = {field.name for field in dataclasses.fields(LlamaConfig)}
    for field in described:
        if field not in known:
            raise ConfigError(f"the model's config has a field `{field}`, which Llama has not: {CANNOT}")
    for field in _CONFIG_FIELDS:
        if field not in described:
            raise ConfigError(f"the model's config has no field `{field}`, which Llama has: {CANNOT}")
    values = {field: described[field] for field in _CONFIG_FIELDS}
    rope_kind = Llama3RotaryConfig if "low_freq_factor" in values["rope"] else RotaryConfig
    values["rope"] = rope_kind(**values["rope"])
    values["qk_norm"] = None if values["qk_norm"] is None else RmsNormConfig(**values["qk_norm"])
    return LlamaConfig(**values)


def llama_config_of(config: Any) -> LlamaConfig:
    """The `LlamaConfig` that says what `config`, one with the same fields, says."""
    return LlamaConfig(**{field: getattr(config, field) for field in _CONFIG_FIELDS})


def _refuse_unsayable(config: Any) -> None:
    def refuse(field: str, why: str) -> None:
        raise ConfigError(
            f"config field `{field}` is {getattr(config, field)!r}, and Hugging Face's Llama and Qwen3 layouts {why}: {CANNOT}"
        )

    for field in _MUST_BE_OFF:
        if getattr(config, field):
            refuse(field, "have no place for it")
    if not config.use_layer_norm_weight:
        refuse("use_layer_norm_weight", "need the weights of normalizations")
    if type(config.rope) not in (RotaryConfig, Llama3RotaryConfig):
        refuse("rope", "know RotaryConfig and Llama3RotaryConfig")
    if config.qk_norm is None:
        return
    if not config.qk_norm.use_weight or config.qk_norm.epsilon != config.layer_norm_epsilon:
        refuse(
            "qk_norm", f"need its weight, and one epsilon for all (`layer_norm_epsilon` is {config.layer_norm_epsilon})"
        )
    if config.use_bias:
        refuse("use_bias", "have no biases in the feed-forward where queries and keys are normalized (`qk_norm`)")


def _rope_scaling(rope: RotaryConfig) -> dict[str, Any] | None:
    if isinstance(rope, Llama3RotaryConfig):
        return {
            "rope_type": "llama3",
            "factor": float(rope.factor),
            "low_freq_factor": float(rope.low_freq_factor),
            "high_freq_factor": float(rope.high_freq_factor),
            "original_max_position_embeddings": rope.original_max_position_embeddings,
        }
    return None if rope.factor == 1 else {"rope_type": "linear", "factor": float(rope.factor)}


# --- theirs to ours -------------------------------------------------------------------------------------------------


def from_hf_config(hf: Mapping[str, Any], where: str) -> LlamaConfig:
    """The config of the model that a `config.json` describes, in the keys of transformers 4 or 5.

    Args:
        where: the file, for messages.
    Raises:
        CheckpointError: naming the key that is missing, or whose value this engine cannot compute.
    """
    values = HfValues(hf, where)
    model_type = hf.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise CheckpointError(f"{where} says `model_type` {model_type!r}: this engine reads {', '.join(ARCHITECTURES)}")

    kinds = hf.get("layer_types") or []
    if values.flag("use_sliding_window"):
        values.refuse("use_sliding_window", "attention must be full in all layers")
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        values.refuse("layer_types", "attention must be full in all layers")
    use_bias = values.flag("attention_bias")
    if model_type == "llama" and values.flag("mlp_bias") != use_bias:
        values.refuse("mlp_bias" if "mlp_bias" in hf else "attention_bias", _BIASES)
    if model_type == "qwen3" and use_bias:
        values.refuse("attention_bias", _BIASES)
    epsilon = values.number("rms_norm_eps", 1e-6)
    activation = values.text("hidden_act", "silu")
    # transformers' Qwen3 has defaults of its own for these two, its Llama derives them.
    is_derived = {key: model_type == "llama" and hf.get(key) is None for key in ("num_key_value_heads", "head_dim")}
    num_heads = values.whole("num_attention_heads")
    try:
        return LlamaConfig(
            seq_len=values.whole("max_position_embeddings"),
            hidden_dim=values.whole("hidden_size"),
            intermediate_dim=values.whole("intermediate_size"),
            num_layers=values.whole("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads if is_derived["num_key_value_heads"] else values.whole("num_key_value_heads"),
            head_dim=None if is_derived["head_dim"] else values.whole("head_dim"),
            activation_function=_ACTIVATIONS.get(activation, activation),
            use_bias=use_bias,
            layer_norm_epsilon=epsilon,
            tie_word_embeddings=values.flag("tie_word_embeddings"),
            rope=_rope(values),
            qk_norm=RmsNormConfig(epsilon) if model_type == "qwen3" else None,
            initializer_range=values.number("initializer_range", 0.02),
        )
    except ConfigError as error:
        raise CheckpointError(f"{where} describes a model that this engine cannot build: {error}") from None


def _rope(values: HfValues) -> RotaryConfig:
    # transformers 5 has all in `rope_parameters`, 4 has `rope_theta` beside `rope_scaling`.
    older, newer = values.part("rope_scaling"), values.part("rope_parameters")
    scaling = newer if newer.values else older
    theta = (scaling if "rope_theta" in scaling.values else values).number("rope_theta", 10000.0)
    kind = scaling.values.get("rope_type", scaling.values.get("type"))
    if kind == "default" or (kind is None and "factor" not in scaling.values):
        return RotaryConfig(theta=theta)
    if kind == "linear":
        return RotaryConfig(theta=theta, factor=scaling.number("factor"))
    if kind == "llama3":
        return Llama3RotaryConfig(
            theta=theta,
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            original_max_position_embeddings=scaling.whole("original_max_position_embeddings"),
        )
    raise CheckpointError(
        f"{values.where} says `rope_type` of `{scaling.inside}` {kind!r}: this engine has default, linear and llama3"
    )


def differences(config: Any, hf: Mapping[str, Any], where: str) -> list[str]:
    """What `config` says otherwise than a checkpoint's `config.json`, of all that shapes do not show; one line each.

    Fields that `config` lacks are not compared: a model of another kind differs in its parameters too, which are named.
    """
    theirs = from_hf_config(hf, where)
    fields = ("rope", "layer_norm_epsilon", "activation_function", "qk_norm", "num_heads")
    return [
        f"`{field}` is {getattr(config, field)!r} here and {getattr(theirs, field)!r} in {where}"
        for field in fields
        if hasattr(config, field) and getattr(config, field) != getattr(theirs, field)
    ]
