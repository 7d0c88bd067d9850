"""Gradients of what many tokens meet, in bfloat16, against sums in float64."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from marin.models.gpt import GptConfig, GptStreams
from marin.models.lm import shapes_of
from marin.nn import Embedding, Linear
from marin.nn.quantized import QuantizedLinear
from marin.nn.wide_sums import scaled, shifted

TOKENS, WIDTH, ROWS = 8192, 16, 3
# A sum in bfloat16 stops at 256 times its terms: it misses these by more than half.
CLOSE = 0.004  # of one number rounded to bfloat16


def _noise(seed: int, shape: tuple[int, ...], mean: float) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(mean, 1.0, shape), jnp.bfloat16)


GRAD = _noise(0, (4, TOKENS // 4, WIDTH), 0.5)
X = _noise(1, (4, TOKENS // 4, WIDTH), 0.5)
IDS = jnp.asarray(np.random.default_rng(2).integers(-1, ROWS + 1, (4, TOKENS // 4)), jnp.int32)


def _as64(x: Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32), np.float64)


def _gradient(run: Callable[[Array, Array], Array], learned: Array) -> np.ndarray:
    """Of a float32 parameter that meets X or IDS in bfloat16, where GRAD comes back."""

    def loss(learned: Array, x: Array, grad: Array) -> Array:
        return jnp.sum((run(learned.astype(jnp.bfloat16), x) * grad).astype(jnp.float32))

    return np.asarray(jax.jit(jax.grad(loss))(learned, X, GRAD), np.float64)


def test_rows_of_a_table_have_the_sum_of_what_their_tokens_send_back():
    expected = np.zeros((ROWS, WIDTH))
    np.add.at(expected, np.clip(np.asarray(IDS), 0, ROWS - 1), _as64(GRAD))
    found = _gradient(lambda table, x: Embedding(table)(IDS), jnp.ones((ROWS, WIDTH)))
    np.testing.assert_allclose(found, expected, rtol=CLOSE)


@pytest.mark.parametrize("kind", ["linear", "int8"])
def test_bias_has_the_sum_of_what_all_positions_send_back(kind: str):
    weight = jnp.zeros((WIDTH, WIDTH), jnp.bfloat16)

    def run(bias: Array, x: Array) -> Array:
        return (Linear(weight, bias) if kind == "linear" else QuantizedLinear(weight, bias, kind))(x)

    found = _gradient(run, jnp.ones((WIDTH,)))
    np.testing.assert_allclose(found, _as64(GRAD).sum((0, 1)), rtol=CLOSE)


@pytest.mark.parametrize("axes", [(), (2,), (0, 1)])
def test_scale_has_the_sum_over_what_it_is_spread_over(axes: tuple[int, ...]):
    shape = tuple(size if axis in axes else 1 for axis, size in enumerate(X.shape)) if axes else ()
    over = tuple(axis for axis in range(X.ndim) if axis not in axes)
    found = _gradient(scaled, jnp.ones(shape))
    np.testing.assert_allclose(found, (_as64(GRAD) * _as64(X)).sum(over, keepdims=bool(axes)), rtol=CLOSE)


def test_scales_of_a_gpt_s_layer_have_the_sum_over_its_streams():
    shapes = shapes_of(GptConfig(seq_len=16, hidden_dim=32, num_layers=2, num_heads=2), 64)
    streams = GptStreams(X, -X, X)

    def run(scale_L: Array, x: Array) -> Array:
        model = eqx.tree_at(lambda m: (m.residual_scale_L, m.input_scale_L), shapes, (scale_L[:2], scale_L[2:]))
        return model.layer_input(streams, 1)

    total = (_as64(GRAD) * _as64(X)).sum()
    np.testing.assert_allclose(_gradient(run, jnp.ones((4,))), [0.0, total, 0.0, -total], rtol=CLOSE)


@pytest.mark.parametrize("run", [scaled, lambda shift, x: shifted(x, shift)])
def test_what_is_kept_for_the_way_back_is_no_larger_than_what_was_given(run: Callable[[Array, Array], Array]):
    _, kept = jax.eval_shape(lambda one, x: jax.vjp(run, one, x), jnp.ones((), jnp.bfloat16), X)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept)) <= X.nbytes + 2


@pytest.mark.parametrize("kind", ["rows", "scale"])
def test_gradients_have_a_derivative_as_sophia_takes_it(kind: str):
    def loss(learned: Array, dtype: jnp.dtype) -> Array:
        narrow, x = learned.astype(dtype), X.astype(dtype)
        y = Embedding(narrow)(IDS) if kind == "rows" else scaled(narrow[:1, None], x)
        return jnp.mean(jnp.tanh(y.astype(jnp.float32)))

    def curvature(dtype: jnp.dtype) -> Array:
        at = jnp.full((ROWS, WIDTH), 0.5)
        return jax.jvp(jax.grad(lambda learned: loss(learned, dtype)), (at,), (at,))[1]

    wide = curvature(jnp.float32)
    assert np.linalg.norm(curvature(jnp.bfloat16) - wide) < 0.02 * np.linalg.norm(wide)
