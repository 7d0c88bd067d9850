"""What a block recomputes changes memory and FLOPs, and no gradient."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.hackable_transformer_starter_template import HackableTransformerConfig
from marin.errors import ConfigError
from marin.models import LlamaConfig

LLAMA = LlamaConfig(
    seq_len=16,
    hidden_dim=32,
    intermediate_dim=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    gradient_checkpointing=False,
)

TEMPLATE = HackableTransformerConfig(
    **{
        name: getattr(LLAMA, name)
        for name in ("seq_len", "hidden_dim", "intermediate_dim", "num_layers", "num_heads", "num_kv_heads")
    }
)


def gradient_of(config):
    model = config.build(64, key=jax.random.key(0))
    tokens = jnp.arange(2 * config.max_seq_len, dtype=jnp.int32).reshape(2, -1) % 64

    def loss(model):
        return jnp.sum(jnp.square(model.activations(tokens, None)))

    return model, loss


def products_of(config) -> int:
    """Matrix products in the gradient, by XLA's view of the program before optimization."""
    model, loss = gradient_of(config)
    return jax.jit(lambda model: eqx.filter_grad(loss)(model)).lower(model).as_text().count("stablehlo.dot_general")


@pytest.mark.parametrize("choice", [True, "products"])
def test_gradient_is_the_same_whatever_is_recomputed(choice):
    model, loss = gradient_of(LLAMA)
    expected = eqx.filter_jit(eqx.filter_grad(loss))(model)
    other, loss = gradient_of(dataclasses.replace(LLAMA, gradient_checkpointing=choice))
    found = eqx.filter_jit(eqx.filter_grad(loss))(other)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [LLAMA, TEMPLATE], ids=["llama", "template"])
def test_recomputing_takes_more_products_the_less_is_kept(config):
    none, some, whole = (
        products_of(dataclasses.replace(config, gradient_checkpointing=choice)) for choice in (False, "products", True)
    )
    assert none < some < whole, (none, some, whole)


@pytest.mark.parametrize("choice", ["full", "", None, 1, 0, "dots"])
def test_choice_that_is_not_there_is_refused(choice):
    with pytest.raises(ConfigError, match="`gradient_checkpointing` is .*: use True"):
        dataclasses.replace(LLAMA, gradient_checkpointing=choice)
