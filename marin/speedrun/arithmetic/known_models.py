"""Models of ours whose parameters and FLOPs follow from the settings that a results file or `run.json` states.

Nothing of a model is built for it, so that verification needs neither JAX nor a submission's code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from marin.speedrun.arithmetic import plain_gpt, plain_llama

# Of our LlamaConfig, and of the Llama configs of every era of the public contest.
_LLAMA_KEYS = frozenset({
    "activation_function", "attn_backend", "cross_entropy_block_size", "flash_attention_block_size", "gradient_checkpointing",
    "head_dim", "hidden_dim", "hybrid_norm", "initializer_range", "input_embedding_norm", "intermediate_dim", "layer_norm_epsilon",
    "max_seq_len", "num_heads", "num_kv_heads", "num_layers", "qk_norm", "reference_checkpoint", "rope", "scan_layers", "seq_len",
    "sliding_window", "tie_word_embeddings", "tokenizer", "upcast_attn", "use_attention_sink", "use_bias", "use_flash_attention",
    "use_layer_norm_weight", "use_qk_norm", "use_sliding_window",
})  # fmt: skip
_GPT_KEYS = frozenset({
    "backout", "cross_entropy_block_size", "gradient_checkpointing", "hidden_dim", "logit_softcap", "num_heads", "num_kv_heads",
    "num_layers", "query_key_scale", "rope", "seq_len", "short_window", "smear", "value_embeddings", "value_gates", "window_pattern",
})  # fmt: skip


@dataclasses.dataclass(frozen=True)
class KnownModel:
    """A model of ours by its settings.

    Args:
        keys: the names that its config may have.
        has_sizes: whether a config states all that the others ask for.
        parameters: trainable parameters, of a config and a vocabulary.
        flops_per_token: forward FLOPs, of a config, a vocabulary and a context length.
        vocabulary_of: the vocabulary that gives a config so many parameters, or None.
    """

    name: str
    model_class: str
    keys: frozenset[str]
    has_sizes: Callable[[dict[str, Any]], bool]
    parameters: Callable[[dict[str, Any], int], int]
    flops_per_token: Callable[[dict[str, Any], int, int], float]
    vocabulary_of: Callable[[dict[str, Any], int], int | None]


LLAMA = KnownModel(
    "Llama", "marin.models.llama:LlamaConfig", _LLAMA_KEYS, plain_llama.has_llama_sizes, plain_llama.llama_parameters,
    plain_llama.llama_flops_per_token, plain_llama.vocabulary_of,
)  # fmt: skip
GPT = KnownModel(
    "GPT", "marin.models.gpt:GptConfig", _GPT_KEYS, plain_gpt.has_gpt_sizes, plain_gpt.gpt_parameters,
    plain_gpt.gpt_flops_per_token, plain_gpt.vocabulary_of,
)  # fmt: skip
KNOWN_MODELS = (LLAMA, GPT)


def model_of_class(model_class: str | None) -> KnownModel | None:
    """The model whose config is of this class, such as "marin.models.gpt:GptConfig"."""
    return next((known for known in KNOWN_MODELS if known.model_class == model_class), None)


def likest_model(config: dict[str, Any]) -> KnownModel:
    """The model that a config without its class can be taken for, as far as it states the sizes of one: a GPT or else a Llama."""
    return GPT if GPT.has_sizes(config) else LLAMA
