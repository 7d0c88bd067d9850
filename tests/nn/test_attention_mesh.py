"""Attention divided between devices agrees with the reference on one, gradients too."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.nn import AttentionBackend, attention, reference_attention
from marin.parallel.mesh import ambient, make_mesh

ROWS, LENGTH, HEADS, WIDTH = 2, 16, 4, 8


def _arguments(num_kv_heads: int):
    draw = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    segments = jnp.asarray(np.cumsum(draw.random((ROWS, LENGTH)) < 0.15, axis=1), jnp.int32)
    key_value = (ROWS, LENGTH, num_kv_heads, WIDTH)
    return normal(ROWS, LENGTH, HEADS, WIDTH), normal(*key_value), normal(*key_value), segments, normal(HEADS)


@pytest.mark.parametrize(
    ("sizes", "num_kv_heads", "window", "backend"),
    [
        ({"sequence": 4}, 2, None, None),
        ({"sequence": 2, "tensor": 2, "data": 2}, 2, 5, None),
        ({"tensor": 4}, 2, None, AttentionBackend.JAX_FLASH),  # fewer key heads than devices
        ({"data": 4, "tensor": 2}, 1, 3, AttentionBackend.VANILLA),  # rows that 4 does not divide
        ({"tensor": 8}, 4, None, None),  # heads that 8 does not divide
    ],
    ids=str,
)
def test_attention_over_a_mesh_agrees_with_the_reference_on_one_device(sizes, num_kv_heads, window, backend):
    q, k, v, segments, sink = _arguments(num_kv_heads)

    def loss(attend, q, k, v, sink):
        out = attend(q, k, v, segments, sink)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)), out

    def divided(q, k, v, segments, sink):
        return attention(q, k, v, segments, sink_H=sink, window=window, backend=backend, block_size=4)

    def whole(q, k, v, segments, sink):
        return reference_attention(q, k, v, segments, sink_H=sink, window=window)

    def grads(attend):
        return jax.jit(jax.grad(lambda *xs: loss(attend, *xs), argnums=(0, 1, 2, 3), has_aux=True))(q, k, v, sink)

    expected, out = grads(whole)
    with ambient(make_mesh(sizes)):
        found, found_out = grads(divided)
    np.testing.assert_allclose(found_out, out, rtol=1e-5, atol=1e-6)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 5])
def test_attention_of_a_prime_number_of_positions_a_device_is_the_reference_in_as_few_blocks_as_of_others(window):
    draw = np.random.default_rng(1)
    q, k, v = (jnp.asarray(draw.normal(size=(ROWS, 22, heads, WIDTH)), jnp.float32) for heads in (HEADS, 2, 2))
    segments = jnp.asarray(np.cumsum(draw.random((ROWS, 22)) < 0.15, axis=1), jnp.int32)

    def grads(attend):
        def loss(q, k, v):
            out = attend(q, k, v, segments, window=window)
            return jnp.sum(out * jnp.sin(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)), out

        return jax.grad(loss, argnums=(0, 1, 2), has_aux=True)

    expected, out = jax.jit(grads(reference_attention))(q, k, v)
    in_blocks = grads(functools.partial(attention, block_size=4))
    with ambient(make_mesh({"sequence": 2})):
        found, found_out = jax.jit(in_blocks)(q, k, v)
        program = str(jax.make_jaxpr(in_blocks)(q, k, v))
    np.testing.assert_allclose(found_out, out, rtol=1e-5, atol=1e-6)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    assert set(re.findall(r"length=(\d+)", program)) == {"3"}  # 11 positions, 4 at once


def test_gradients_of_keys_and_values_in_bfloat16_are_no_worse_for_many_blocks_of_queries():
    """Each block adds to them: added up in bfloat16 they are off by 0.7 %, rounded once by 0.2 %."""
    draw = np.random.default_rng(2)
    shapes = [(1, 1024, heads, WIDTH) for heads in (2, 1, 1, 2)]
    q, k, v, out_grad = (jnp.asarray(1 + draw.normal(size=shape), jnp.bfloat16) for shape in shapes)

    def grads(*arrays):
        *inputs, of_out = arrays
        return jax.vjp(functools.partial(attention, segment_ids_BT=None, block_size=4), *inputs)[1](of_out)

    with ambient(make_mesh({"sequence": 2})):
        found = jax.jit(grads)(q, k, v, out_grad)
        exact = jax.jit(grads)(*(array.astype(jnp.float32) for array in (q, k, v, out_grad)))
    for one, other in zip(found[1:], exact[1:], strict=True):
        assert one.dtype == jnp.bfloat16
        error = np.linalg.norm(one.astype(np.float32) - other) / np.linalg.norm(other)
        assert error < 0.003, error


def test_each_device_scores_its_own_queries_only():
    q, k, v, segments, _ = _arguments(2)
    with ambient(make_mesh({"sequence": 4})):
        program = jax.jit(lambda *xs: attention(*xs, block_size=4)).lower(q, k, v, segments).compile().as_text()
    # [rows, key heads, queries of a key head, own positions, all positions]
    assert f"f32[{ROWS},2,2,{LENGTH // 4},{LENGTH}]" in program
    assert f"f32[{ROWS},2,2,{LENGTH},{LENGTH}]" not in program
