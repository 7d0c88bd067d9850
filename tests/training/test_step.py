"""The compiled step: micro-batches give the gradient of the whole batch, and a model's own training losses count."""

import dataclasses
import importlib
import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from marin.data.rows import Batch
from marin.errors import ConfigError
from marin.models.llama import LlamaConfig
from marin.nn import reference_attention
from marin.nn.precision import Precision
from marin.nn.trees import named_leaves
from marin.optim import AdamConfig, skip_bad_steps
from marin.optim.sophia import SophiaConfig
from marin.tracking import RunRecord
from marin.training.loop import train_lm
from marin.training.state import StepConfig, in_parts, init_state, make_train_step

# The function `attention` of marin.nn hides the module of its name.
attention_module = importlib.import_module("marin.nn.attention")

ROWS, LENGTH, VOCAB = 8, 32, 64
MODEL = LlamaConfig(
    seq_len=LENGTH,
    hidden_dim=16,
    intermediate_dim=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    gradient_checkpointing=False,
)


class _Recording(eqx.Module):
    """The Llama with a loss of its own: the mean square of its vectors."""

    inner: eqx.Module
    name: str = eqx.field(static=True)

    @property
    def lm_head_DV(self):
        return self.inner.lm_head_DV

    @property
    def logit_softcap(self):
        return None

    def activations(self, tokens_BT, segment_ids_BT):
        return self.inner.activations(tokens_BT, segment_ids_BT)

    def training_activations(self, tokens_BT, segment_ids_BT):
        x_BTD = self.activations(tokens_BT, segment_ids_BT)
        return x_BTD, {self.name: jnp.mean(x_BTD.astype(jnp.float32) ** 2)}


@dataclasses.dataclass(frozen=True)
class _RecordingConfig(LlamaConfig):
    name: str = "size_loss"

    def build(self, vocab_size, *, key):
        return _Recording(super().build(vocab_size, key=key), self.name)


def _batch() -> Batch:
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    weight = (draw.random((ROWS, LENGTH)) < 0.7).astype(np.float32)  # rows of unequal weight
    segments = np.cumsum(draw.random((ROWS, LENGTH)) < 0.1, axis=1).astype(np.int32)
    return Batch(tokens[:, :-1], tokens[:, 1:], weight, segments)


def _step(model, micro_batches: int, optimizer=None, z_loss_weight: float = 1e-3):
    optimizer = optimizer or optax.sgd(1.0)
    config = StepConfig(Precision("f32"), micro_batches, loss_block=16, z_loss_weight=z_loss_weight)
    step = jax.jit(make_train_step(optimizer, lambda step: jnp.ones(()), config))
    return step(init_state(model, optimizer, None), _batch())


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_step_in_micro_batches_takes_the_step_of_the_whole_batch(parts):
    model = MODEL.build(VOCAB, key=jax.random.key(0))
    whole, whole_metrics = _step(model, 1)
    state, metrics = _step(model, parts)
    assert metrics.keys() == whole_metrics.keys()
    for name, value in whole_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, err_msg=name)
    theirs = named_leaves(whole.model)
    for name, value in named_leaves(state.model).items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_step_in_micro_batches_gives_an_optimizer_the_loss_of_the_whole_batch():
    model = MODEL.build(VOCAB, key=jax.random.key(0))
    optimizer = SophiaConfig(learning_rate=0.01, warmup=0).build(eqx.filter(model, eqx.is_array), 10)
    whole, _ = _step(model, 1, optimizer)
    parts, _ = _step(model, 4, optimizer)
    theirs = named_leaves(whole.model)
    for name, value in named_leaves(parts.model).items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-3, atol=2e-5, err_msg=name)


def _diagonal_of_sophia(model_config, precision):
    """The averaged diagonal of the Hessian that Sophia has estimated in the first step."""
    model = model_config.build(VOCAB, key=jax.random.key(0))
    optimizer = SophiaConfig(learning_rate=0.01, warmup=0).build(eqx.filter(model, eqx.is_array), 10)
    step = jax.jit(make_train_step(optimizer, lambda step: jnp.ones(()), StepConfig(precision)))
    one_document = _batch()._replace(segment_ids_BT=np.zeros((ROWS, LENGTH), np.int32))
    state, _ = step(init_state(model, optimizer, None), one_document)
    return named_leaves(state.opt_state[1].diagonal)


def test_curvature_is_that_of_the_loss_without_rounding_to_8_bits():
    wide = dataclasses.replace(MODEL, hidden_dim=128, intermediate_dim=128)
    plain = _diagonal_of_sophia(wide, Precision("f32"))
    for name, value in _diagonal_of_sophia(wide, Precision("f32", "int8")).items():
        np.testing.assert_allclose(value, plain[name], rtol=1e-5, atol=1e-9, err_msg=name)


