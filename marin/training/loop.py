"""The training loop, and all of a run around it: `train_lm` is the whole in a few lines, in the order in which it happens.

    set_up         devices, data, model, optimizer, and the state to begin or go on with (`marin.training.run_setup`)
    compile_steps  a program for each batch size, before the clock starts (`marin.training.compiled_steps`)
    _begin_record  `run.json`, and the `start` line of `metrics.jsonl`
    _loop          step, record, measure, checkpoint, until the last step

Killed at any instant, it loses at most the work since the last checkpoint; started again, it goes through the same
states as if it had never stopped, because a batch is a pure function of the seed and the step, and everything else is in
the checkpoint.
"""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from marin.data.prefetch import Prefetcher
from marin.errors import Terminated
from marin.execution.replaced_code import replaced_code
from marin.models.lm import count_parameters
from marin.parallel import distributed
from marin.parallel.mesh import ambient
from marin.tracking import RunRecord, RunWriter, SilentRunWriter
from marin.tracking.console import TrainingProgress, said_if_long
from marin.tracking.mirrors import Mirrors, open_mirrors
from marin.tracking.run_record import plan_of_measures
from marin.training.bad_step import keeping_state_before_bad_step
from marin.training.budget import BudgetWatch, kept_steps
from marin.training.checkpoint_writer import CheckpointWriter, remove_half_written
from marin.training.clock import TrainingClock
from marin.training.compiled_steps import CompiledSteps, compile_steps
from marin.training.config import TrainLmConfig
from marin.training.host_memory import keep_freed_memory
from marin.training.preflight import check_data, keep_to_cpus, take_gpu_memory
from marin.training.profiling import Profiler
from marin.training.recorder import StepRecorder
from marin.training.run_info import (
    classes_of,
    ensure_finished,
    finish,
    machine_of,
    note_of_long_steps,
    opening,
    warning_of_larger,
    warning_of_replaced,
    warnings_of_programs,
    write_run_info,
)
from marin.training.run_setup import RunSetup, set_up
from marin.training.state import TrainState, evaluation_model
from marin.training.stopping import StopRequest

# Measures a model during training: (model, limit on batches) -> figures by name.
Evaluate = Callable[[Any, int | None], dict[str, float]]
_COMPILING = "compiling the training step, which takes longest the first time"


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
    """Trains until `num_train_steps`, from the last checkpoint where there is one, and returns the final state.

    In a multi-host run every process calls it, and they train together.

    Raises:
        ConfigError, HardwareError: before anything is computed, if the config cannot run on this machine.
        NonFiniteLossError: if the loss or gradient norm is NaN or infinite and `skip_bad_steps` is off, or the optimizer
            itself makes such numbers.
        Terminated: another process was told to stop, so that this one has too.
        CheckpointError: if checkpoints are there and none is whole, or one cannot be written.
    """
    # What says how a processor is used must come before anything that makes JAX look at its devices.
    keep_to_cpus(config.train.resources)
    take_gpu_memory(config.train.resources)
    if config.train.resources.platform == "cpu":
        keep_freed_memory()
    distributed.start()
    with distributed.taking_part():
        begin = time.perf_counter()
        setup, first_state = set_up(config)
        if setup.is_over:
            state = first_state()
            remove_half_written(setup.directory / "checkpoints")
            if distributed.is_main():
                ensure_finished(setup.directory, setup.first_step, "budget" if setup.at_budget else None)
            return state
        check_data(setup.source, setup.first_sample, setup.last_sample)
        setup_time = time.perf_counter() - begin
        with said_if_long(_COMPILING) if distributed.is_main() else contextlib.nullcontext():
            steps, state = compile_steps(setup, first_state)
        del first_state  # and with it the program, which may hold as much as the state
        # closed after all that writes to it has ended
        with contextlib.closing((RunWriter if distributed.is_main() else SilentRunWriter)(setup.directory)) as writer:
            info = _begin_record(setup, steps, writer, measurements, setup_time)
            if evaluate is None and config.train.steps_per_eval:
                distributed.warn(
                    "warning: `steps_per_eval` has no effect, as this training was given nothing to evaluate with: give `train_lm`"
                    " an `evaluate`, or leave it None"
                )
            if evaluate is not None and config.train.steps_per_eval:
                evaluation = Measurement(
                    "evaluation",
                    config.train.steps_per_eval,
                    lambda model, done: evaluate(model, config.train.max_eval_batches),
                )
                measurements = [evaluation, *measurements]
            return _loop(setup, steps, state, writer, info, measurements)


