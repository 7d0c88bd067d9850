"""The block-wise losses against all logits at once."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import marin.nn.loss
from marin.nn import cross_entropy, weighted_cross_entropy
from marin.nn.loss import normalizer_at_once


def _inputs(rows=3, tokens=8, width=5, vocab=17):
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (rows, tokens, width))
    head = jax.random.normal(keys[1], (width, vocab))
    target = jax.random.randint(keys[2], (rows, tokens), 0, vocab)
    weight = jax.random.uniform(keys[3], (rows, tokens))
    return x, head, target, weight


def _plain(x, head, target, weight, softcap, z_loss):
    logits = jnp.einsum("btd,dv->btv", x, head)
    if softcap:
        logits = softcap * jnp.tanh(logits / softcap)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    nats = log_z - jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    return jnp.sum(weight * nats), z_loss * jnp.sum(weight * log_z**2), nats


@pytest.mark.parametrize("tokens", [8, 7])
@pytest.mark.parametrize("block", [1, 10, 100])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_weighted_cross_entropy_and_its_gradients_are_those_of_all_logits(block, softcap, z_loss, tokens):
    assert_is_that_of_all_logits(block, softcap, z_loss, tokens)


def assert_is_that_of_all_logits(block, softcap, z_loss, tokens):
    x, head, target, weight = _inputs(tokens=tokens)

    def ours(x, head):
        return sum(weighted_cross_entropy(x, head, target, weight, block, softcap, z_loss))

    def plain(x, head):
        return sum(_plain(x, head, target, weight, softcap, z_loss)[:2])

    got, got_grads = jax.jit(jax.value_and_grad(ours, argnums=(0, 1)))(x, head)
    want, want_grads = jax.jit(jax.value_and_grad(plain, argnums=(0, 1)))(x, head)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(ours)(x, head), want, rtol=1e-5)  # without differentiation: another path
    for one, other in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("softcap", [None, 3.0, 50.0])
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_weighted_cross_entropy_as_an_accelerator_computes_it_is_that_of_all_logits(softcap, platform, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(marin.nn.loss, "_NORMALIZER_PARTS", 17)  # of a vocabulary of 17
    assert_is_that_of_all_logits(10, softcap, 0.01, 7)


@pytest.mark.parametrize("softcap", [15.0, 40.0])
def test_tokens_whose_logits_are_all_at_the_lower_end_of_a_cap_cost_what_they_do(softcap, monkeypatch):
    """On accelerators the cap itself is taken off, from which they are as far as they can be."""
    _, _, target, weight = _inputs()
    x, head = jnp.ones((3, 8, 5)), jnp.full((5, 17), -1e4)

    def nats(x):
        return sum(weighted_cross_entropy(x, head, target, weight, 10, softcap))

    want, want_grad = jax.value_and_grad(nats)(x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    value, grad = jax.value_and_grad(nats)(x)
    np.testing.assert_allclose(want, float(jnp.sum(weight)) * np.log(17), rtol=1e-6)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    np.testing.assert_array_equal(grad, want_grad)


@pytest.mark.parametrize(("size", "parts"), [(1, 1), (2, 1), (2, 2), (7, 1), (1000, 1), (1000, 8)])
@pytest.mark.parametrize("spread", [0.0, 1.0, 300.0])
def test_normalizer_at_once_is_that_of_two_passes(size, parts, spread):
    logits = spread * jax.random.normal(jax.random.key(size), (3, 5, size)) - 50.0
    top, sum_exp = jax.jit(normalizer_at_once, static_argnums=1)(logits, parts)
    np.testing.assert_array_equal(top, jnp.max(logits, axis=-1))
    np.testing.assert_allclose(jnp.log(sum_exp) + top, jax.nn.logsumexp(logits, axis=-1), rtol=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_normalizer_at_once_leaves_out_minus_infinity_and_keeps_nan(parts):
    inf, nan = float("inf"), float("nan")
    logits = jnp.array([[-inf, 2.0, -inf, 1.0], [0.0, nan, 1.0, 2.0], [-inf, 1.0, nan, -inf]])
    top, sum_exp = jax.jit(normalizer_at_once, static_argnums=1)(logits, parts)
    np.testing.assert_allclose(top[0], 2.0)
    np.testing.assert_allclose(sum_exp[0], 1.0 + np.exp(-1.0), rtol=1e-6)
    assert bool(jnp.all(jnp.isnan(sum_exp[1:])))


@pytest.mark.parametrize("tokens", [8, 7])
@pytest.mark.parametrize("block", [1, 4, 6, 100])
def test_cross_entropy_of_each_token_is_that_of_all_logits(block, tokens):
    x, head, target, weight = _inputs(tokens=tokens)
    *_, want = _plain(x, head, target, weight, None, 0.0)
    got = jax.jit(lambda x, head, target: cross_entropy(x, head, target, block=block))(x, head, target)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_cross_entropy_and_its_gradient_have_the_sum_s_logarithm_beside_logits_of_any_size():
    x, head, target, _ = _inputs(vocab=17)

    def loss(x):  # one logit more for all tokens alike, which changes no probability
        wider, ones = jnp.concatenate([x, jnp.full((*x.shape[:2], 1), 1e8)], axis=-1), jnp.ones((1, 17))
        return cross_entropy(wider, jnp.concatenate([0.0 * head, ones]), target, block=10)

    np.testing.assert_allclose(loss(x), np.full(target.shape, np.log(17)), rtol=1e-6)
    got = jax.grad(lambda x: jnp.sum(cross_entropy(x, head, target, block=10)))(x)
    want = jax.grad(lambda x: jnp.sum(_plain(x, head, target, jnp.ones(target.shape), None, 0.0)[2]))(x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_weighted_cross_entropy_scaled_scales_its_gradients():
    x, head, target, weight = _inputs()
    one = jax.grad(lambda x: weighted_cross_entropy(x, head, target, weight, 4)[0])(x)
    half = jax.grad(lambda x: 0.5 * weighted_cross_entropy(x, head, target, weight, 4)[0])(x)
    np.testing.assert_allclose(half, 0.5 * one, rtol=1e-6)


def test_loss_of_a_prime_number_of_tokens_reads_the_head_no_more_often_than_that_of_the_next_ones():
    def num_blocks(tokens):
        x, head, target, weight = _inputs(rows=4, tokens=tokens)
        each = jax.make_jaxpr(lambda x: cross_entropy(x, head, target, block=128))(x)
        summed = jax.make_jaxpr(jax.grad(lambda x: weighted_cross_entropy(x, head, target, weight, 128)[0]))(x)
        return [max(int(length) for length in re.findall(r"length=(\d+)", str(program))) for program in (each, summed)]

    assert num_blocks(1021) == num_blocks(1024) == [32, 32]


def test_weighted_cross_entropy_never_holds_all_logits():
    rows, tokens, width, vocab, block = 4, 64, 8, 4096, 32
    x = jax.ShapeDtypeStruct((rows, tokens, width), jnp.float32)
    head = jax.ShapeDtypeStruct((width, vocab), jnp.float32)
    target = jax.ShapeDtypeStruct((rows, tokens), jnp.int32)
    weight = jax.ShapeDtypeStruct((rows, tokens), jnp.float32)
    step = jax.jit(
        jax.grad(lambda x, head, t, w: weighted_cross_entropy(x, head, t, w, block)[0], argnums=(0, 1))
    ).lower(x, head, target, weight)
    memory = step.compile().memory_analysis().temp_size_in_bytes
    assert memory < rows * tokens * vocab * 4 / 2  # all logits would take 4 MiB


def test_weighted_cross_entropy_of_bfloat16_activations_is_close():
    x, head, target, weight = _inputs()
    want, *_ = _plain(x, head, target, weight, None, 0.0)
    got, _ = weighted_cross_entropy(x.astype(jnp.bfloat16), head.astype(jnp.bfloat16), target, weight, 8)
    assert got == pytest.approx(float(want), rel=0.02)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_logits_are_held_in_the_format_that_is_computed_in(backend, dtype, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x, head, target, weight = _inputs()
    step = jax.grad(lambda x, head: weighted_cross_entropy(x, head, target, weight, 4)[0], argnums=(0, 1))
    products = re.findall(
        r"(\w+)\[3,1,17\] = dot_general", str(jax.make_jaxpr(step)(x.astype(dtype), head.astype(dtype)))
    )
    assert products == [{jnp.bfloat16: "bf16", jnp.float32: "f32"}[dtype]]


def test_rounded_logits_change_the_loss_less_than_a_thousandth_of_a_nat():
    draw = np.random.default_rng(0)
    # As of a trained model: most logits within 3, the target's about 8.
    x, head = draw.normal(size=(1, 512, 64)), draw.normal(size=(64, 2048)) / 3
    target = draw.integers(0, 2048, (1, 512))
    x += 0.4 * head.T[target] * 3
    arrays = (
        jnp.asarray(x, jnp.bfloat16),
        jnp.asarray(head, jnp.bfloat16),
        jnp.asarray(target),
        jnp.ones((1, 512)) / 512,
    )
    rounded, _ = weighted_cross_entropy(*arrays, 64)
    exact = jnp.mean(cross_entropy(*arrays[:3], block=64))
    assert rounded != exact
    assert rounded == pytest.approx(float(exact), abs=1e-3)


@pytest.mark.parametrize("chunk", [4, 2, 1])  # of a vocabulary of 17: the last begins in the one before it, but for 1
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_weighted_cross_entropy_of_a_large_vocabulary_is_that_of_a_small_one(chunk, softcap, monkeypatch):
    x, head, target, weight = _inputs()

    def gradients():
        return jax.jit(
            jax.value_and_grad(
                lambda x, head: sum(weighted_cross_entropy(x, head, target, weight, 6, softcap, 0.01)), argnums=(0, 1)
            )
        )(x, head)

    whole = gradients()
    monkeypatch.setattr(marin.nn.loss, "_CPU_CHUNK", chunk)
    chunked = gradients()
    for one, other in zip(jax.tree.leaves(chunked), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [2, 12, 100])
def test_weighted_cross_entropy_with_few_logits_at_once_is_the_same(block, monkeypatch):
    x, head, target, weight = _inputs()
    monkeypatch.setattr(marin.nn.loss, "_CPU_LOGITS", 40)  # two tokens of a vocabulary of 17
    want, _, nats = _plain(x, head, target, weight, None, 0.0)
    np.testing.assert_allclose(weighted_cross_entropy(x, head, target, weight, block)[0], want, rtol=1e-5)
    np.testing.assert_allclose(cross_entropy(x, head, target, block=block), nats, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [17, 4])
def test_weighted_cross_entropy_of_bfloat16_sums_the_head_s_gradient_in_float32(chunk, monkeypatch):
    monkeypatch.setattr(marin.nn.loss, "_CPU_CHUNK", chunk)
    x, head, target, weight = _inputs(rows=1, tokens=512)
    x, head = x.astype(jnp.bfloat16), head.astype(jnp.bfloat16)

    def gradient(x, head):  # blocks of one token: 512 sums for each element
        loss = jax.jit(jax.grad(lambda head: weighted_cross_entropy(x, head, target, weight, 1)[0]))
        return np.asarray(loss(head), np.float32)

    got, exact = gradient(x, head), gradient(x.astype(jnp.float32), head.astype(jnp.float32))
    # Summed in bfloat16, whose steps are 1/256, 512 terms would be off by more than a hundredth.
    assert np.abs(got - exact).max() < 0.004 * np.abs(exact).max()


def test_weighted_cross_entropy_of_a_vocabulary_of_128256_holds_an_eighth_of_all_logits_beside_the_head():
    tokens, width, vocab = 4096, 64, 128_256
    x = jax.ShapeDtypeStruct((1, tokens, width), jnp.float32)
    head = jax.ShapeDtypeStruct((width, vocab), jnp.float32)
    target = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    weight = jax.ShapeDtypeStruct((1, tokens), jnp.float32)
    step = jax.jit(jax.grad(lambda x, head, t, w: weighted_cross_entropy(x, head, t, w, 4096)[0], argnums=(0, 1)))
    memory = step.lower(x, head, target, weight).compile().memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < (tokens + 8 * width) * vocab * 4 / 8
