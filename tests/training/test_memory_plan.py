"""The memory plan of a run: exact for what is stored, near for activations, and refused where it does not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from experiments import marin_8b, marin_32b
from experiments.sharding_plan import main
from marin.data.rows import Batch
from marin.errors import HardwareError
from marin.models import LlamaConfig
from marin.nn import Precision
from marin.optim import AdamConfig
from marin.parallel import Parallelism
from marin.resources import CpuOnlyConfig, GpuConfig
from marin.training import SimpleTrainConfig
from marin.training.memory_plan import activation_bytes, plan_memory
from marin.training.placement import parameter_shapes, state_shapes
from marin.training.state import StepConfig, make_train_step

SMALL = LlamaConfig(seq_len=128, hidden_dim=64, intermediate_dim=128, num_layers=2, num_heads=4, num_kv_heads=2)
VOCAB = 512


def _train(resources=None, **options):
    options = {"train_batch_size": 16, "num_train_steps": 10, "learning_rate": 0.01} | options
    return SimpleTrainConfig(resources or GpuConfig(8, "H100"), **options)


def test_plan_of_stored_arrays_is_exact():
    plan = plan_memory(SMALL, VOCAB, _train(parallelism=Parallelism(data=2, fsdp=2, tensor=2)))
    vectors = 5 * 64
    matrices = plan.num_parameters - vectors
    assert plan.parameters == plan.gradients == 4 * (matrices // 4 + vectors)
    counters = plan.optimizer_state - 2 * plan.parameters
    assert 0 < counters < 100
    whole = plan_memory(SMALL, VOCAB, _train(parallelism=Parallelism()))
    assert whole.parameters == 4 * whole.num_parameters


@pytest.mark.slow
def test_sequence_parallelism_and_recomputed_layers_need_less_for_activations():
    def activations(model=SMALL, **parallelism):
        return plan_memory(model, VOCAB, _train(parallelism=Parallelism(**parallelism)), 8).activations

    kept = dataclasses.replace(SMALL, gradient_checkpointing=False, num_layers=6)
    recomputed = dataclasses.replace(SMALL, num_layers=6)
    assert activations(recomputed) < 0.6 * activations(kept)
    assert activations(data=1, fsdp=2, sequence=4) < activations(data=1, fsdp=2, tensor=4)


def test_plan_that_does_not_fit_is_refused_with_what_would_help():
    with pytest.raises(HardwareError, match=r"a RTX 3080 has 10 GiB.*parallelism.fsdp"):
        model = dataclasses.replace(marin_8b.marin_8b, num_layers=1)
        plan_memory(model, marin_8b.VOCAB_SIZE, _train(GpuConfig(2, "RTX 3080"))).check()


DEEP = dataclasses.replace(SMALL, seq_len=512, hidden_dim=128, intermediate_dim=512, num_layers=8)
ALONE = {"data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}


def test_estimate_of_activations_is_smaller_the_more_is_recomputed():
    def estimate(choice):
        model = dataclasses.replace(DEEP, gradient_checkpointing=choice)
        shapes = state_shapes(model, VOCAB, AdamConfig().build(parameter_shapes(model, VOCAB), 10), None).model
        return activation_bytes(shapes, (8, model.seq_len), ALONE, StepConfig(Precision("f32"), loss_block=512))

    assert 2 * estimate(True) < estimate("products") < 0.7 * estimate(False)


@pytest.mark.slow
def test_estimate_of_activations_is_near_what_xla_needs():
    # XLA on a processor merges what is to be computed again with what was, so only a model without can be compared.
    model = dataclasses.replace(DEEP, gradient_checkpointing=False)
    rows = 8
    optimizer = AdamConfig().build(parameter_shapes(model, VOCAB), 10)
    state = state_shapes(model, VOCAB, optimizer, None)
    config = StepConfig(Precision("f32"), loss_block=512)
    step = make_train_step(optimizer, AdamConfig().schedule(10), config)
    shape = (rows, model.seq_len)
    batch = Batch(*(jax.ShapeDtypeStruct(shape, kind) for kind in (jnp.int32, jnp.int32, jnp.float32, jnp.int32)))
    # Tests compile without optimizations, and then everything is kept whatever is to be recomputed.
    usual = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    program = jax.jit(step, donate_argnums=0).lower(state, batch).compile(compiler_options=usual)
    needed = program.memory_analysis().temp_size_in_bytes
    gradients = 4 * model.total_trainable_params(VOCAB)
    estimate = activation_bytes(state.model, shape, ALONE, config) + gradients
    assert 0.5 < estimate / needed < 2.0, (estimate, needed)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [marin_8b, marin_32b], ids=["8b", "32b"])
def test_large_models_trace_and_shard_on_256_devices(experiment, capsys):
    model = experiment.marin_8b if experiment is marin_8b else experiment.marin_32b
    main(model, experiment.VOCAB_SIZE, experiment.train_config, [])
    shown = capsys.readouterr().out
    assert "on 256 devices: fsdp 256" in shown
    assert "optimizer state" in shown and "v5p has" in shown


def test_sharding_plan_is_printed_as_a_user_asks_for_it(capsys):
    main(SMALL, VOCAB, _train(CpuOnlyConfig(), parallelism=Parallelism(fsdp=4)), ["--devices", "8"])
    assert "on 8 devices: data 2, fsdp 4" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(SMALL, VOCAB, _train(), ["--devices", "7"])
    assert stopped.value.code == 2


@pytest.mark.parametrize("devices", ["0", "-4"])
def test_plan_for_no_devices_is_refused(devices, capsys):
    with pytest.raises(SystemExit):
        main(SMALL, VOCAB, _train(), ["--devices", devices])
    assert "at least 1 device is needed" in capsys.readouterr().err


def test_plan_for_other_devices_than_those_that_train_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(SMALL, VOCAB, _train(), ["--devices", "8", "--train"])
    shown = capsys.readouterr()
    assert stopped.value.code == 2
    assert "--train trains on the config's" in shown.err and "FLOPs" not in shown.out