def _begin_record(
    setup: RunSetup, steps: CompiledSteps, writer: RunWriter, measurements: Sequence[Measurement], setup_time: float
) -> dict[str, Any]:
    """Writes `run.json`, where the run begins, and the line that says that a process started; returns what stands in `run.json`."""
    config, directory = setup.config, setup.directory
    data = [component.as_json() for component in setup.source.use(setup.last_sample, setup.first_sample)]
    described = {
        **classes_of(config),
        "num_parameters": count_parameters(setup.shapes),
        "data": data,
        "model_flops_per_token": config.model.flops_per_token(config.vocab_size, config.seq_len),
        "traced_flops_per_token": steps.traced_flops.result().as_json() if steps.traced_flops else None,
        "calls_out": sorted(steps.calls_out),
        "first_sample": setup.first_sample,
        "origin_step": setup.origin_step,
    }
    info = write_run_info(config, directory, writer, setup.source, setup.tokenizer, described, steps.compilation)
    replaced = replaced_code() if distributed.is_main() else []
    if replaced:
        distributed.warn(warning_of_replaced(replaced))
    writer.append(
        "start",
        from_step=setup.first_step,
        setup_time=round(setup_time, 3),
        compile_time=round(steps.compile_time, 3),
        host=info["host"].get("cpu_model"),
        devices=[device.device_kind for device in setup.mesh.devices.flat],
        calls_out=", ".join(sorted(steps.calls_out)),
        held_bytes=steps.held[0],
        replaced=", ".join(replaced),
        **machine_of(config.train.resources),
        **plan_of_measures([(each.name, each.every) for each in measurements]),
    )
    return info


def _loop(
    setup: RunSetup,
    steps: CompiledSteps,
    state: TrainState,
    writer: RunWriter,
    info: dict[str, Any],
    measurements: Sequence[Measurement],
) -> TrainState:
    """Trains from `state` to the end of the run; returns the final state.

    It is one step ahead of its record, so that the device never waits for the host. Whatever makes it wait is a pause of
    the clock, before which the record catches up, so that no pause counts as a step's time.
    """
    config, directory, first_step = setup.config, setup.directory, setup.first_step
    num_steps, schedule, resources = config.train.num_train_steps, config.train.batch_schedule, config.train.resources
    peak_flops = info["num_chips"] * info["device_flops"]
    progress = TrainingProgress(
        num_steps=num_steps,
        first_step=first_step,
        tokens_left=config.total_tokens - schedule.offset_at(first_step) * config.seq_len,
        flops_per_token=config.model.flops_per_token(config.vocab_size, config.seq_len),
        peak_flops=peak_flops,
    )
    clock = TrainingClock(writer)
    # Process 0 alone watches the budget: another may be here before it has written the log that both would read.
    limit = config.train.budget.seconds(peak_flops) if config.train.budget and distributed.is_main() else None
    budget = BudgetWatch(limit, kept_steps(directory, first_step) if limit else [], clock)
    saver = CheckpointWriter(
        directory / "checkpoints", keep_every=config.train.steps_per_export, record=writer, restored=setup.restored
    )

    def save(state: TrainState, done: int, *, wait: bool) -> None:
        with clock.pause("checkpoint", done):
            saver.save(state, done)
            if wait:
                saver.wait()

    profiler = Profiler(config.train, directory, first_step, clock)
    agreement = distributed.Agreement()
    last_save, saved_step = time.monotonic(), first_step
    with (
        StopRequest(progress.note) as stop,
        saver,
        progress,
        open_mirrors(directory, info, config.tags)
        if distributed.is_main()
        else contextlib.nullcontext(Mirrors([])) as mirrors,
        Prefetcher(lambda step: setup.batch_of(step, schedule.size_at(step)), range(first_step, num_steps)) as batches,
        keeping_state_before_bad_step(lambda: state, lambda state, done: save(state, done, wait=True)),
    ):
        if mirrors.url is not None:
            writer.append("mirror", wandb_url=mirrors.url)
        progress.note(opening(config, info, first_step, steps.compile_time))
        if note := note_of_long_steps(config, info, first_step):
            progress.note(note)
        if warning := warning_of_larger(info, resources):
            progress.note(warning)
        for warning in warnings_of_programs(steps.calls_out, steps.model_calls_out, steps.held, str(directory)):
            progress.note(warning)
        at_once = resources.platform == "cpu"
        recorder = StepRecorder(config, writer, clock, progress, mirrors, setup.rows_of, at_once=at_once)

        def measure(each: Measurement, done: int, *, last: bool) -> None:
            # Whoever goes on from the last step measures nothing, and several processes save together or not at all.
            saves = jax.process_count() == 1 and not last and done != saved_step

            def save_beside() -> None:
                nonlocal last_save, saved_step
                with contextlib.suppress(Exception):  # the save after the next step says what is wrong
                    saver.save(state, done)
                    last_save, saved_step = time.monotonic(), done

            beside = stop.meanwhile(save_beside) if saves else contextlib.nullcontext()
            with clock.pause(each.name, done - 1), ambient(setup.mesh), beside:
                figures = each.measure(evaluation_model(state), done)
            if figures:
                recorder.evaluation(done, figures)

        clock.start()
        for each in _left_out(setup, measurements):
            measure(each, first_step, last=False)
        for step in range(first_step, num_steps):
            saver.check()
            if profiler.starts_at(step):
                recorder.flush()
                profiler.start(step)
            batch, data_wait = batches.take()
            state, metrics = steps.of_size[schedule.size_at(step)](state, batch)
            recorder.push(step, metrics, data_wait)
            done = step + 1
            stopping, save_is_due, spent = agreement.any(
                stop.requested,
                time.monotonic() - last_save > config.train.checkpoint_interval,
                budget.reached(in_flight=recorder.steps_behind + agreement.calls_behind),
            )
            # Of several processes a flag is known a step after it was raised: it may have asked for a save that has been made.
            save_is_due = save_is_due and done > saved_step + agreement.calls_behind
            due = _due_after(done, setup, measurements, stopping=stopping, save_is_due=save_is_due, spent=spent)
            trace_ends = profiler.ends_after(done, last=due.ends)
            if due.measured or due.saves or due.exports or trace_ends:
                recorder.flush()
            if trace_ends:
                profiler.stop(step)
            for each in due.measured:
                measure(each, done, last=due.last)
            if due.saves and done != saved_step:  # it may have been saved beside what was measured
                save(state, done, wait=due.ends)
                last_save, saved_step = time.monotonic(), done
            if due.exports:
                with clock.pause("hf export", step):
                    where = setup.exporter.export(state, done)
                progress.note(f"step {done}: exported to {where}")
            if due.ends:
                break
        if due.leaves:
            progress.note(f"stopping: the checkpoint of step {done} is saved")
        else:
            cut = done < num_steps
            if cut:
                progress.note(
                    f"the budget of {config.train.budget} is spent after {done:,} of {num_steps:,} steps, in {budget.spent:.4g} s of"
                    f" training time of the {limit or 0:.4g} s that it is here: the schedule was cut; num_train_steps={done} goes through all of it"
                )
            if distributed.is_main():
                progress.after(finish(writer, done, "budget" if cut else None))
    if due.leaves:
        # The signal went to another process; this one holds a model that is not trained, which nobody is to take for one.
        raise Terminated
    return state


