"""The programs of a run's training step, one for each batch size, compiled before the clock starts."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from marin.execution.replaced_code import read_sources
from marin.models.lm import shapes_of
from marin.parallel import distributed
from marin.parallel.mesh import ambient, num_batch_shards, replicated
from marin.training.beside import beside
from marin.training.programs import Compilation, choose_compilation, compile_traced, trace_program
from marin.training.run_setup import RunSetup
from marin.training.state import StepConfig, TrainState, make_train_step
from marin.training.traced_flops import TracedFlops, calls_out_of, held_bytes, tracing_flops


@dataclasses.dataclass(frozen=True)
class CompiledSteps:
    """The training step as programs.

    Args:
        of_size: by batch size; each takes (state, batch), and gives the state's memory to the state that it returns.
        calls_out: by what the programs call out of themselves, that which made the first state included.
        model_calls_out: by what the model does so where it is scored.
        held: how much the largest of these programs holds beside what it is given, in bytes, and its largest array, in words.
        traced_flops: may still be counted; None for a run that goes on, whose `run.json` has them.
        compile_time: in seconds.
    """

    compilation: Compilation
    of_size: dict[int, Any]
    calls_out: set[str]
    model_calls_out: set[str]
    held: tuple[int, str]
    traced_flops: concurrent.futures.Future[TracedFlops] | None
    compile_time: float


def compile_steps(setup: RunSetup, first_state: Callable[[], TrainState]) -> tuple[CompiledSteps, TrainState]:
    """Compiles the step for each batch size that is still to come; every process in the way that the first one chooses.

    Args:
        first_state: gives the state that training begins with.
    Raises:
        ConfigError: if the model begins with values that its optimizer or the exports asked for cannot take.
        HardwareError: if this compiler does not take the options that the run began with.
    """
    begin = time.perf_counter()
    config, saved = setup.config, setup.saved
    compilation = choose_compilation(config, setup.shapes) if saved is None else Compilation.from_json(saved)
    compilation = Compilation.from_json(distributed.of_main(compilation.as_json()))
    making = in_the_making(first_state, in_thread=config.train.resources.platform == "cpu" and jax.process_count() == 1)
    if distributed.is_main():  # not before, as what is fastest was measured
        beside("sources", read_sources)
    sizes = config.train.batch_schedule.sizes(setup.first_step, config.train.num_train_steps)
    traced_flops = None
    if saved is None:
        first = _step_config(setup, compilation, sizes[0])
        traced_flops = tracing_flops(config.model, config.vocab_size, first, config.seq_len)
    layout = (jax.tree.map(lambda leaf: leaf.sharding, setup.layout), replicated(setup.mesh))
    of_size: dict[int, Any] = {}
    calls_out, held = setup.initial_calls_out, setup.initial_held
    for size in sizes:
        with ambient(setup.mesh):
            step = make_train_step(setup.optimizer, setup.rate, _step_config(setup, compilation, size))
            program = trace_program(step, setup.layout, setup.batch_of(0, size), out_shardings=layout)
            if making.done():  # a first state that is refused is so before the compiler is kept busy for minutes
                making.result()
            calls_out = calls_out | calls_out_of(program.jaxpr)
            held = max(held, held_bytes(program.jaxpr))
            of_size[size] = compile_traced(program, compilation)
    # It is traced once more only to say where the calls come from.
    model_calls_out = _calls_out_of_model(setup) if calls_out else set()
    state = making.result()
    compile_time = time.perf_counter() - begin
    distributed.meet("after compiling")
    return CompiledSteps(compilation, of_size, calls_out, model_calls_out, held, traced_flops, compile_time), state


def in_the_making(first_state: Callable[[], TrainState], *, in_thread: bool) -> concurrent.futures.Future[TrainState]:
    """The state, made in a thread if it is to be made beside other work.

    Making it is compiling some forty small programs on one core, and tracing the step keeps another busy. Devices have to be
    idle where the compiler measures on them what is fastest, and several processes must begin their programs in one order.
    """
    if in_thread:
        return beside("first-state", first_state)
    made = concurrent.futures.Future[TrainState]()
    made.set_result(first_state())
    return made


def _calls_out_of_model(setup: RunSetup) -> set[str]:
    model = shapes_of(setup.config.model, setup.config.vocab_size)
    ids = jax.ShapeDtypeStruct((num_batch_shards(setup.mesh), setup.config.seq_len), jnp.int32)
    with ambient(setup.mesh):
        program, _, _ = eqx.filter_make_jaxpr(lambda model, ids: model.activations(ids, ids))(model, ids)
    return calls_out_of(program)


def _step_config(setup: RunSetup, compilation: Compilation, batch_size: int) -> StepConfig:
    config = setup.config
    return StepConfig.of(config.train, config.model, compilation.precision, batch_size, num_batch_shards(setup.mesh))
