"""8-bit products against float32 ones: as far off as their formats round, gradients too."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.nn import Embedding, Linear
from marin.nn.fp8 import fp8_product, to_fp8
from marin.nn.quantized import QuantizedLinear, int8_product, quantize_linears

# The relative error of rounding to nearest is at most 2^-4 for e4m3 (3 bits of mantissa), 2^-3 for e5m2 (2), and half of
# a 127th of the row's largest value for int8; sums of many such errors come out well below.
_ERROR = {"fp8": (0.04, 0.07), "int8": (0.015, 0.015)}
_PRODUCT = {"fp8": fp8_product, "int8": int8_product}


def _relative(one, other) -> float:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("products", ["fp8", "int8"])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e4])
def test_product_in_8_bits_is_near_the_exact_one_whatever_the_scale(products, scale):
    keys = jax.random.split(jax.random.key(0), 3)
    x = scale * jax.random.normal(keys[0], (64, 256))
    weight = 0.02 * jax.random.normal(keys[1], (256, 128))
    grad = 1e-3 * jax.random.normal(keys[2], (64, 128))
    y, backward = jax.vjp(_PRODUCT[products], x, weight)
    exact, exact_backward = jax.vjp(jnp.matmul, x, weight)
    forward_error, backward_error = _ERROR[products]
    assert 1e-5 < _relative(y, exact) < forward_error  # rounded, and not by much
    for ours, theirs in zip(backward(grad), exact_backward(grad), strict=True):
        assert _relative(ours, theirs) < backward_error
        assert ours.dtype == theirs.dtype


def test_int8_weight_gradient_is_the_exact_one():
    keys = jax.random.split(jax.random.key(0), 3)
    x, weight, grad = (jax.random.normal(k, (128, 128)) for k in keys)
    np.testing.assert_allclose(
        jax.vjp(int8_product, x, weight)[1](grad)[1], jax.vjp(jnp.matmul, x, weight)[1](grad)[1], rtol=1e-5, atol=1e-4
    )


def test_int8_rows_of_very_different_size_each_keep_their_precision():
    x = jnp.concatenate([jnp.full((1, 128), 1e-4), jnp.full((1, 128), 1e4)])
    weight = jax.random.normal(jax.random.key(0), (128, 128))
    y, exact = int8_product(x, weight), x @ weight
    for row in range(2):
        assert _relative(y[row], exact[row]) < 0.015


@pytest.mark.parametrize("products", ["fp8", "int8"])
@pytest.mark.parametrize("place", ["x", "weight"])
def test_a_nan_reaches_what_it_is_multiplied_into(products, place):
    x, weight = (jax.random.normal(key, (128, 128)) for key in jax.random.split(jax.random.key(0)))
    if place == "x":
        y = _PRODUCT[products](x.at[5, 7].set(jnp.nan), weight)
        assert bool(jnp.all(jnp.isnan(y[5])))
    else:
        y = _PRODUCT[products](x, weight.at[5, 7].set(jnp.nan))
        assert bool(jnp.all(jnp.isnan(y[:, 7])))


@pytest.mark.parametrize("products", ["fp8", "int8"])
@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_an_infinity_does_not_come_out_as_a_number(products, infinity):
    x, weight, grad = (jax.random.normal(key, (128, 128)) for key in jax.random.split(jax.random.key(0), 3))
    product = _PRODUCT[products]
    assert not bool(jnp.any(jnp.isfinite(product(x.at[5, 7].set(infinity), weight)[5])))
    assert not bool(jnp.any(jnp.isfinite(product(x, weight.at[5, 7].set(infinity))[:, 7])))
    _, backward = jax.vjp(product, x, weight)
    grad_x, grad_weight = backward(grad.at[5, 7].set(infinity))
    assert not bool(jnp.any(jnp.isfinite(grad_x[5])))
    assert not bool(jnp.any(jnp.isfinite(grad_weight[:, 7])))


@pytest.mark.parametrize("products", ["fp8", "int8"])
def test_product_of_zeros_is_zero(products):
    y, backward = jax.vjp(_PRODUCT[products], jnp.zeros((16, 128)), jnp.zeros((128, 128)))
    assert float(jnp.max(jnp.abs(y))) == 0.0
    assert all(bool(jnp.all(jnp.isfinite(grad))) for grad in backward(jnp.zeros((16, 128))))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_fp8_keeps_the_largest_value_finite(dtype):
    for largest in (1.0, 3.3e38, 7e-30, 448.00001):
        values, scale = to_fp8(jnp.array([[largest, -largest, largest / 3]], jnp.float32), dtype)
        assert bool(jnp.all(jnp.isfinite(values.astype(jnp.float32))))
        np.testing.assert_allclose(float(values[0, 0]) * float(scale), largest, rtol=2**-3)
        assert np.frexp(float(scale))[0] == 0.5  # a power of two
        assert 2 * float(jnp.abs(values[0, 0].astype(jnp.float32))) >= 0.99 * float(
            jnp.finfo(dtype).max
        )  # the range is used


def test_quantized_model_has_large_linears_in_8_bits_and_all_else_as_it_was():
    keys = jax.random.split(jax.random.key(0), 4)
    model = {
        "large": Linear.init(128, 256, key=keys[0], std=0.02, use_bias=True),
        "gate": Linear.init(12, 256, key=keys[1], std=0.02),
        "odd": Linear.init(130, 256, key=keys[2], std=0.02),
        "embedding": Embedding.init(256, 128, key=keys[3], std=0.02),
    }
    quantized = quantize_linears(model, "int8")
    assert isinstance(quantized["large"], QuantizedLinear)
    assert isinstance(quantized["gate"], Linear)
    assert isinstance(quantized["odd"], Linear)
    assert jax.tree.structure(quantized["embedding"]) == jax.tree.structure(model["embedding"])
    x = jax.random.normal(jax.random.key(1), (2, 3, 128))
    assert quantized["large"](x).shape == (2, 3, 256)
    assert _relative(quantized["large"](x), model["large"](x)) < 0.015
    assert len(jax.tree.leaves(eqx.filter(quantized, eqx.is_array))) == 5
