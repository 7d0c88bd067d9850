"""Every attention kernel against one that is too simple to be wrong."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.nn import AttentionBackend, attention, reference_attention
from marin.nn.rotary import (
    RotaryConfig,
    apply_rotary,
    rotary_angles,
    rotary_angles_at,
)


def _loops(q, k, v, segments, sink=None):
    """Attention as the definition reads, one query at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    segments = None if segments is None else np.asarray(segments)
    rows, tokens, heads, width = q.shape
    out = np.zeros_like(q)
    for b in range(rows):
        for h in range(heads):
            kv = h // (heads // k.shape[2])
            for t in range(tokens):
                seen = [s for s in range(t + 1) if segments is None or segments[b, s] == segments[b, t]]
                scores = np.array([q[b, t, h] @ k[b, s, kv] / math.sqrt(width) for s in seen])
                weights = np.exp(scores)
                weights /= weights.sum() + (0 if sink is None else math.exp(sink[h]))
                out[b, t, h] = sum(w * v[b, s, kv] for w, s in zip(weights, seen, strict=True))
    return out


def _inputs(tokens, heads, kv_heads, width=8, rows=2):
    keys = jax.random.split(jax.random.key(tokens + heads), 4)
    q = jax.random.normal(keys[0], (rows, tokens, heads, width))
    k = jax.random.normal(keys[1], (rows, tokens, kv_heads, width))
    v = jax.random.normal(keys[2], (rows, tokens, kv_heads, width))
    segments = jnp.cumsum(jax.random.bernoulli(keys[3], 0.2, (rows, tokens)).astype(jnp.int32), axis=1)
    return q, k, v, segments


@pytest.mark.parametrize("backend", [AttentionBackend.VANILLA, AttentionBackend.JAX_FLASH])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_of_every_kernel_is_the_definition(backend, heads, kv_heads, masked):
    q, k, v, segments = _inputs(21, heads, kv_heads)
    segments = segments if masked else None
    got = jax.jit(lambda q, k, v: attention(q, k, v, segments, backend=backend, block_size=8))(q, k, v)
    np.testing.assert_allclose(got, _loops(q, k, v, segments), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("backend", [AttentionBackend.VANILLA, AttentionBackend.JAX_FLASH])
def test_attention_with_a_sink_adds_a_logit_that_attends_to_nothing(backend):
    q, k, v, segments = _inputs(13, 4, 2)
    sink = jnp.array([0.5, -1.0, 2.0, 0.0])
    got = jax.jit(lambda q, k, v: attention(q, k, v, segments, sink_H=sink, backend=backend, block_size=4))(q, k, v)
    np.testing.assert_allclose(got, _loops(q, k, v, segments, sink), rtol=2e-5, atol=2e-5)


def test_attention_gradients_of_blocks_are_those_of_the_reference():
    q, k, v, segments = _inputs(40, 4, 2)

    def loss(kernel):
        return jax.jit(jax.grad(lambda q, k, v: jnp.sum(jnp.sin(kernel(q, k, v))), argnums=(0, 1, 2)))(q, k, v)

    blocked = loss(lambda q, k, v: attention(q, k, v, segments, backend=AttentionBackend.JAX_FLASH, block_size=16))
    plain = loss(lambda q, k, v: reference_attention(q, k, v, segments))
    for got, want in zip(blocked, plain, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_attention_of_a_position_depends_on_nothing_after_it_nor_on_other_documents():
    q, k, v, _ = _inputs(12, 2, 2, rows=1)
    segments = jnp.array([[0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]])
    position = 6
    grad_k, grad_v = jax.grad(
        lambda k, v: jnp.sum(attention(q, k, v, segments, backend=AttentionBackend.JAX_FLASH)[0, position]),
        argnums=(0, 1),
    )(k, v)
    reached = np.asarray(jnp.abs(grad_v).sum(axis=(0, 2, 3)) + jnp.abs(grad_k).sum(axis=(0, 2, 3))) > 0
    assert reached.tolist() == [4 <= t <= 6 for t in range(12)]


def test_attention_in_bfloat16_is_close_and_upcast_is_closer():
    q, k, v, segments = _inputs(32, 4, 4)
    exact = np.asarray(reference_attention(q, k, v, segments))
    low = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    error = np.abs(np.asarray(attention(*low, segments), np.float32) - exact).max()
    assert 0 < error < 0.05


def test_attention_asked_for_cudnn_on_a_cpu_is_refused_with_what_to_use():
    q, k, v, segments = _inputs(8, 2, 2)
    with pytest.raises(ConfigError, match="JAX_FLASH"):
        attention(q, k, v, segments, backend=AttentionBackend.CUDNN)


def test_rotary_scores_depend_only_on_the_distance():
    x = jax.random.normal(jax.random.key(0), (1, 1, 1, 16))
    y = jax.random.normal(jax.random.key(1), (1, 1, 1, 16))
    cos, sin = rotary_angles(RotaryConfig(), 40, 16)

    def score(i, j):
        left = apply_rotary(x, cos[i : i + 1], sin[i : i + 1])
        right = apply_rotary(y, cos[j : j + 1], sin[j : j + 1])
        return float(jnp.sum(left * right))

    assert score(7, 3) == pytest.approx(score(33, 29), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(7, 4), abs=1e-3)


def test_rotary_with_a_factor_is_the_plain_one_at_stretched_positions():
    plain, _ = rotary_angles(RotaryConfig(), 8, 8)
    stretched, _ = rotary_angles(RotaryConfig(factor=2.0), 16, 8)
    np.testing.assert_allclose(stretched[::2], plain, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_program_computes_the_cosine_of_a_position_once_for_all_its_layers(rows):
    def rotated(start, layers):
        position = start + jnp.arange(rows * 8).reshape(rows, 8)
        angles = rotary_angles_at(RotaryConfig(), position, 16)
        return [apply_rotary(x, *angles) @ jnp.ones((16, 16)) for x in layers]

    layers = [jnp.ones((rows, 8, 2, 16))] * 3
    program = jax.jit(rotated).lower(jnp.int32(5), layers).compile()
    assert program.as_text().count(" cosine(") == 1
    known = [table[5:13][None] for table in rotary_angles(RotaryConfig(), 13, 16)]
    np.testing.assert_allclose(
        program(5, layers)[0][:1], apply_rotary(layers[0][:1], *known) @ jnp.ones((16, 16)), atol=1e-5
    )


def test_rotary_of_an_odd_width_is_refused():
    with pytest.raises(ConfigError, match="even"):
        rotary_angles(RotaryConfig(), 4, 7)
