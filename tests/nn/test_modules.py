"""Linear, embedding, normalization and precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.nn import ACTIVATIONS, Embedding, GatedMlp, Linear, Precision, RmsNormConfig
from marin.nn.precision import wide_einsum


def test_linear_of_any_leading_shape_is_a_matrix_product():
    layer = Linear.init(6, 4, key=jax.random.key(0), std=0.5, use_bias=True)
    x = jax.random.normal(jax.random.key(1), (2, 3, 6))
    np.testing.assert_allclose(layer(x), np.asarray(x) @ np.asarray(layer.weight_IO), rtol=1e-5, atol=1e-6)
    assert layer(x[0, 0][None]).shape == (1, 4)


def test_linear_initial_values_have_the_deviation_asked_for():
    weight = np.asarray(Linear.init(300, 300, key=jax.random.key(0), std=0.02).weight_IO)
    assert weight.std() == pytest.approx(0.02, rel=0.05)
    assert np.abs(weight).max() <= 0.0601


def test_embedding_looks_up_rows():
    table = Embedding.init(10, 3, key=jax.random.key(0), std=1.0)
    np.testing.assert_array_equal(table(jnp.array([[4, 4, 9]]))[0], np.asarray(table.weight_VD)[[4, 4, 9]])


@pytest.mark.parametrize("use_weight", [True, False])
def test_rms_norm_output_has_a_root_mean_square_of_one(use_weight):
    norm = RmsNormConfig(1e-6, use_weight).build(64)
    x = 37.0 * jax.random.normal(jax.random.key(0), (2, 5, 64))
    y = np.asarray(norm(x))
    np.testing.assert_allclose(np.sqrt((y**2).mean(axis=-1)), 1.0, rtol=1e-4)
    assert norm(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    assert (norm.weight_D is None) != use_weight


def test_gated_mlp_is_down_of_activated_gate_times_up():
    mlp = GatedMlp.init(4, 8, key=jax.random.key(0), std=0.3)
    x = jax.random.normal(jax.random.key(1), (1, 2, 4))
    want = mlp.down(jax.nn.silu(mlp.gate(x)) * mlp.up(x))
    np.testing.assert_allclose(mlp(x), want, rtol=1e-6)


def test_gated_mlp_on_a_gpu_holds_its_two_halves_together_and_changes_no_number(monkeypatch):
    mlp = Precision("bf16").cast(GatedMlp.init(4, 8, key=jax.random.key(0), std=0.3))
    x = jax.random.normal(jax.random.key(1), (1, 2, 4)).astype(jnp.bfloat16)

    def loss(mlp, x):
        return jnp.sum(jnp.square(mlp(x)))

    def curvature(mlp, x):  # what Sophia takes
        return jax.jvp(jax.grad(loss), (mlp, x), (mlp, x))[1]

    want = jax.grad(loss)(mlp, x), curvature(mlp, x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # Forward, and backward for the gradients of both, which are then made by one kernel.
    assert str(jax.make_jaxpr(jax.grad(loss))(mlp, x)).count("optimization_barrier") == 2
    jax.tree.map(np.testing.assert_array_equal, (jax.grad(loss)(mlp, x), curvature(mlp, x)), want)


def test_gated_mlp_is_described_in_float32_without_beginning_jax(monkeypatch):
    """As a run's processes do before they know each other."""
    monkeypatch.setattr(jax, "default_backend", lambda: pytest.fail("JAX would begin"))
    mlp = GatedMlp.init(4, 8, key=jax.random.key(0), std=0.3)
    assert jax.eval_shape(mlp, jax.ShapeDtypeStruct((2, 4), jnp.float32)).shape == (2, 4)


def test_activations_all_map_zero_to_zero_and_are_finite():
    for name, activation in ACTIVATIONS.items():
        values = activation(jnp.linspace(-30.0, 30.0, 7))
        assert float(activation(jnp.zeros(()))) == 0.0, name
        assert bool(jnp.all(jnp.isfinite(values))), name


def test_precision_casts_floats_only_and_unknown_formats_are_refused():
    tree = {"weight": jnp.ones((2,), jnp.float32), "count": jnp.ones((2,), jnp.int32)}
    cast = Precision("bf16").cast(tree)
    assert cast["weight"].dtype == jnp.bfloat16
    assert cast["count"].dtype == jnp.int32
    with pytest.raises(ConfigError, match="bf16"):
        Precision("fp4")


def test_wide_einsum_of_bfloat16_adds_up_in_float32_and_rounds_once():
    ones = jnp.ones((3, 1000), jnp.bfloat16)  # added up in bfloat16, ones would stop at 256
    assert np.unique(wide_einsum("ak,bk->ab", ones, ones)) == [1000.0]
    keys = jax.random.split(jax.random.key(0))
    one, other = (jax.random.normal(key, (64, 200)).astype(jnp.bfloat16) for key in keys)
    got = wide_einsum("ak,bk->ab", one, other)
    exact = np.asarray(one, np.float32) @ np.asarray(other, np.float32).T
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, exact, rtol=2**-8, atol=1e-4)


def test_wide_einsum_of_float32_is_not_rounded():
    keys = jax.random.split(jax.random.key(0))
    one, other = (jax.random.normal(key, (8, 100)) for key in keys)
    np.testing.assert_allclose(wide_einsum("ak,bk->ab", one, other), np.asarray(one) @ np.asarray(other).T, atol=1e-4)
