"""Products of which the weights' gradient is added up in parts of the tokens: the same gradients, and where they are taken."""

import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.nn import Linear, linear, weight_gradients
from marin.nn.weight_gradients import leaves_cores_idle, product


@pytest.fixture
def gpu(monkeypatch):
    device = unittest.mock.Mock(platform="gpu", core_count=132)
    device.client.platform_version = "PJRT C API\ncuda 13000"
    monkeypatch.setattr(jax, "local_devices", lambda: [device])


def operands(tokens: int = 64):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (2, tokens // 2, 24), (24, 40), (2, tokens // 2, 40)
    return [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]


def test_gradients_in_parts_are_exact_sums_rounded_once(monkeypatch):
    x, weight, grad = operands()
    monkeypatch.setattr(linear, "leaves_cores_idle", lambda x, weight: True)
    in_parts = unittest.mock.Mock(side_effect=product)
    monkeypatch.setattr(linear, "product", in_parts)
    y, back = jax.vjp(lambda weight, x: Linear(weight, None)(x), weight, x)
    assert in_parts.called
    of_weight, of_x = back(grad)
    wide = [np.asarray(array, np.float64).reshape(-1, array.shape[-1]) for array in (x, weight, grad)]
    for made, exact in ((y, wide[0] @ wide[1]), (of_weight, wide[0].T @ wide[2]), (of_x, wide[2] @ wide[1].T)):
        assert made.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(made, np.float64).reshape(exact.shape), exact, rtol=2**-8, atol=2e-3)


def test_derivative_of_the_gradient_is_the_plain_product_s():
    """Sophia's."""
    x, weight, _ = operands()
    x_NI, tangent = x.reshape(-1, 24), jnp.ones_like(weight)

    def second(multiply):
        gradient = jax.grad(lambda weight: jnp.sum(jnp.square(multiply(x_NI, weight).astype(jnp.float32))))
        return np.asarray(jax.jvp(gradient, (weight,), (tangent,))[1], np.float32)

    np.testing.assert_allclose(second(product), second(jnp.matmul), rtol=0.02, atol=0.5)


@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs", "taken"),
    [
        (65_536, 1024, 3584, True),
        (65_536, 3584, 1024, True),
        (65_536, 1024, 2048, False),  # the library cuts these
        (65_536, 1024, 7168, False),
        (65_534, 1024, 3584, False),
        (4_096, 1024, 3584, False),
    ],
)
def test_taken_where_multiprocessors_would_be_idle(gpu, tokens, inputs, outputs, taken):
    def shape(*sizes, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(sizes, dtype)

    assert leaves_cores_idle(shape(tokens, inputs), shape(inputs, outputs)) == taken
    assert not leaves_cores_idle(shape(tokens, inputs, dtype=jnp.float32), shape(inputs, outputs))


def test_not_taken_on_a_processor_or_over_several_devices(monkeypatch, request):
    x, weight = jax.ShapeDtypeStruct((65_536, 1024), jnp.bfloat16), jax.ShapeDtypeStruct((1024, 3584), jnp.bfloat16)
    assert not leaves_cores_idle(x, weight)
    request.getfixturevalue("gpu")
    monkeypatch.setattr(weight_gradients, "ambient_axes", lambda: {"data": 2})
    assert not leaves_cores_idle(x, weight)


def test_a_model_in_float32_does_not_ask_for_devices(monkeypatch):
    """What describes a model traces it so, before processes know each other and JAX may begin."""
    monkeypatch.setattr(jax, "local_devices", unittest.mock.Mock(side_effect=AssertionError("JAX has begun")))
    shapes = jax.ShapeDtypeStruct((65_536, 1024), jnp.float32), jax.ShapeDtypeStruct((1024, 3584), jnp.float32)
    assert not leaves_cores_idle(*shapes)
