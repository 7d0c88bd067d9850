"""Activations at a few positions are those of the whole rows, and the last layer computes no others."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chat_server import model_of

from marin.models import GptConfig, LlamaConfig
from marin.models.at_positions import activations_at
from marin.models.gpt import Gpt
from marin.nn import RmsNormConfig

VOCAB = 61
GPT = GptConfig(seq_len=16, hidden_dim=32, num_layers=3, num_heads=4)
LLAMA = LlamaConfig(
    seq_len=16, hidden_dim=32, intermediate_dim=48, num_layers=2, num_heads=4, num_kv_heads=2, qk_norm=RmsNormConfig()
)
CONFIGS = {
    "gpt": GPT,
    "gpt-one-layer": dataclasses.replace(GPT, num_layers=1),
    "gpt-two-layers-grouped": dataclasses.replace(GPT, num_layers=2, num_kv_heads=2),
    "gpt-plain": dataclasses.replace(GPT, smear=False, backout=False, value_embeddings=False),
    "llama": LLAMA,
    "llama-biases-sink": dataclasses.replace(
        LLAMA,
        use_bias=True,
        use_attention_sink=True,
        upcast_attn=True,
        tie_word_embeddings=True,
        input_embedding_norm=True,
    ),
}
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (4, 24)).astype(np.int32)
ROWS = np.array([0, 0, 3, 2, 1, 3, 0, 0], np.int32)  # in no order, and some twice
POSITIONS = np.array([0, 23, 5, 11, 22, 6, 23, 0], np.int32)


def _whole(model) -> np.ndarray:
    return np.asarray(eqx.filter_jit(lambda m, tokens: m.activations(tokens, None))(model, jnp.asarray(TOKENS)))


@pytest.mark.parametrize("name", CONFIGS)
def test_activations_at_positions_are_those_of_the_whole_rows(name):
    model = model_of(CONFIGS[name], VOCAB)
    whole = _whole(model)
    found = eqx.filter_jit(activations_at)(model, TOKENS, ROWS, POSITIONS)
    np.testing.assert_allclose(found, whole[ROWS, POSITIONS], rtol=2e-4, atol=2e-5)


def test_a_window_in_the_last_layer_is_kept():
    model = model_of(GPT, VOCAB)
    model = eqx.tree_at(
        lambda m: m.blocks[2].attention, model, dataclasses.replace(model.blocks[2].attention, window=3)
    )
    whole = _whole(model)
    np.testing.assert_allclose(
        eqx.filter_jit(activations_at)(model, TOKENS, ROWS, POSITIONS), whole[ROWS, POSITIONS], rtol=2e-4, atol=2e-5
    )


def _flops(model, function) -> float:
    compiled = (
        jax.jit(lambda tokens, rows, at: function(model, tokens, rows, at)).lower(TOKENS, ROWS, POSITIONS).compile()
    )
    return float(compiled.cost_analysis()["flops"])


def test_the_last_layer_computes_no_more_than_is_asked_for():
    model = model_of(GPT, VOCAB)
    whole = _flops(model, lambda m, tokens, rows, at: m.activations(tokens, None)[rows, at])
    products = 2 * TOKENS.size * 10 * 32**2  # of ten of the last layer's twelve squares: all but keys and values
    assert _flops(model, activations_at) < whole - 0.9 * products * (1 - len(ROWS) / TOKENS.size)


def test_another_model_and_many_positions_are_computed_whole():
    class Changed(Gpt):
        def ended(self, streams):
            return super().ended(streams) + 1.0

    model = model_of(GPT, VOCAB)
    changed = Changed(**{field.name: getattr(model, field.name) for field in dataclasses.fields(model)})
    row, at = (part.ravel() for part in np.indices(TOKENS.shape, np.int32))
    whole = np.asarray(model.activations(jnp.asarray(TOKENS), None))
    np.testing.assert_array_equal(activations_at(model, TOKENS, row, at), whole[row, at])
    np.testing.assert_array_equal(activations_at(changed, TOKENS, ROWS, POSITIONS), whole[ROWS, POSITIONS] + 1.0)
