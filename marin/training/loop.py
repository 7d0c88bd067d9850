"""The training loop: set-up, compile, step, record, checkpoint, finish. It reads top to bottom.

Killed at any instant, it loses at most the work since the last checkpoint; started again, it goes through the same
states as if it had never stopped, because a batch is a pure function of the seed and the step, and everything else is in
the checkpoint.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from marin.data.loader import BatchRow, open_batches
from marin.data.prefetch import Prefetcher
from marin.data.rows import Batch
from marin.data.tokenizer import Tokenizer
from marin.errors import Terminated
from marin.main_module import module_of
from marin.models.lm import count_parameters
from marin.optim import skip_bad_steps
from marin.optim.hyperball import check_radii
from marin.parallel import distributed
from marin.parallel.mesh import ambient, check_batch, num_batch_shards, replicated, run_mesh
from marin.storage import files
from marin.tracking import RunWriter, SilentRunWriter
from marin.tracking.console import TrainingProgress
from marin.tracking.mirrors import Mirrors, names_of, open_mirrors
from marin.tracking.run_record import plan_of_measures
from marin.training.bad_step import keeping_state_before_bad_step
from marin.training.budget import BudgetWatch, budget_is_spent, kept_steps
from marin.training.checkpoint_writer import CheckpointWriter
from marin.training.clock import StopRequest, TrainingClock
from marin.training.compile_cache import use_compile_cache
from marin.training.config import TrainLmConfig
from marin.training.hf_exports import HfExporter
from marin.training.host_memory import keep_freed_memory
from marin.training.placement import initial_state, parameter_shapes
from marin.training.preflight import (
    check_data,
    check_devices,
    check_tokenizer,
    keep_to_cpus,
    take_gpu_memory,
)
from marin.training.profiling import Profiler
from marin.training.programs import Compilation, choose_compilation, compile_traced, trace_program
from marin.training.recorder import StepRecorder
from marin.training.run_info import (
    check_log,
    check_same_data,
    check_same_run,
    ensure_finished,
    finish,
    machine_of,
    opening,
    read_run_info,
    warning_of_larger,
    write_run_info,
)
from marin.training.starting_point import starting_point
from marin.training.state import StepConfig, TrainState, evaluation_model, make_train_step
from marin.training.traced_flops import calls_out_of, tracing_flops

# Measures a model during training: (model, limit on batches) -> figures by name.
Evaluate = Callable[[Any, int | None], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Something to measure during training at a pace of its own, with the clock paused under its name.

    Args:
        every: steps between two.
        measure: (model, steps that it has been trained) -> figures by name; with none nothing is recorded.
        at_end: whether it is measured after the last step, whatever its number.
    """

    name: str
    every: int
    measure: Callable[[Any, int], dict[str, float]]
    at_end: bool = False


def train_lm(
    config: TrainLmConfig, evaluate: Evaluate | None = None, measurements: Sequence[Measurement] = ()
) -> TrainState:
    """Trains as `_train` says, together with the other processes of a multi-host run where there are some."""
    # What says how a processor is used must come before anything that makes JAX look at its devices.
    keep_to_cpus(config.train.resources)
    take_gpu_memory(config.train.resources)
    if config.train.resources.platform == "cpu":
        keep_freed_memory()
    distributed.start()
    with distributed.taking_part():
        return _train(config, evaluate, measurements)