def test_curvature_does_not_ask_a_fused_kernel_for_a_second_derivative(monkeypatch):
    """Gradients go on to take it: a stand-in that, as cuDNN's, has a derivative and no more."""
    calls = []

    def on_the_host(out):
        calls.append(None)
        return out

    def attend(q, k, v):
        return reference_attention(q, k, v, None)

    def opaque(q, k, v):
        return jax.pure_callback(on_the_host, jax.ShapeDtypeStruct(q.shape, q.dtype), attend(q, k, v))

    @jax.custom_vjp
    def kernel(q, k, v):
        return opaque(q, k, v)

    def backward(saved, grad):
        return jax.vjp(attend, *saved)[1](grad)

    kernel.defvjp(lambda q, k, v: (opaque(q, k, v), (q, k, v)), backward)
    monkeypatch.setattr(attention_module, "_platform", lambda: "gpu")
    monkeypatch.setattr(attention_module, "why_not_cudnn", lambda *arrays, **options: None)
    monkeypatch.setattr(attention_module, "cudnn_attention", lambda q, k, v, segments, window: kernel(q, k, v))
    by_kernel = _diagonal_of_sophia(MODEL, Precision("f32"))
    monkeypatch.undo()
    assert calls
    for name, value in _diagonal_of_sophia(MODEL, Precision("f32")).items():
        np.testing.assert_allclose(by_kernel[name], value, rtol=1e-5, atol=1e-9, err_msg=name)


def test_parts_of_a_batch_have_every_row_once_and_stay_on_their_device():
    rows = jnp.arange(16)
    parts = in_parts(rows, 2)
    assert sorted(np.asarray(parts).ravel().tolist()) == list(range(16))
    # Device d of 4 holds rows 4d to 4d + 3, and a part gives it 2 of its own.
    for part in np.asarray(parts):
        assert [row // 4 for row in part] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.slow
def test_training_in_micro_batches_reaches_what_whole_batches_reach(make_config):
    whole = train_lm(make_config("whole", num_train_steps=4))
    parts = train_lm(make_config("parts", num_train_steps=4, per_device_parallelism=2))
    theirs = named_leaves(whole.model)
    for name, value in named_leaves(parts.model).items():
        np.testing.assert_allclose(value, theirs[name], rtol=2e-2, atol=2e-3, err_msg=name)


def test_micro_batches_that_do_not_divide_a_batch_are_refused_with_what_would(make_config):
    with pytest.raises(ConfigError, match="`per_device_parallelism` is 3.*use a divisor of 8"):
        make_config(per_device_parallelism=3)


def test_micro_batches_larger_than_a_batch_take_it_whole(make_config):
    assert make_config(per_device_parallelism=100).train.micro_batches(8, 1) == 1


def test_losses_of_a_model_train_it_and_are_recorded_by_name_but_never_scored(make_config):
    plain, recording = make_config("plain", num_train_steps=20), make_config("own", num_train_steps=20)
    fields = {field.name: getattr(MODEL, field.name) for field in dataclasses.fields(MODEL)}
    recording = dataclasses.replace(recording, model=_RecordingConfig(**fields))
    train_lm(plain)
    train_lm(recording)
    steps = list(RunRecord.open(Path(recording.output_path)).steps())
    without = list(RunRecord.open(Path(plain.output_path)).steps())
    assert steps[0]["loss"] == without[0]["loss"]  # the same weights, scored alike
    assert all(step["size_loss"] > 0 for step in steps)
    assert steps[-1]["loss"] != without[-1]["loss"]  # it had an effect


@pytest.mark.parametrize("name", ["loss", "balance/loss"])
def test_a_loss_under_a_name_of_the_framework_is_refused(name):
    model = _Recording(MODEL.build(VOCAB, key=jax.random.key(0)), name)
    with pytest.raises(ConfigError, match="names a loss"):
        _step(model, 1)


def test_products_of_bfloat16_on_a_processor_are_written_in_it():
    """With a float32 result they would miss its matrix instructions and run at half the rate or less."""
    tokens = 512
    config = LlamaConfig(seq_len=tokens, hidden_dim=64, intermediate_dim=128, num_layers=1, num_heads=2, num_kv_heads=1)
    model, optimizer = config.build(97, key=jax.random.key(0)), optax.sgd(1.0)
    rows = np.zeros((2, tokens), np.int32)
    batch = Batch(rows, rows, np.ones((2, tokens), np.float32), rows)
    step = make_train_step(optimizer, lambda count: jnp.ones(()), StepConfig(Precision("bf16")))
    program = jax.jit(step).lower(init_state(model, optimizer, None), batch).as_text()
    products = re.findall(r"dot_general.* : \(tensor<\S*xbf16>, tensor<\S*xbf16>\) -> tensor<\S*x(\w+)>", program)
    assert len(products) > 20
    assert set(products) == {"bf16"}


def test_a_step_that_is_skipped_moves_neither_the_schedule_nor_the_average():
    config = AdamConfig(
        learning_rate=0.1, lr_schedule="linear", warmup=0, decay=None, min_lr_ratio=0.0, max_grad_norm=None
    )
    model = MODEL.build(VOCAB, key=jax.random.key(0))
    optimizer, schedule = skip_bad_steps(config.build(eqx.filter(model, eqx.is_array), 10)), config.schedule(10)
    step = jax.jit(make_train_step(optimizer, schedule, StepConfig(Precision("f32"), ema_beta=0.5)))
    state = init_state(model, optimizer, 0.5)
    rates = []
    for number in range(6):
        bad = number in (1, 2, 4)
        batch = _batch()
        batch = Batch(
            batch.tokens_BT, batch.targets_BT, batch.weight_BT * np.float32("nan" if bad else 1), batch.segment_ids_BT
        )
        before = state
        state, metrics = step(state, batch)
        rates.append(float(metrics["learning_rate"]))
        same = [
            bool(jnp.array_equal(one, other))
            for one, other in zip(*map(jax.tree.leaves, (before.average, state.average)), strict=True)
        ]
        assert all(same) if bad else not any(same)
    assert rates == pytest.approx([0.1, 0.09, 0.09, 0.09, 0.08, 0.08])
    assert int(state.opt_state.skipped) == 3
