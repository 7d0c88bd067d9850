"""The GPT of the contest: its counts are the published ones, it is causal and keeps to documents, and its ideas do something."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.models import GptConfig, LmConfig, LmModel, count_parameters
from marin.nn import NtkRotaryConfig

TINY = GptConfig(seq_len=32, hidden_dim=32, num_layers=4, num_heads=2)
VOCAB = 100
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 32)).astype(np.int32)


def _model(config: GptConfig = TINY):
    """A model whose matrices are not zero, as they are at the start for some."""
    model = config.build(VOCAB, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    draw = np.random.default_rng(1)  # NumPy's, as JAX compiles a program for each shape
    noise = [np.float32(0.1) * draw.standard_normal(leaf.shape, np.float32) for leaf in leaves]
    moved = [jnp.asarray(np.asarray(leaf) + each) for leaf, each in zip(leaves, noise, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), model)


@pytest.mark.parametrize(
    ("depth", "total", "scaling", "flops"),
    [(6, 73.5e6, 23.2e6, 1.68e8), (12, 286e6, 110e6, 7.60e8), (20, 897e6, 435e6, 2.89e9), (26, 1682e6, 918e6, 5.99e9)],
)
def test_gpt_has_the_published_parameters_and_flops_of_its_depth(depth, total, scaling, flops):
    # Section 2 of the reference: width 64 a layer, heads of 128, vocabulary 32,768, T = 2,048.
    config = GptConfig(seq_len=2048, hidden_dim=64 * depth, num_layers=depth, num_heads=depth // 2)
    shapes = eqx.filter_eval_shape(lambda: config.build(32768, key=jax.random.key(0)))
    assert count_parameters(shapes) == config.total_trainable_params(32768) == pytest.approx(total, rel=5e-3)
    assert count_parameters(shapes.blocks) + count_parameters(shapes.lm_head) == pytest.approx(scaling, rel=5e-3)
    assert 3 * config.flops_per_token(32768, 2048) == pytest.approx(flops, rel=5e-3)


def test_gpt_keeps_the_protocols():
    assert isinstance(TINY, LmConfig)
    assert isinstance(_model(), LmModel)


def test_gpt_head_has_the_vocabulary_though_its_tables_are_padded():
    model = TINY.build(VOCAB, key=jax.random.key(0))
    assert model.embedding.weight_VD.shape == (128, 32)
    assert model.lm_head_DV.shape == (32, VOCAB)


@pytest.mark.parametrize("window_pattern", ["L", "SSSL"])
def test_gpt_predictions_do_not_depend_on_later_tokens(window_pattern):
    model = _model(dataclasses.replace(TINY, window_pattern=window_pattern))
    changed = TOKENS.copy()
    changed[:, 20:] = (changed[:, 20:] + 1) % VOCAB
    one, other = model.activations(TOKENS, None), model.activations(changed, None)
    np.testing.assert_array_equal(one[:, :20], other[:, :20])
    assert not np.allclose(one[:, 20:], other[:, 20:])


def test_gpt_documents_of_a_row_do_not_see_each_other():
    model = _model()
    segments = np.repeat(np.array([[0] * 12 + [1] * 20], np.int32), 2, axis=0)
    changed = TOKENS.copy()
    changed[:, :12] = (changed[:, :12] + 1) % VOCAB
    one, other = model.activations(TOKENS, segments), model.activations(changed, segments)
    np.testing.assert_allclose(one[:, 12:], other[:, 12:], atol=1e-5)


def test_gpt_window_limits_what_a_layer_sees():
    assert [TINY.window(layer) for layer in range(4)] == [8, 8, 8, None]
    assert dataclasses.replace(TINY, num_layers=5).window(3) is None
    assert dataclasses.replace(TINY, num_layers=5, window_pattern="S").window(4) is None


def test_gpt_value_embeddings_are_on_every_other_layer_and_the_last():
    assert [TINY.has_value_embedding(layer) for layer in range(4)] == [False, True, False, True]
    assert [dataclasses.replace(TINY, num_layers=3).has_value_embedding(layer) for layer in range(3)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("idea", ["value_embeddings", "value_gates", "smear", "backout"])
def test_gpt_idea_turned_off_leaves_its_parameters_out_and_changes_the_model(idea):
    without = dataclasses.replace(TINY, **{idea: False})
    assert without.total_trainable_params(VOCAB) < TINY.total_trainable_params(VOCAB)
    assert not np.allclose(_model().activations(TOKENS, None), _model(without).activations(TOKENS, None))


def test_gpt_every_parameter_has_a_gradient():
    model = _model()

    def loss(params):
        x_BTD = eqx.combine(params, model).activations(TOKENS, None)
        return jnp.sum(jnp.sin(x_BTD @ eqx.combine(params, model).lm_head_DV))

    grads = jax.grad(loss)(eqx.filter(model, eqx.is_array))
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        assert float(jnp.max(jnp.abs(leaf))) > 0, jax.tree_util.keystr(path)


def test_gpt_checkpointed_blocks_have_the_same_gradients():
    plain, again = _model(), _model(dataclasses.replace(TINY, gradient_checkpointing=True))

    def grads(model):
        params, static = eqx.partition(model, eqx.is_array)
        return jax.grad(lambda p: jnp.sum(jnp.sin(eqx.combine(p, static).activations(TOKENS, None))))(params)

    for one, other in zip(jax.tree.leaves(grads(plain)), jax.tree.leaves(grads(again)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "`num_layers`"),
        ({"num_heads": 3}, "even whole number"),
        ({"num_kv_heads": 4}, "multiple of `num_kv_heads`"),
        ({"window_pattern": "SX"}, "letters S and L"),
        ({"short_window": 0}, "`short_window` is 0"),
        ({"short_window": 2.5}, "`short_window` is 2.5"),
        ({"num_kv_heads": 0}, "`num_kv_heads` is 0"),
        ({"num_kv_heads": -2}, "`num_kv_heads` is -2"),
        ({"cross_entropy_block_size": 0}, "`cross_entropy_block_size` is 0"),
        ({"rope": NtkRotaryConfig(factor=2.0)}, "`rope` is NtkRotaryConfig"),
        ({"rope": 10_000}, "use RotaryConfig"),
        ({"logit_softcap": 0.0}, "`logit_softcap` is 0.0"),
        ({"hidden_dim": 16}, "gates need at least 24"),
    ],
)
def test_gpt_config_that_cannot_be_built_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TINY, **change)
