"""The parameters and FLOPs of a plain Llama by its sizes alone, as results files state them."""

from typing import Any

from marin.speedrun.arithmetic.findings import whole_number

_LLAMA_KEYS = ("hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads")


def has_llama_sizes(config: dict[str, Any]) -> bool:
    """Whether a model config states all sizes of a Llama, and they fit together."""
    sizes = [whole_number(config, key) for key in _LLAMA_KEYS]
    return None not in sizes and config["hidden_dim"] % config["num_heads"] == 0


def llama_parameters(config: dict[str, Any], vocab_size: int) -> int:
    """Trainable parameters of a Llama: SwiGLU, RMSNorm, and the options that `marin.models.LlamaConfig` has."""
    hidden, intermediate, layers, heads, kv_heads = (config[key] for key in _LLAMA_KEYS)
    head_dim = whole_number(config, "head_dim") or hidden // heads
    queries, keys_values = heads * head_dim, kv_heads * head_dim
    scale = hidden if config.get("use_layer_norm_weight", True) else 0
    block = 2 * hidden * (queries + keys_values) + 3 * hidden * intermediate + 2 * scale
    qk_norm = config.get("qk_norm")
    if qk_norm and (not isinstance(qk_norm, dict) or qk_norm.get("use_weight", True)):
        block += 2 * head_dim
    if config.get("use_attention_sink"):
        block += heads
    if config.get("use_bias"):
        block += queries + 2 * keys_values + 2 * intermediate + 2 * hidden
    ends = scale * (2 if config.get("input_embedding_norm") else 1)
    tables = 1 if config.get("tie_word_embeddings") else 2
    return int(layers * block + ends + tables * vocab_size * hidden)


def llama_flops_per_token(config: dict[str, Any], vocab_size: int, context_length: int) -> float:
    """Forward FLOPs of one token of a plain Llama, attention in full, as the public contest counts them."""
    hidden, intermediate, layers, heads, kv_heads = (config[key] for key in _LLAMA_KEYS)
    head_dim = hidden / heads
    attention = 4 * context_length * heads * head_dim + 3 * context_length * heads
    projections = 2 * hidden * head_dim * (heads + 2 * kv_heads) + 2 * hidden * hidden
    return float(layers * (6 * hidden * intermediate + projections + attention) + 2 * hidden * vocab_size)


def vocabulary_of(config: dict[str, Any], num_parameters: int) -> int | None:
    """The vocabulary with which a Llama has so many parameters, or None where it has them with none."""
    tables = 1 if config.get("tie_word_embeddings") else 2
    vocab_size, rest = divmod(num_parameters - llama_parameters(config, 0), tables * config["hidden_dim"])
    return vocab_size if rest == 0 and vocab_size > 0 else None
