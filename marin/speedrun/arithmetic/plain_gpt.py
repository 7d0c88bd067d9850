"""The parameters and FLOPs of `marin.models.gpt.Gpt` by its settings alone, as results files state them."""

from typing import Any

from marin.speedrun.arithmetic.findings import whole_number

_SWITCHES = ("value_embeddings", "value_gates", "smear", "backout")
# What the gates read of the stream, and what the vocabulary is padded to a multiple of (`marin.models.gpt`).
_VALUE_GATE_INPUTS, _SMEAR_GATE_INPUTS = 12, 24
_VOCABULARY_MULTIPLE = 64


def has_gpt_sizes(config: dict[str, Any]) -> bool:
    """Whether a model config states all of a GPT that its parameters and FLOPs follow from, and it fits together."""
    width, layers, heads, context = (
        whole_number(config, key) for key in ("hidden_dim", "num_layers", "num_heads", "seq_len")
    )
    if width is None or layers is None or heads is None or context is None or width % heads:
        return False
    if any(
        config.get(key) is not None and whole_number(config, key) is None for key in ("num_kv_heads", "short_window")
    ):
        return False
    pattern = config.get("window_pattern")
    if not isinstance(pattern, str) or not pattern or set(pattern) - {"S", "L"}:
        return False
    return heads % _kv_heads(config) == 0 and all(isinstance(config.get(key), bool) for key in _SWITCHES)


def gpt_parameters(config: dict[str, Any], vocab_size: int) -> int:
    """Trainable parameters of a GPT, with the rows that pad its vocabulary."""
    layers = config["num_layers"]
    scalars = 2 * layers + int(config["backout"]) + int(config["smear"])
    rows = config["hidden_dim"] + _num_value_embeddings(config) * _kv_width(config)
    return int(_product_weights(config, vocab_size) + scalars + _padded(vocab_size) * rows)


def gpt_flops_per_token(config: dict[str, Any], vocab_size: int, context_length: int) -> float:
    """Forward FLOPs of one token: 2 for each weight of a matrix, and attention in full over the window of each layer."""
    layers, pattern = config["num_layers"], config["window_pattern"]
    # The last layer sees everything, whatever its letter says.
    rounds, rest = divmod(layers - 1, len(pattern))
    num_short = rounds * pattern.count("S") + pattern[:rest].count("S")
    short = min(whole_number(config, "short_window") or max(1, config["seq_len"] // 4), context_length)
    spans = num_short * short + (layers - num_short) * context_length
    return float(2 * _product_weights(config, vocab_size) + 4 * config["hidden_dim"] * spans)


def vocabulary_of(config: dict[str, Any], num_parameters: int) -> int | None:
    """The vocabulary, as it is padded, with which a GPT has so many parameters, or None where it has them with none."""
    each = gpt_parameters(config, _VOCABULARY_MULTIPLE) - gpt_parameters(config, 0)
    multiples, rest = divmod(num_parameters - gpt_parameters(config, 0), each)
    return multiples * _VOCABULARY_MULTIPLE if rest == 0 and multiples > 0 else None


def _product_weights(config: dict[str, Any], vocab_size: int) -> int:
    """Weights that a token is multiplied with: of blocks, gates and the head."""
    width = config["hidden_dim"]
    blocks = config["num_layers"] * (2 * width * (width + _kv_width(config)) + 8 * width * width)
    gates = _num_value_embeddings(config) * _VALUE_GATE_INPUTS * _kv_heads(config) if config["value_gates"] else 0
    smear = _SMEAR_GATE_INPUTS if config["smear"] else 0
    return int(blocks + gates + smear + width * _padded(vocab_size))


def _num_value_embeddings(config: dict[str, Any]) -> int:
    """Every other layer has one, the last among them."""
    return (config["num_layers"] + 1) // 2 if config["value_embeddings"] else 0


def _kv_heads(config: dict[str, Any]) -> int:
    return whole_number(config, "num_kv_heads", "num_heads") or 1


def _kv_width(config: dict[str, Any]) -> int:
    return int(_kv_heads(config) * (config["hidden_dim"] // config["num_heads"]))


def _padded(vocab_size: int) -> int:
    return -(-vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