def _left_out(setup: RunSetup, measurements: Sequence[Measurement]) -> list[Measurement]:
    """What was due after the step that training goes on from, where a process that was told to stop only saved."""
    if setup.restored is None:
        return []
    pauses = RunRecord.open(setup.directory).of("pause") if distributed.is_main() else []
    made = collections.Counter(pause["reason"] for pause in pauses if pause.get("step") == setup.first_step - 1)
    left = []
    for number, each in enumerate(measurements):
        if setup.first_step % each.every == 0:
            made[each.name] -= 1  # several may have one name
            if made[each.name] < 0:
                left.append(number)
    return [measurements[number] for number in distributed.of_main(left)]


@dataclasses.dataclass(frozen=True)
class _Due:
    """What comes after a step; the same in every process.

    Args:
        last: the run ends with this step.
        leaves: this process is to stop, and the run goes on another time.
    """

    last: bool
    leaves: bool
    saves: bool
    exports: bool
    measured: list[Measurement]

    @property
    def ends(self) -> bool:
        return self.last or self.leaves


def _due_after(
    done: int, setup: RunSetup, measurements: Sequence[Measurement], *, stopping: bool, save_is_due: bool, spent: bool
) -> _Due:
    """What comes after `done` steps.

    Args:
        stopping: a process was told to stop.
        save_is_due: `checkpoint_interval` has passed.
        spent: the budget has no room for another step.
    """
    train, exporter = setup.config.train, setup.exporter
    last = done == train.num_train_steps or spent
    # Whoever sends SIGTERM waits seconds, not minutes: it only saves, and who goes on measures (`_left_out`) and exports.
    leaves = stopping and not last
    return _Due(
        last=last,
        leaves=leaves,
        saves=last or leaves or save_is_due or done % train.steps_per_export == 0,
        exports=exporter.is_due_at_end(done) if last else exporter.is_due(done) and not leaves,
        measured=[each for each in measurements if (each.at_end if last else done % each.every == 0 and not leaves)],
    )
