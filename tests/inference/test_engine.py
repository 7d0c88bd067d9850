"""The engine's tokens are those that the model alone would give, however requests share its batch."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from marin.inference.engine import Engine
from marin.inference.options import SamplingOptions
from marin.models import GptConfig, LlamaConfig

CONFIG = GptConfig(seq_len=32, hidden_dim=32, num_layers=3, num_heads=4, num_kv_heads=2)  # windows of 8 keys
LLAMA = LlamaConfig(seq_len=32, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2)
CONFIGS = {
    "windows-and-groups": CONFIG,
    "full-attention": dataclasses.replace(CONFIG, window_pattern="L", num_kv_heads=None),
    "short-windows": dataclasses.replace(CONFIG, seq_len=12, window_pattern="SSL"),  # windows of 3
    "llama": LLAMA,
}
GREEDY = SamplingOptions(max_tokens=24, temperature=0.0)


def prompts(vocab_size, lengths, seed=0):
    random = np.random.default_rng(seed)
    return [tuple(random.integers(0, vocab_size - 9, length).tolist()) for length in lengths]


def without_cache(model, prompt, num_tokens, stops):
    """The likeliest continuation, from the whole context for each token."""
    padded = len(prompt) + num_tokens
    score = eqx.filter_jit(lambda m, tokens: m.activations(tokens, None)[0] @ m.lm_head_DV)
    tokens = list(prompt)
    for _ in range(num_tokens):
        row = np.zeros((1, padded), np.int32)
        row[0, : len(tokens)] = tokens
        best = int(np.argmax(np.asarray(score(model, jnp.asarray(row)))[len(tokens) - 1]))
        if best in stops:
            break
        tokens.append(best)
    return tuple(tokens[len(prompt) :])


def engine_of(model, tokenizer, **options):
    return Engine(model, tokenizer, **{"max_length": 64, "max_rows": 4} | options)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_rows", [1, 4])
def test_greedy_tokens_with_the_cache_equal_those_without(model_of, chat_tokenizer, name, max_rows):
    model = model_of(CONFIGS[name], chat_tokenizer.vocab_size)
    engine = engine_of(model, chat_tokenizer, max_rows=max_rows, tools=False)
    asked = prompts(chat_tokenizer.vocab_size, (1, 5, 21, 40, 2))
    stops = {chat_tokenizer.bos_id, chat_tokenizer.special_tokens["<|assistant_end|>"]}
    for prompt, (sample,) in zip(asked, engine.generate(asked, GREEDY), strict=True):
        assert sample.tokens == without_cache(model, prompt, 24, stops)
        assert sample.finish_reason == ("length" if len(sample.tokens) == 24 else "stop")
        assert sample.mask == (1,) * len(sample.tokens) and max(sample.logprobs, default=0) <= 0
