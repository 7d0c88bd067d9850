"""Which parameters take which rule and which decay, and the skipping of bad steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.errors import ConfigError
from marin.models import LlamaConfig
from marin.nn.trees import map_named
from marin.optim import AdamConfig, MuonConfig, skip_bad_steps
from marin.optim.ademamix import AdemamixConfig
from marin.optim.config import is_hidden_matrix
from marin.optim.muon import shape_scale
from marin.optim.scion import ScionConfig
from marin.training.warm_start import with_fresh_schedules


@pytest.fixture(autouse=True)
def _optax_promotion():
    """Optax raises float decay rates to integer counts; the training step allows it that too."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def model() -> eqx.Module:
    config = LlamaConfig(seq_len=8, hidden_dim=16, intermediate_dim=24, num_layers=1, num_heads=2, num_kv_heads=1)
    return eqx.filter(eqx.filter_jit(config.build)(30, key=jax.random.key(0)), eqx.is_array)


def test_muon_scales_follow_the_shape():
    assert shape_scale((4, 16), use_kimi_scaling=False) == 2.0
    assert shape_scale((16, 4), use_kimi_scaling=False) == 1.0
    assert shape_scale((4, 25), use_kimi_scaling=True) == pytest.approx(1.0)


def test_muon_takes_hidden_matrices_and_adam_the_rest(model):
    roles = {}
    map_named(lambda path, leaf: roles.setdefault(path, is_hidden_matrix(path, leaf)), model)
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


def test_adamw_decays_matrices_only_unless_told_otherwise(model):
    zero = jax.tree.map(jnp.zeros_like, model)

    def shrunk(**options):
        optimizer = AdamConfig(learning_rate=1.0, weight_decay=0.1, warmup=0, decay=0.0, **options).build(model, 10)
        updates = jax.jit(lambda: optimizer.update(zero, optimizer.init(model), model)[0])()
        names = set()
        map_named(lambda path, leaf: names.add(path) if float(jnp.abs(leaf).max()) > 0 else None, updates)
        return names

    everything = set()
    map_named(lambda path, leaf: everything.add(path), model)
    assert shrunk() == {path for path in everything if "norm" not in path}
    assert shrunk(default_weight_decay_mask=False) == everything
    assert shrunk(weight_decay_modules=[r"mlp\.up"]) == {"blocks.0.mlp.up.weight_IO"}
    assert shrunk(weight_decay_modules="mlp_norm", default_weight_decay_mask=False) == {"blocks.0.mlp_norm.weight_D"}
    both = shrunk(weight_decay_modules="mlp_norm", default_weight_decay_mask=True)
    assert both == shrunk() | {"blocks.0.mlp_norm.weight_D"}


@pytest.mark.parametrize("epsilon", [0.0, 1e-50, 1e-39])
@pytest.mark.parametrize(
    ("kind", "field"),
    [(AdamConfig, "epsilon"), (MuonConfig, "epsilon"), (MuonConfig, "muon_epsilon"), (ScionConfig, "epsilon")],
)
def test_epsilon_that_is_zero_in_float32_is_refused(kind, field, epsilon):
    with pytest.raises(ConfigError, match=f"`{field}` is .*at least 1.17549e-38"):
        kind(**{field: epsilon})
    kind(**{field: 1e-30})


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
    assert int(after.num_seen) == (12 if bad == 1e6 else 11)


def test_skip_bad_steps_takes_the_first_steps_however_they_vary():
    params = {"w": jnp.ones((2,))}
    optimizer = skip_bad_steps(optax.sgd(0.1), window=8)
    state = optimizer.init(params)
    for loss in (100.0, 1.0, 50.0):
        updates, state = optimizer.update({"w": jnp.full((2,), loss)}, state, params, loss=jnp.asarray(loss))
        assert float(jnp.abs(updates["w"]).min()) > 0


def _skipped(losses, window=128):
    """How many of the losses are skipped; gradients stay as they are."""
    params = {"w": jnp.ones((2,))}
    optimizer = skip_bad_steps(optax.sgd(0.1), window=window)
    update = jax.jit(lambda state, loss: optimizer.update({"w": jnp.ones((2,))}, state, params, loss=loss)[1])
    state = optimizer.init(params)
    for loss in losses:
        state = update(state, jnp.asarray(loss, jnp.float32))
    return int(state.skipped)


def test_skip_bad_steps_follows_a_loss_that_has_risen_for_good():
    noise = 0.02 * np.random.default_rng(0).standard_normal(1128)
    assert _skipped([*(3.0 + noise[:128]), *(3.0 + noise[128:])]) <= 2
    assert 0 < _skipped([*(3.0 + noise[:128]), *(3.3 + noise[128:])]) < 128
    assert 0 < _skipped([*(3.0 + noise[:128]), *(9.0 + noise[128:])]) < 128


def test_skip_bad_steps_takes_a_loss_that_differs_by_rounding_alone():
    assert _skipped([3.0] * 128 + [3.000001] * 20) == 0


def test_skip_bad_steps_sees_an_outlier_after_another():
    noise = 0.02 * np.random.default_rng(0).standard_normal(200)
    losses = 3.0 + noise
    losses[140], losses[150], losses[160] = 1e4, 5.0, float("nan")
    assert _skipped(losses) == 3


def test_ademamix_that_begins_with_gathered_moments_begins_the_schedules_of_its_slow_one_anew():
    params = {"w": jnp.ones((4, 4))}
    optimizer = AdemamixConfig(learning_rate=0.1).build(params, 10)
    state = fresh = optimizer.init(params)
    for _ in range(3):
        _, state = optimizer.update(params, state, params)
    begun = with_fresh_schedules(fresh, state)[1]
    assert (int(begun.count), int(begun.count_m2)) == (3, 0)
