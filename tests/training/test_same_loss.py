"""However devices share the work, training takes the same steps: losses, gradient norms and final parameters."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.hackable_transformer_starter_template import HackableTransformerConfig
from marin.data.rows import Batch
from marin.models.gpt import GptConfig
from marin.nn import Precision, RmsNormConfig
from marin.nn.trees import named_leaves
from marin.optim import AdamConfig, MuonConfig, gpt_muon
from marin.parallel.mesh import ambient, batch_sharding, make_mesh, replicated
from marin.training.placement import parameter_shapes, trace_initial_state
from marin.training.state import StepConfig, make_train_step

ROWS, LENGTH, VOCAB, STEPS = 8, 32, 64, 3
MODEL = HackableTransformerConfig(
    seq_len=LENGTH,
    hidden_dim=32,
    intermediate_dim=48,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    use_attention_sink=True,
    qk_norm=RmsNormConfig(),
    tie_word_embeddings=True,
)
MUON = MuonConfig(learning_rate=0.02, adam_lr=0.01, warmup=0, decay=0.5)
# With the usual 1e-8, Adam makes a step of 0.8 times the rate of a gradient of 4e-8 that is all rounding, where others are 1e-3.
ADAM = AdamConfig(learning_rate=0.01, warmup=0, epsilon=1e-6)
# Every number of devices and every axis, alone and mixed. Tensor 4 has more devices than the model has key heads.
MESHES = [
    {"data": 2},
    {"data": 8},
    {"fsdp": 2},
    {"fsdp": 4},
    {"fsdp": 8},
    {"tensor": 2},
    {"tensor": 4},
    {"sequence": 2},
    {"sequence": 4},
    {"data": 2, "fsdp": 2},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 2, "sequence": 2, "tensor": 2},
]


def _batch(step: int) -> Batch:
    draw = np.random.default_rng(step)
    tokens = draw.integers(0, VOCAB, (ROWS, LENGTH + 1)).astype(np.int32)
    weight = (draw.random((ROWS, LENGTH)) < 0.8).astype(np.float32)
    segments = np.cumsum(draw.random((ROWS, LENGTH)) < 0.1, axis=1).astype(np.int32)
    return Batch(tokens[:, :-1], tokens[:, 1:], weight, segments)


def _train(sizes, optimizer, *, model=MODEL, micro_batches=1):
    """The metrics of each step, and the final parameters."""
    mesh = make_mesh(sizes)
    built = optimizer.build(parameter_shapes(model, VOCAB), 10)
    state = trace_initial_state(model, VOCAB, built, ema_beta=0.9).run(mesh)
    config = StepConfig(Precision("f32"), micro_batches, loss_block=64, z_loss_weight=1e-3, ema_beta=0.9)
    where = (jax.tree.map(lambda leaf: leaf.sharding, state), replicated(mesh))
    step = jax.jit(make_train_step(built, optimizer.schedule(10), config), donate_argnums=0, out_shardings=where)
    metrics = []
    for number in range(STEPS):
        with ambient(mesh):
            state, measured = step(state, jax.device_put(_batch(number), batch_sharding(mesh)))
        metrics.append([float(measured[name]) for name in ("loss", "z_loss", "grad_norm")])
    return metrics, {name: np.asarray(value) for name, value in named_leaves((state.model, state.average)).items()}


def _assert_same(one, other):
    np.testing.assert_allclose(other[0], one[0], rtol=2e-5)
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def alone():
    """The run on one device, by optimizer; made when first asked for."""
    made = {}

    def run(optimizer, **options):
        key = (type(optimizer), tuple(options))
        if key not in made:
            made[key] = _train({}, optimizer, **options)
        return made[key]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"fsdp": 2, "sequence": 2, "tensor": 2}], ids=lambda sizes: "-".join(f"{a}{n}" for a, n in sizes.items())
)
def test_three_ways_of_sharing_at_once_take_the_steps_of_one_device(sizes, alone):
    _assert_same(alone(MUON), _train(sizes, MUON))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [MUON, ADAM], ids=["muon", "adam"])
@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: "-".join(f"{a}{n}" for a, n in sizes.items()))
def test_any_number_of_devices_shared_in_any_way_takes_the_steps_of_one(sizes, optimizer, alone):
    _assert_same(alone(optimizer), _train(sizes, optimizer))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"fsdp": 2, "tensor": 2}, {"data": 2, "sequence": 2}], ids=str)
def test_micro_batches_and_rematerialized_layers_are_shared_alike(sizes):
    model = dataclasses.replace(MODEL, num_layers=2, tie_word_embeddings=False, gradient_checkpointing=False)
    _assert_same(_train({}, ADAM, model=model), _train(sizes, ADAM, model=model, micro_batches=2))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"data": 2}, {"fsdp": 2}, {"fsdp": 2, "tensor": 2}], ids=str)
def test_the_gpt_and_its_optimizer_take_the_same_steps_on_several_devices(sizes, monkeypatch):
    # With its 1e-10 a gradient that is all rounding makes a whole step, of 0.3 in an embedding.
    monkeypatch.setattr(gpt_muon, "_EPSILON", 1e-4)
    model = GptConfig(seq_len=LENGTH, hidden_dim=32, num_layers=2, num_heads=4)
    optimizer = gpt_muon.GptMuonConfig(warmup=0)
    _assert_same(_train({}, optimizer, model=model), _train(sizes, optimizer, model=model))