def _train(config: TrainLmConfig, evaluate: Evaluate | None, measurements: Sequence[Measurement]) -> TrainState:
    """Trains until `num_train_steps`, from the last checkpoint where there is one, and returns the final state.

    Raises:
        ConfigError, HardwareError: before anything is computed, if the config cannot run on this machine.
        NonFiniteLossError: if the loss or gradient norm is NaN or infinite and `skip_bad_steps` is off, or the optimizer
            itself makes such numbers.
        Terminated: another process was told to stop, so that this one has too.
        CheckpointError: if checkpoints are there and none is whole, or one cannot be written.
    """
    # ---- set-up: devices, data, model, optimizer -------------------------------------------------------------------
    begin = time.perf_counter()
    train, schedule = config.train, config.train.batch_schedule
    use_compile_cache()
    check_devices(train.resources)
    mesh = run_mesh(train.resources, train.parallelism)
    for _, batch_size in schedule.entries:
        check_batch(batch_size, config.seq_len, mesh)
    directory = files.local_path(config.output_path)
    check_same_run(config, directory)
    check_log(directory)
    tokenizer = Tokenizer.load(config.tokenizer)
    source = open_batches(config.data, config.seq_len, tokenizer.bos_id, schedule.offset_at)
    check_tokenizer(config, source, tokenizer)
    check_same_data(directory, source, tokenizer)

    optimizer_config = train.build_optimizer()
    shapes = parameter_shapes(config.model, config.vocab_size)
    optimizer = optimizer_config.build(shapes, train.num_train_steps)
    optimizer = skip_bad_steps(optimizer) if train.skip_bad_steps else optimizer
    state = initial_state(config.model, config.vocab_size, optimizer, mesh, seed=train.seed, ema_beta=train.ema_beta)
    start = starting_point(config, directory, state, optimizer, tokenizer, source)
    state, restored = start.state, start.restored
    first_step = 0 if restored is None else restored.step
    if restored is None:
        check_radii(state.opt_state)
    exporter = HfExporter(config, directory, state)
    exporter.make_up(state, first_step)
    saved = read_run_info(directory)
    at_budget = first_step > 0 and budget_is_spent(train.budget, directory, saved, first_step)
    if at_budget or first_step >= train.num_train_steps:
        if distributed.is_main():
            ensure_finished(directory, first_step, "budget" if at_budget else None)
        return state
    first_sample = start.first_sample
    last_sample = first_sample + train.num_train_sequences
    check_data(source, first_sample, last_sample)

    # ---- compile, before the clock starts --------------------------------------------------------------------------
    rate = optimizer_config.schedule(train.num_train_steps)

    def batch_of(step: int, batch_size: int) -> Batch:
        first = first_sample + schedule.offset_at(step)
        return distributed.place_batch(
            lambda row, num_rows: source.batch_from(config.data_seed, first + row, num_rows), batch_size, mesh
        )

    def rows_of(step: int) -> list[BatchRow]:
        return source.rows_from(config.data_seed, first_sample + schedule.offset_at(step), schedule.size_at(step))

    def step_config(batch_size: int) -> StepConfig:
        return StepConfig(
            precision=compilation.precision,
            micro_batches=train.micro_batches(batch_size, num_batch_shards(mesh)),
            loss_block=getattr(config.model, "cross_entropy_block_size", None),
            z_loss_weight=train.z_loss_weight or 0.0,
            ema_beta=train.ema_beta,
            watch=train.watch if train.watch.watch_targets else None,
        )

    def compile_step(batch_size: int) -> Any:
        where = (jax.tree.map(lambda leaf: leaf.sharding, state), replicated(mesh))
        with ambient(mesh):
            step = make_train_step(optimizer, rate, step_config(batch_size))
            program = trace_program(step, state, batch_of(0, batch_size), out_shardings=where)
            calls_out.update(calls_out_of(program.jaxpr))
            return compile_traced(program, compilation)

    calls_out: set[str] = set()
    compile_start = time.perf_counter()
    compilation = choose_compilation(config, shapes) if saved is None else Compilation.from_json(saved)
    compilation = Compilation.from_json(distributed.of_main(compilation.as_json()))
    sizes = list(schedule.sizes(first_step, train.num_train_steps))
    traced = (
        tracing_flops(config.model, config.vocab_size, step_config(sizes[0]), config.seq_len) if saved is None else None
    )
    compiled = {size: compile_step(size) for size in sizes}
    compile_time = time.perf_counter() - compile_start
    distributed.meet("after compiling")

    # ---- the record ------------------------------------------------------------------------------------------------
    writer = RunWriter(directory) if distributed.is_main() else SilentRunWriter(directory)
    data = [component.as_json() for component in source.use(last_sample, first_sample)]
    kind = type(config.model)
    model_flops = config.model.flops_per_token(config.vocab_size, config.seq_len)
    described = {
        "model_class": f"{module_of(kind)}:{kind.__qualname__}",
        "num_parameters": count_parameters(shapes),
        "data": data,
        "model_flops_per_token": model_flops,
        "traced_flops_per_token": traced.result().as_json() if traced else None,
        "calls_out": sorted(calls_out),
        "first_sample": first_sample,
        "origin_step": start.origin_step,
    }
    info = write_run_info(config, directory, writer, source, tokenizer, described, compilation)
    writer.append(
        "start",
        from_step=first_step,
        setup_time=round(compile_start - begin, 3),
        compile_time=round(compile_time, 3),
        host=info["host"].get("cpu_model"),
        devices=[device.device_kind for device in mesh.devices.flat],
        **machine_of(train.resources),
        **plan_of_measures([(each.name, each.every) for each in measurements]),
    )
    peak_flops = info["num_chips"] * info["device_flops"]
    progress = TrainingProgress(
        num_steps=train.num_train_steps,
        first_step=first_step,
        tokens_left=config.total_tokens - schedule.offset_at(first_step) * config.seq_len,
        flops_per_token=model_flops,
        peak_flops=peak_flops,
    )
    clock = TrainingClock(writer)
    limit = None if train.budget is None else train.budget.seconds(peak_flops)
    budget = BudgetWatch(limit, kept_steps(directory, first_step) if limit else [], clock)
    saver = CheckpointWriter(
        directory / "checkpoints", keep_every=train.steps_per_export, record=writer, restored=restored
    )

    def save(state: TrainState, done: int, *, wait: bool) -> None:
        with clock.pause("checkpoint", done):
            saver.save(state, done)
            if wait:
                saver.wait()

    # ---- the loop: one step ahead of its record, so that the device never waits for the host -----------------------
    if evaluate is not None and train.steps_per_eval:
        evaluation = Measurement(
            "evaluation", train.steps_per_eval, lambda model, done: evaluate(model, train.max_eval_batches)
        )
        measurements = [evaluation, *measurements]
    profiler = Profiler(train, directory, first_step, clock)
    agreement = distributed.Agreement()
    last_save = time.monotonic()
    with (
        contextlib.closing(writer),
        StopRequest() as stop,
        saver,
        progress,
        open_mirrors(directory, info["config"], tags=config.tags, names=names_of(directory, info))
        if distributed.is_main()
        else contextlib.nullcontext(Mirrors([])) as mirrors,
        Prefetcher(
            lambda step: batch_of(step, schedule.size_at(step)), range(first_step, train.num_train_steps)
        ) as batches,
        keeping_state_before_bad_step(lambda: state, lambda state, done: save(state, done, wait=True)),
    ):
        if mirrors.url is not None:
            writer.append("mirror", wandb_url=mirrors.url)
        progress.note(opening(config, info, first_step, compile_time))
        if warning := warning_of_larger(info, train.resources):
            progress.note(warning)
        recorder = StepRecorder(
            config, writer, clock, progress, mirrors, rows_of, at_once=train.resources.platform == "cpu"
        )
        leaves = False
        clock.start()
        for step in range(first_step, train.num_train_steps):
            saver.check()
            if profiler.starts_at(step):
                recorder.flush()
                profiler.start(step)
            batch, data_wait = batches.take()
            state, metrics = compiled[schedule.size_at(step)](state, batch)
            recorder.push(step, metrics, data_wait)
            done = step + 1
            stopping, due, spent = agreement.any(
                stop.requested,
                time.monotonic() - last_save > train.checkpoint_interval,
                distributed.is_main() and budget.reached(in_flight=recorder.steps_behind + agreement.calls_behind),
            )
            last = done == train.num_train_steps or spent
            leaves = stopping and not last
            saves = last or stopping or due or done % train.steps_per_export == 0
            exports = exporter.is_due_at_end(done) if last else exporter.is_due(done) and not leaves
            measured = [  # whoever sends SIGTERM waits seconds, not minutes
                each for each in measurements if (each.at_end if last else done % each.every == 0 and not leaves)
            ]
            if measured or saves or exports or profiler.ends_after(done, last=last or leaves):
                recorder.flush()
            if profiler.ends_after(done, last=last or leaves):
                profiler.stop(step)
            for each in measured:
                with clock.pause(each.name, step), ambient(mesh):
                    figures = each.measure(evaluation_model(state), done)
                if figures:
                    recorder.evaluation(done, figures)
            if saves:
                save(state, done, wait=last or stopping)
                last_save = time.monotonic()
            if exports:
                with clock.pause("hf export", step):
                    where = exporter.export(state, done)
                progress.note(f"step {done}: exported to {where}")
            if leaves:
                progress.note(f"stopping: the checkpoint of step {done} is saved")
                break
            if last:
                cut = done < train.num_train_steps
                if cut:
                    progress.note(
                        f"the budget of {limit or 0:.6g} s of training time is spent after {done:,} of {train.num_train_steps:,} steps"
                        f" ({budget.spent:.6g} s): the schedule was cut; num_train_steps={done} goes through all of it"
                    )
                if distributed.is_main():
                    progress.after(finish(writer, done, "budget" if cut else None))
                break
    if leaves:
        # The signal went to another process; this one holds a model that is not trained, which nobody is to take for one.
        raise Terminated
    return state
