"""The block-skipping kernel and Splash against the reference over shapes, masks and number formats, gradients too."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import ConfigError
from marin.nn import AttentionBackend, attention, reference_attention
from marin.nn.attention_blocks import blocked_attention
from marin.nn.attention_splash import splash_attention

# The function `attention` of marin.nn hides the module of its name.
attention_module = importlib.import_module("marin.nn.attention")

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
# Of the largest value: float32 rounding of sums of 300 terms, and a few of bfloat16's steps of 1/256.
TOLERANCE = {"f32": 1e-5, "bf16": 0.02}


def _inputs(tokens, heads, kv_heads, dtype=jnp.float32, rows=2, width=8):
    keys = jax.random.split(jax.random.key(tokens + heads), 6)
    q = jax.random.normal(keys[0], (rows, tokens, heads, width)).astype(dtype)
    k = jax.random.normal(keys[1], (rows, tokens, kv_heads, width)).astype(dtype)
    v = jax.random.normal(keys[2], (rows, tokens, kv_heads, width)).astype(dtype)
    segments = jnp.cumsum(jax.random.bernoulli(keys[3], 5 / tokens, (rows, tokens)).astype(jnp.int32), axis=1)
    grad = jax.random.normal(keys[4], q.shape).astype(dtype)
    sink = jax.random.normal(keys[5], (heads,))
    return q, k, v, segments, sink, grad


def _values_and_gradients(kernel, q, k, v, sink, grad):
    """The output and the gradients to queries, keys, values and sinks, in one program."""

    @jax.jit
    def run(q, k, v, sink, grad):
        out, pull = jax.vjp(kernel, q, k, v, sink)
        return out, *pull(grad)

    return [np.asarray(x, np.float32) for x in run(q, k, v, sink, grad) if x is not None]


def _assert_agree(got, want, tolerance):
    assert len(got) == len(want) == 5
    for name, one, other in zip(["out", "q", "k", "v", "sink"], got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max(), err_msg=name)


# Every pair of settings occurs; all 96 combinations would say no more and take minutes to compile.
GRID = [
    # tokens, (heads, kv heads), window, segments, sink, dtype, block
    (300, (2, 2), None, True, True, "f32", None),
    (300, (4, 2), 50, False, False, "f32", None),
    (300, (4, 1), None, False, True, "bf16", None),
    (300, (3, 3), 50, True, False, "bf16", None),
    (300, (4, 2), 200, True, True, "bf16", 100),
    (260, (2, 2), 1, True, True, "f32", 64),
    (260, (4, 2), 7, True, False, "f32", 130),
    (260, (2, 1), None, True, False, "f32", 260),
    (257, (4, 2), 256, False, True, "f32", 64),
    (40, (4, 2), 9, True, True, "f32", 16),
    (40, (4, 4), 39, False, False, "bf16", 7),
    (1, (2, 1), 1, False, True, "f32", None),
]


@pytest.mark.parametrize(("tokens", "heads", "window", "masked", "sunk", "dtype", "block"), GRID, ids=str)
def test_attention_in_blocks_and_its_gradients_are_those_of_the_reference(
    tokens, heads, window, masked, sunk, dtype, block
):
    q, k, v, segments, sink, grad = _inputs(tokens, *heads, DTYPES[dtype])
    segments = segments if masked else None

    def blocked(q, k, v, sink):
        sink = sink if sunk else None
        return blocked_attention(q, k, v, segments, sink_H=sink, window=window, block_size=block)

    def plain(q, k, v, sink):  # in float32, so that what is measured is the kernel's rounding alone
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        return reference_attention(q, k, v, segments, sink_H=sink if sunk else None, window=window)

    got = _values_and_gradients(blocked, q, k, v, sink, grad)
    want = _values_and_gradients(plain, q, k, v, sink, grad.astype(jnp.float32))
    _assert_agree(got, want, TOLERANCE[dtype])


def test_attention_upcast_with_values_in_bfloat16_gives_values_and_gradients_of_their_types():
    q, k, v, segments, _, grad = _inputs(40, 4, 2, jnp.bfloat16)

    @jax.jit
    def run(q, k, v, grad):
        def upcast(q, k, v):
            return attention(q, k, v, segments, window=9, upcast=True, backend=AttentionBackend.JAX_FLASH)

        out, pull = jax.vjp(upcast, q, k, v)
        exact = reference_attention(*(x.astype(jnp.float32) for x in (q, k, v)), segments, window=9)
        return (out, *pull(grad)), exact

    (out, *grads), exact = run(q, k, v, grad)
    assert [x.dtype for x in (out, *grads)] == [jnp.bfloat16] * 4
    np.testing.assert_allclose(np.asarray(out, np.float32), exact, atol=0.02)


@pytest.mark.parametrize("backend", [AttentionBackend.VANILLA, AttentionBackend.JAX_FLASH])
def test_attention_with_a_window_reaches_the_last_keys_and_no_others(backend):
    q, k, v, *_ = _inputs(12, 1, 1, rows=1)
    segments = jnp.array([[0] * 5 + [1] * 7])

    @jax.jit
    @jax.jacrev
    def reach(v):
        return attention(q, k, v, segments, window=4, backend=backend, block_size=5)[0, :, 0, 0]

    reached = np.abs(np.asarray(reach(v))[:, 0, :, 0, 0]) > 0
    expected = [[s <= t < s + 4 and (s < 5) == (t < 5) for s in range(12)] for t in range(12)]
    assert reached.tolist() == expected


def test_attention_in_blocks_computes_no_score_outside_the_window():
    q, k, v, *_ = _inputs(1024, 2, 2)

    def multiplications(window):
        run = jax.jit(lambda q, k, v: blocked_attention(q, k, v, None, window=window, block_size=64))
        return run.lower(q, k, v).cost_analysis()["flops"]

    assert multiplications(64) < 0.25 * multiplications(None)


def test_window_of_a_whole_row_costs_and_gives_what_none_does():
    q, k, v, *_ = _inputs(64, 2, 2)
    programs = [
        jax.jit(lambda q, k, v, window=window: attention(q, k, v, None, window=window)).lower(q, k, v).as_text()
        for window in (None, 64, 65, 63)
    ]
    assert programs[0] == programs[1] == programs[2] != programs[3]


def test_attention_whose_window_holds_no_key_is_refused():
    q, k, v, *_ = _inputs(8, 2, 2)
    with pytest.raises(ConfigError, match="at least 1"):
        attention(q, k, v, None, window=0)


def _committed_program(q, k, v, segments):
    """The attention that the results in experiments/speedrun/hello_world* were made with, written again."""
    outputs = []
    for start in range(0, q.shape[1], 64):
        stop = min(start + 64, q.shape[1])
        mask = (jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None, :])[None]
        if segments is not None:
            mask = mask & (segments[:, start:stop, None] == segments[:, None, :stop])
        mask = mask[:, None, None]
        block, keys, values = q[:, start:stop], k[:, :stop], v[:, :stop]
        grouped = block.reshape(*block.shape[:2], k.shape[2], -1, q.shape[3])
        scores = jnp.einsum("btkgc,bskc->bkgts", grouped, keys, preferred_element_type=jnp.float32)
        scores = jnp.where(mask, scores * (1.0 / math.sqrt(q.shape[3])), -1e30)
        weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
        weights = (weights / jnp.sum(weights, axis=-1, keepdims=True)).astype(v.dtype)
        outputs.append(jnp.einsum("bkgts,bskc->btkgc", weights, values).reshape(block.shape))
    return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)


@pytest.mark.parametrize("tokens", [40, 256])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_of_a_short_context_is_the_program_of_the_committed_results(tokens, masked):
    q, k, v, segments, _, grad = _inputs(tokens, 3, 3)
    segments = segments if masked else None

    def program(kernel):  # one program gives one set of bits, however it is compiled
        return str(jax.make_jaxpr(lambda q, k, v, grad: jax.vjp(kernel, q, k, v)[1](grad))(q, k, v, grad))

    default = program(lambda q, k, v: attention(q, k, v, segments))
    assert default == program(lambda q, k, v: _committed_program(q, k, v, segments))


@pytest.mark.parametrize(
    ("heads", "window", "masked", "sunk"),
    [((2, 2), None, False, False), ((2, 1), 100, True, True)],
    ids=str,
)
def test_attention_by_splash_and_its_gradients_are_those_of_the_reference(heads, window, masked, sunk):
    q, k, v, segments, sink, grad = _inputs(256, *heads, rows=1, width=64)
    segments = segments if masked else None

    def splash(q, k, v, sink):
        return splash_attention(q, k, v, segments, sink_H=sink if sunk else None, window=window, interpret=True)

    def plain(q, k, v, sink):
        return reference_attention(q, k, v, segments, sink_H=sink if sunk else None, window=window)

    got = _values_and_gradients(splash, q, k, v, sink, grad)
    want = _values_and_gradients(plain, q, k, v, sink, grad)
    _assert_agree(got, want, 1e-4)


def test_attention_by_splash_lowers_for_a_tpu():
    q, k, v, segments, sink, _ = _inputs(256, 4, 2, jnp.bfloat16, width=64)

    def loss(q, k, v, sink):
        return jnp.sum(splash_attention(q, k, v, segments, sink_H=sink, window=100).astype(jnp.float32))

    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(q, k, v, sink).lower(lowering_platforms=("tpu",))
    assert program.as_text().count("tpu_custom_call") == 3  # forward, gradient of queries, gradients of keys and values


@pytest.mark.parametrize("backend", [AttentionBackend.CUDNN, AttentionBackend.SPLASH])
def test_attention_asked_for_another_device_s_kernel_is_refused_with_what_to_use(backend):
    q, k, v, *_ = _inputs(8, 2, 2)
    with pytest.raises(ConfigError, match=f"{backend.name} needs.* use JAX_FLASH"):
        attention(q, k, v, None, backend=backend)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_attention_whose_device_s_kernel_cannot_do_it_runs_in_blocks_and_says_why_once(platform, monkeypatch, capsys):
    q, k, v, segments, *_ = _inputs(40, 4, 2)
    monkeypatch.setattr(attention_module, "_platform", lambda: platform)
    attention_module._warn_once.cache_clear()
    for _ in range(2):
        program = jax.make_jaxpr(lambda q, k, v: attention(q, k, v, segments))(q, k, v)
    blocked = jax.make_jaxpr(lambda q, k, v: blocked_attention(q, k, v, segments))(q, k, v)
    assert str(program) == str(blocked)
    said = capsys.readouterr().err
    assert said.count("JAX_FLASH") == 1
    assert {"gpu": "CUDNN needs", "tpu": "SPLASH needs"}[platform] in said
