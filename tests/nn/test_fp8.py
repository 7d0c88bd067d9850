"""FP8 products: the kernel that writes a matrix both ways, where it is taken, and what of the loss is in FP8."""

import contextlib
import re
import unittest.mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.data.rows import Batch
from marin.models.llama import LlamaConfig
from marin.nn import Precision, fp8, triton, weighted_cross_entropy
from marin.training.state import StepConfig, loss_of_rows

_TURN = fp8._turn


def _interpreted(tensor_NI, inverse_1, dtype):
    return _TURN(tensor_NI, inverse_1, dtype, interpret=True)


def _same(one, other) -> None:
    np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def _relative(one, other) -> float:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


# --- the kernel ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [fp8.FORWARD, fp8.BACKWARD])
@pytest.mark.parametrize("given", [jnp.bfloat16, jnp.float32])
def test_kernel_writes_what_is_rounded_and_the_same_turned(dtype, given):
    tensor = (1e3 * jax.random.normal(jax.random.key(0), (256, 384))).astype(given)
    inverse = jnp.full((1,), 0.25)
    plain, turned = jax.jit(_interpreted, static_argnums=2)(tensor, inverse, dtype)
    assert plain.dtype == turned.dtype == dtype
    _same(plain, fp8._rounded(tensor, inverse[0], dtype))
    _same(turned, plain.T)


def test_product_with_the_kernel_is_the_one_without(monkeypatch):
    x, weight, grad = (
        jax.random.normal(key, (128, 128), jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3)
    )

    def all_three():
        y, backward = jax.vjp(fp8.fp8_product, x, weight)
        return y, *backward(grad)

    without = all_three()
    kernel = unittest.mock.Mock(side_effect=_interpreted)
    monkeypatch.setattr(fp8, "_turn", kernel)
    monkeypatch.setattr(fp8, "_has_kernel", lambda tensor: True)
    for one, other in zip(all_three(), without, strict=True):
        _same(one, other)
    # What is multiplied and its gradient; the weights are small, and left to XLA.
    assert [call.args[2] for call in kernel.call_args_list] == [fp8.FORWARD, fp8.BACKWARD]


def test_kernel_is_taken_for_whole_tiles_on_one_nvidia_gpu(monkeypatch):
    def has_kernel(*shape):
        return fp8._has_kernel(jax.ShapeDtypeStruct(shape, jnp.bfloat16))

    assert not has_kernel(256, 128)  # a processor
    device = unittest.mock.Mock(platform="gpu", compute_capability="9.0")
    device.client.platform_version = "PJRT C API\ncuda 13000"
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert has_kernel(256, 128)
    assert not has_kernel(256, 130)
    assert not has_kernel(2**16, 2**15)  # places are counted in 32 bits
    with monkeypatch.context() as patch:
        patch.setattr(triton, "ambient_axes", lambda: {"data": 2})
        assert not has_kernel(256, 128)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.13.0")
        assert not has_kernel(256, 128)
    device.client.platform_version = "ROCm 7"
    assert not has_kernel(256, 128)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_this_jax_lowers_the_kernel_for_nvidia():
    shapes = jax.ShapeDtypeStruct((256, 128), jnp.bfloat16), jax.ShapeDtypeStruct((1,), jnp.float32)
    traced = jax.jit(lambda x, inverse: fp8._turn(x, inverse, fp8.BACKWARD)).trace(*shapes)
    with _described_gpu():
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("__gpu$xla.gpu.triton") == 1


@contextlib.contextmanager
def _described_gpu():
    """Newer versions of JAX ask what the GPU is."""
    try:
        from jax._src.pallas.triton import gpu_info
    except ImportError:
        yield
        return
    described = gpu_info.get_gpu_info_from_version(gpu_info.GpuVersion["H200"])
    with unittest.mock.patch.object(gpu_info, "get_gpu_info", return_value=described):
        yield


def test_largest_value_that_is_known_is_not_looked_for():
    tensor = jnp.array([[0.5, -0.25]])
    values, scale = fp8.to_fp8(tensor, fp8.BACKWARD, jnp.float32(4.0))
    _same(values.astype(jnp.float32) * scale, tensor)
    assert float(scale) > float(fp8.to_fp8(tensor, fp8.BACKWARD).scale)


# --- the loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_fp8_in_the_loss_touches_the_gradient_of_its_vectors_alone(softcap, z_loss):
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (2, 16, 128))
    head = 0.1 * jax.random.normal(keys[1], (128, 256))
    target = jax.random.randint(keys[2], (2, 16), 0, 256)
    weight = 3.0 * jax.random.uniform(keys[3], (2, 16))

    def loss(in_fp8):
        def run(x, head):
            return sum(weighted_cross_entropy(x, head, target, weight, 10, softcap, z_loss, in_fp8=in_fp8))

        return jax.jit(jax.value_and_grad(run, argnums=(0, 1)))(x, head)

    (plain, (plain_x, plain_head)), (value, (grad_x, grad_head)) = loss(False), loss(True)
    _same(value, plain)
    _same(grad_head, plain_head)
    assert 1e-4 < _relative(grad_x, plain_x) < 0.07


def test_loss_in_fp8_that_overflows_has_no_gradient_that_passes():
    x = jnp.full((1, 16, 128), 1e20)
    head, target = jnp.full((128, 256), 1e20), jnp.zeros((1, 16), jnp.int32)

    def loss(x):
        return sum(weighted_cross_entropy(x, head, target, jnp.ones((1, 16)), 16, in_fp8=True))

    value, grad = jax.value_and_grad(loss)(x)
    assert not bool(jnp.isfinite(value))
    assert not bool(jnp.any(jnp.isfinite(grad)))


@pytest.mark.parametrize("products", [None, "int8", "fp8"])
def test_training_in_fp8_multiplies_the_gradient_of_logits_in_fp8(products):
    vocab, rows, tokens = 384, 2, 32
    config = LlamaConfig(
        seq_len=tokens, hidden_dim=128, intermediate_dim=128, num_layers=1, num_heads=2, num_kv_heads=2
    )
    model = config.build(vocab, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    ids = jnp.zeros((rows, tokens), jnp.int32)
    batch = Batch(ids, ids, jnp.ones((rows, tokens)), ids)

    def loss(params):
        return loss_of_rows(params, static, batch, jnp.float32(1.0), StepConfig(Precision("bf16", products)))[0]

    program = str(jax.make_jaxpr(jax.grad(loss))(params))
    assert bool(re.search(rf"e5m2\[\d+,{vocab}\]", program)) == (products == "fp8")
    assert bool(re.search(r"e5m2\[\d+,128\]", program)) == (products == "fp8")  # of layers
