"""Muon, AdamW and the skipping of bad steps against what their papers say."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.models import LlamaConfig
from marin.optim import AdamConfig, MuonConfig, skip_bad_steps
from marin.optim.config import is_hidden_matrix, map_with_path
from marin.optim.muon import orthogonalize_all, shape_scale


@pytest.fixture(autouse=True)
def _optax_promotion():
    """Optax raises float decay rates to integer counts; the training step allows it that too."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def _model():
    config = LlamaConfig(seq_len=8, hidden_dim=16, intermediate_dim=24, num_layers=1, num_heads=2, num_kv_heads=1)
    return eqx.filter(config.build(30, key=jax.random.key(0)), eqx.is_array)


def test_orthogonalize_brings_singular_values_near_one_and_keeps_singular_vectors():
    matrices = [
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(16, 16), (16, 40), (40, 16)] * 2)
    ]
    for before, after in zip(matrices, orthogonalize_all(matrices, num_steps=5, epsilon=1e-7), strict=True):
        assert after.shape == before.shape
        u, values, v = np.linalg.svd(np.asarray(before, np.float64), full_matrices=False)
        aligned = u.T @ np.asarray(after) @ v.T
        off_diagonal = np.abs(aligned - np.diag(np.diag(aligned))).max()
        assert off_diagonal < 1e-3
        # The quintic sends all but the smallest singular values into about [0.7, 1.2].
        kept = values > 0.1 * values.max()
        assert np.diag(aligned)[kept].min() > 0.6
        assert np.diag(aligned).max() < 1.25


def test_muon_scales_follow_the_shape():
    assert shape_scale((4, 16), use_kimi_scaling=False) == 2.0
    assert shape_scale((16, 4), use_kimi_scaling=False) == 1.0
    assert shape_scale((4, 25), use_kimi_scaling=True) == pytest.approx(1.0)


def test_muon_takes_hidden_matrices_and_adam_the_rest():
    model = _model()
    roles = {}
    map_with_path(lambda path, leaf: roles.setdefault(path, is_hidden_matrix(path, leaf)), model)
    muon = {path for path, hidden in roles.items() if hidden}
    assert muon == {
        f"blocks.0.{name}.weight_IO"
        for name in (
            "attention.query",
            "attention.key",
            "attention.value",
            "attention.output",
            "mlp.gate",
            "mlp.up",
            "mlp.down",
        )
    }
    assert {"embedding.weight_VD", "lm_head.weight_IO", "final_norm.weight_D"} <= roles.keys() - muon


def test_muon_first_update_is_the_learning_rate_times_an_orthogonal_matrix():
    model = _model()
    config = MuonConfig(
        learning_rate=0.5, adam_lr=0.25, weight_decay=0.0, warmup=0, decay=0.0, max_grad_norm=None, epsilon=1e-12
    )
    optimizer = config.build(model, 10)
    gradients = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.size), p.shape), model)
    updates, _ = optimizer.update(gradients, optimizer.init(model), model)
    values = np.linalg.svd(np.asarray(updates.blocks[0].attention.output.weight_IO), compute_uv=False)
    assert values.min() > 0.5 * 0.3
    assert values.max() < 0.5 * 1.25
    # Adam's first step has the size of its rate, whatever the gradient's.
    np.testing.assert_allclose(np.abs(np.asarray(updates.lm_head.weight_IO)), 0.25, rtol=1e-3)


def test_muon_momentum_of_another_value_changes_the_second_update_only():
    model = _model()
    gradients = [
        jax.tree.map(lambda p, k=k: jax.random.normal(jax.random.key(k + p.size), p.shape), model) for k in range(2)
    ]
    seen = []
    for momentum in (0.5, 0.95):
        optimizer = MuonConfig(momentum=momentum, nesterov=False, warmup=0).build(model, 10)
        state = optimizer.init(model)
        run = []
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, model)
            run.append(np.asarray(updates.blocks[0].mlp.up.weight_IO))
        seen.append(run)
    np.testing.assert_allclose(seen[0][0], seen[1][0], rtol=1e-3, atol=1e-7)
    assert np.abs(seen[0][1] - seen[1][1]).max() > 1e-5


def test_adamw_decays_matrices_only_unless_told_otherwise():
    model = _model()
    zero = jax.tree.map(jnp.zeros_like, model)

    def shrunk(**options):
        optimizer = AdamConfig(learning_rate=1.0, weight_decay=0.1, warmup=0, decay=0.0, **options).build(model, 10)
        updates, _ = optimizer.update(zero, optimizer.init(model), model)
        names = set()
        map_with_path(lambda path, leaf: names.add(path) if float(jnp.abs(leaf).max()) > 0 else None, updates)
        return names

    everything = set()
    map_with_path(lambda path, leaf: everything.add(path), model)
    assert shrunk() == {path for path in everything if "norm" not in path}
    assert shrunk(default_weight_decay_mask=False) == everything
    assert shrunk(weight_decay_modules=[r"mlp\.up"]) == {"blocks.0.mlp.up.weight_IO"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_skip_bad_steps_leaves_weights_and_state_as_they_were(bad):
    params = {"w": jnp.ones((4,))}
    optimizer = skip_bad_steps(optax.adam(0.1), window=8)
    state = optimizer.init(params)
    for step in range(10):
        gradient = {"w": jnp.full((4,), 1.0 + 0.01 * step)}
        _, state = optimizer.update(gradient, state, params, loss=jnp.asarray(2.0 + 0.01 * step))
    updates, after = optimizer.update({"w": jnp.full((4,), bad)}, state, params, loss=jnp.asarray(2.0))
    np.testing.assert_array_equal(updates["w"], 0.0)
    assert int(after.skipped) == int(state.skipped) + 1
    for one, other in zip(jax.tree.leaves(after.inner), jax.tree.leaves(state.inner), strict=True):
        np.testing.assert_array_equal(one, other)
    updates, after = optimizer.update({"w": jnp.ones((4,))}, after, params, loss=jnp.asarray(2.05))
    assert float(jnp.abs(updates["w"]).min()) > 0
    assert int(after.num_taken) == 11


def test_skip_bad_steps_takes_the_first_steps_however_they_vary():
    params = {"w": jnp.ones((2,))}
    optimizer = skip_bad_steps(optax.sgd(0.1), window=8)
    state = optimizer.init(params)
    for loss in (100.0, 1.0, 50.0):
        updates, state = optimizer.update({"w": jnp.full((2,), loss)}, state, params, loss=jnp.asarray(loss))
        assert float(jnp.abs(updates["w"]).min()) > 0
