"""The kernel of the logits' gradient: what it writes, where it is taken, and that the loss's gradients are those of the loss without it."""

import functools
import unittest.mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.nn import loss, loss_kernel, triton, weighted_cross_entropy
from marin.nn.loss_kernel import by_kernel, has_loss_kernel, reference
from marin.parallel.mesh import ambient, make_mesh

CAPS = [None, 15.0]


def block(vocab: int = 384, tokens: int = 16):
    keys = jax.random.split(jax.random.key(0), 5)
    logits = 3 * jax.random.normal(keys[0], (2, tokens, vocab), jnp.bfloat16)
    target = jax.random.randint(keys[1], (2, tokens), 0, vocab, jnp.int32)
    top, scale = 9.0 + jax.random.uniform(keys[2], (2, tokens, 1)), jax.random.uniform(keys[3], (2, tokens, 1))
    return logits, top, scale, target, jax.random.uniform(keys[4], (2, tokens))


def plain(logits, top, scale, target, weight, softcap):
    given = np.asarray(logits, np.float64)
    bounded = np.tanh(given / softcap) if softcap else np.zeros(given.shape)
    capped = softcap * bounded if softcap else given
    grad = np.exp(capped - np.asarray(top, np.float64)) * np.asarray(scale, np.float64)
    grad -= np.asarray(weight, np.float64)[..., None] * (np.asarray(target)[..., None] == np.arange(logits.shape[-1]))
    return grad * (1 - bounded**2)


@pytest.mark.parametrize("softcap", CAPS)
@pytest.mark.parametrize("vocab", [128, 384, 1024])
def test_kernel_and_its_reference_write_the_gradient(softcap, vocab):
    given = block(vocab)
    by_hand = plain(*given, softcap)
    for made in (by_kernel(*given, softcap, interpret=True), reference(*given, softcap)):
        assert made.dtype == jnp.bfloat16 and made.shape == given[0].shape
        np.testing.assert_allclose(np.asarray(made, np.float64), by_hand, rtol=2**-7, atol=1e-6)


@pytest.fixture
def kernel(monkeypatch):
    """The kernel, interpreted, wherever its shape allows it."""
    interpreted = unittest.mock.Mock(side_effect=functools.partial(by_kernel, interpret=True))
    monkeypatch.setattr(loss_kernel, "by_kernel", interpreted)
    monkeypatch.setattr(loss_kernel, "has_triton", lambda: True)
    return interpreted


def arguments():
    keys = jax.random.split(jax.random.key(1), 4)
    x = jax.random.normal(keys[0], (2, 48, 32), jnp.bfloat16)
    head = 0.3 * jax.random.normal(keys[1], (32, 256), jnp.bfloat16)
    return x, head, jax.random.randint(keys[2], (2, 48), 0, 256), jax.random.uniform(keys[3], (2, 48))


def gradients(x, head, target, weight, softcap, block=32):
    def total(x, head):
        return sum(weighted_cross_entropy(x, head, target, weight, block, softcap, 1e-3))

    return jax.grad(total, (0, 1))(x, head)


@pytest.mark.parametrize("softcap", CAPS)
def test_gradients_of_the_loss_are_those_without_the_kernel(kernel, monkeypatch, softcap):
    with_it = gradients(*arguments(), softcap)
    assert kernel.called
    monkeypatch.setattr(loss, "has_loss_kernel", lambda logits: False)
    for one, other in zip(with_it, gradients(*arguments(), softcap), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.02, atol=2e-3)


def test_each_of_several_devices_runs_it_on_its_own_logits(kernel, monkeypatch):
    """XLA cannot divide a kernel, but the loss of several devices is divided before it comes to one."""
    with ambient(make_mesh({"data": 2})):
        with_it = jax.jit(functools.partial(gradients, softcap=None, block=16))(*arguments())
        assert {call.args[0].shape for call in kernel.call_args_list} == {(1, 16, 256)}
        kernel.reset_mock()
        monkeypatch.setattr(loss, "has_loss_kernel", lambda logits: False)
        without = jax.jit(functools.partial(gradients, softcap=None, block=16))(*arguments())
    assert not kernel.called
    for one, other in zip(with_it, without, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("softcap", CAPS)
def test_derivative_of_the_gradient_is_the_one_without_the_kernel(kernel, monkeypatch, softcap):
    """Sophia's: the kernel itself has none."""
    x, head, target, weight = arguments()
    tangents = jax.random.normal(jax.random.key(2), x.shape, x.dtype), jnp.zeros_like(head)

    def second():
        return jax.jvp(lambda x, head: gradients(x, head, target, weight, softcap), (x, head), tangents)[1]

    with_it = second()
    assert kernel.called
    monkeypatch.setattr(loss, "has_loss_kernel", lambda logits: False)
    for one, other in zip(with_it, second(), strict=True):
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.linalg.norm(one - other) <= 0.03 * np.linalg.norm(other)


def test_kernel_is_taken_for_whole_blocks_in_bfloat16_on_one_nvidia_gpu(monkeypatch):
    def taken(*shape, dtype=jnp.bfloat16):
        return has_loss_kernel(jax.ShapeDtypeStruct(shape, dtype))

    assert not taken(16, 256, 128_256)  # a processor
    device = unittest.mock.Mock(platform="gpu", compute_capability="9.0")
    device.client.platform_version = "PJRT C API\ncuda 13000"
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert taken(16, 256, 128_256)
    assert not taken(16, 256, 128_256, dtype=jnp.float32)
    assert not taken(16, 256, 50_257)
    assert not taken(1, 9, 128_256)
    assert not taken(16, 1024, 2**18)  # places are counted in 32 bits
    with monkeypatch.context() as patch:
        patch.setattr(device, "compute_capability", "7.5")  # a T4, which has no bfloat16
        assert not taken(16, 256, 128_256)
    monkeypatch.setattr(triton, "ambient_axes", lambda: {"data": 2})
    assert not taken(16, 256, 128_256)


def test_a_loss_in_float32_does_not_ask_for_devices(monkeypatch):
    """What describes a model traces it so, before processes know each other and JAX may begin."""
    monkeypatch.setattr(jax, "local_devices", unittest.mock.Mock(side_effect=AssertionError("JAX has begun")))
    assert not has_loss_kernel(jax.ShapeDtypeStruct((1, 16, 128), jnp.float32))
