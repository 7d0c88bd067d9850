"""Sampling by running the whole context for every token: simple, exact, and fast enough for a look at a small model."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from marin.data.tokenizer import Tokenizer
from marin.inference.text_stream import text_after
from marin.nn.loss import softcapped
from marin.nn.precision import Precision


def sample_text(
    model: Any,
    tokenizer: Tokenizer,
    *,
    context_length: int,
    precision: Precision,
    prompt: str = "",
    num_tokens: int = 128,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
) -> str:
    """A document as the model continues it, without the prompt; it ends early where the model ends the document.

    Args:
        temperature: 0 takes the likeliest token each time.
        top_k: sample among this many likeliest tokens.
    """
    arrays, static = eqx.partition(precision.cast(model), eqx.is_array)
    next_token = _next_token(static, min(top_k, tokenizer.vocab_size), tokenizer.vocab_size)
    ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    start = len(ids)
    key = jax.random.key(seed)
    for step in range(num_tokens):
        window = ids[-context_length:]
        padded = np.zeros((1, context_length), np.int32)
        padded[0, : len(window)] = window
        token = int(next_token(arrays, padded, len(window) - 1, temperature, jax.random.fold_in(key, step)))
        if token in tokenizer.document_ends:
            break
        ids.append(token)
    return text_after(ids[:start], ids[start:], tokenizer)


@functools.lru_cache(maxsize=4)
def _next_token(static: Any, top_k: int, vocab_size: int) -> Any:
    @jax.jit
    def sample(arrays: Any, tokens_BT: Any, position: Any, temperature: Any, key: Any) -> Any:
        model = eqx.combine(arrays, static)
        x_BTD = model.activations(tokens_BT, None)
        x_D = jax.lax.dynamic_index_in_dim(x_BTD[0], position, keepdims=False)
        logits = softcapped((x_D @ model.lm_head_DV).astype(jnp.float32)[:vocab_size], model.logit_softcap)
        best, indices = jax.lax.top_k(logits, top_k)
        choice = jax.random.categorical(key, best / jnp.maximum(temperature, 1e-6))
        return jnp.where(temperature > 0, indices[choice], indices[0])

    return sample
