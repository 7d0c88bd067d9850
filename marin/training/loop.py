"""The training loop: set-up, compile, step, record, checkpoint, finish. It reads top to bottom.

Killed at any instant, it loses at most the work since the last checkpoint; started again, it goes through the same
states as if it had never stopped, because a batch is a pure function of the seed and the step, and everything else is in
the checkpoint.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from marin import hardware
from marin.data.loader import BatchSource, open_batches
from marin.data.prefetch import Prefetcher
from marin.data.rows import Batch
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, HardwareError, NonFiniteLossError
from marin.execution.attempts import usual_path
from marin.models.lm import count_parameters
from marin.optim import skip_bad_steps
from marin.parallel.mesh import batch_sharding, check_batch_size, data_mesh, replicated
from marin.storage import files
from marin.tracking import RunRecord, RunWriter, capture_environment
from marin.tracking.console import TrainingProgress
from marin.tracking.run_record import METRICS_FILE, RUN_FILE
from marin.tracking.wandb_mirror import wandb_mirror
from marin.training import checkpoint as checkpoints
from marin.training.clock import StopRequest, TrainingClock
from marin.training.compile_cache import use_compile_cache
from marin.training.config import TrainLmConfig
from marin.training.config_json import config_to_json
from marin.training.host_memory import keep_freed_memory
from marin.training.state import StepConfig, TrainState, evaluation_model, init_state, make_train_step
from marin.training.watch import is_recorded

# Measures a model during training: (model, limit on batches) -> figures by name.
Evaluate = Callable[[Any, int | None], dict[str, float]]


def train_lm(config: TrainLmConfig, evaluate: Evaluate | None = None) -> TrainState:
    """Trains until `num_train_steps`, from the last checkpoint where there is one, and returns the final state.

    Raises:
        ConfigError, HardwareError: before anything is computed, if the config cannot run on this machine.
        NonFiniteLossError: if the loss or gradient norm is NaN or infinite and `skip_bad_steps` is off.
        CheckpointError: if checkpoints are there and none is whole, or one cannot be written.
    """
    # ---- set-up: devices, data, model, optimizer -------------------------------------------------------------------
    train, schedule = config.train, config.train.batch_schedule
    keep_to_cpus(train.resources)
    if train.resources.platform == "cpu":
        keep_freed_memory()
    use_compile_cache()
    check_devices(train.resources)
    # A TPU core is half a device to JAX on some types, so there all that JAX shows are used.
    mesh = data_mesh(None if train.resources.platform == "tpu" else train.resources.num_devices)
    for _, batch_size in schedule.entries:
        check_batch_size(batch_size, mesh)
    directory = files.local_path(config.output_path)
    tokenizer = Tokenizer.load(config.tokenizer)
    source = open_batches(config.data, config.model.max_seq_len, tokenizer.bos_id, schedule.offset_at)
    _check_tokenizer(config, source, tokenizer)

    optimizer_config = train.build_optimizer()
    model = config.model.build(config.vocab_size, key=jax.random.key(train.seed))
    optimizer = optimizer_config.build(eqx.filter(model, eqx.is_array), train.num_train_steps)
    optimizer = skip_bad_steps(optimizer) if train.skip_bad_steps else optimizer
    state = jax.device_put(init_state(model, optimizer, train.ema_beta), replicated(mesh))
    state, first_step, data_offset = _starting_point(config, directory, state)
    if first_step >= train.num_train_steps:
        _ensure_finished(directory, train.num_train_steps)
        return state
    first_sample = schedule.offset_at(data_offset)
    last_sample = first_sample + train.num_train_sequences
    _check_data(source, last_sample)

    # ---- compile, before the clock starts --------------------------------------------------------------------------
    step_config = StepConfig(
        precision=config.precision,
        loss_block=getattr(config.model, "cross_entropy_block_size", None),
        z_loss_weight=train.z_loss_weight or 0.0,
        ema_beta=train.ema_beta,
        watch=train.watch if train.watch.watch_targets else None,
    )
    train_step = make_train_step(optimizer, optimizer_config.schedule(train.num_train_steps), step_config)

    def batch_of(step: int, batch_size: int) -> Batch:
        batch = source.batch_from(config.data_seed, first_sample + schedule.offset_at(step), batch_size)
        return jax.device_put(batch, batch_sharding(mesh))

    compile_start = time.perf_counter()
    compiled = {
        batch_size: jax.jit(train_step, donate_argnums=0).lower(state, batch_of(0, batch_size)).compile()
        for batch_size in schedule.sizes(first_step, train.num_train_steps)
    }
    compile_time = time.perf_counter() - compile_start

    # ---- the record ------------------------------------------------------------------------------------------------
    writer = RunWriter(directory)
    data = [component.as_json() for component in source.use(last_sample)]
    measured = {"num_parameters": count_parameters(model), "data": data}
    _write_run_info(config, directory, writer, source, tokenizer, measured)
    info = json.loads((directory / RUN_FILE).read_text())
    writer.append(
        "start",
        from_step=first_step,
        compile_time=round(compile_time, 3),
        host=info["host"].get("cpu_model"),
        devices=[device.device_kind for device in mesh.devices.flat],
    )
    progress = TrainingProgress(
        num_steps=train.num_train_steps,
        first_step=first_step,
        tokens_left=config.total_tokens - schedule.offset_at(first_step) * config.model.max_seq_len,
        flops_per_token=config.model.flops_per_token(config.vocab_size, config.model.max_seq_len),
        peak_flops=info["num_chips"] * info["device_flops"],
    )
    clock = TrainingClock(writer)

    def record(step: int, metrics: dict[str, jax.Array], data_wait: float, mirror: Any) -> None:
        """Waits for the step to end, checks it, and writes its line."""
        loss = float(metrics["loss"])
        step_time = clock.lap()
        values = {name: float(value) for name, value in metrics.items()}
        if not is_recorded(train.watch, step):
            values = {name: value for name, value in values.items() if "/" not in name}
        tokens = schedule.size_at(step) * config.model.max_seq_len
        timing = {"step_time": round(step_time, 6), "data_wait": round(data_wait, 6)}
        writer.append("step", step=step, tokens=tokens, **timing, **values)
        if mirror is not None:
            mirror.log(step, {f"train/{name}": value for name, value in values.items()})
        progress.update(step, loss, step_time, tokens, data_wait)
        if not train.skip_bad_steps and not math.isfinite(loss + values["grad_norm"]):
            raise NonFiniteLossError(
                f"at step {step} the loss is {loss} and the gradient norm {values['grad_norm']}: lower the learning rate, or set"
                f" `skip_bad_steps=True`; the log is {usual_path(str(directory / METRICS_FILE))}"
            )

    def save(state: TrainState, step: int) -> None:
        with clock.pause("checkpoint", step):
            writer.sync()
            checkpoints.save(directory / "checkpoints", state, step, keep_every=train.steps_per_export)

    # ---- the loop: one step ahead of its record, so that the device never waits for the host -----------------------
    pending: tuple[int, dict[str, jax.Array], float] | None = None
    last_save = time.monotonic()
    with (
        contextlib.closing(writer),
        StopRequest() as stop,
        progress,
        wandb_mirror(directory.name, info["config"], str(directory), tags=config.tags) as mirror,
        Prefetcher(
            lambda step: batch_of(step, schedule.size_at(step)), range(first_step, train.num_train_steps)
        ) as batches,
    ):
        if mirror is not None:
            writer.append("mirror", wandb_url=mirror.url)
        clock.start()
        for step in range(first_step, train.num_train_steps):
            if train.profiler and step == first_step + train.profiler_start_step:
                if pending is not None:
                    record(*pending, mirror)
                    pending = None
                with clock.pause("profiler", step):
                    jax.profiler.start_trace(str(directory / "profile"))
            batch, data_wait = batches.take()
            state, metrics = compiled[schedule.size_at(step)](state, batch)
            if pending is not None:
                record(*pending, mirror)
            pending = (step, metrics, data_wait)
            done = step + 1
            last = done == train.num_train_steps
            evaluates = evaluate is not None and train.steps_per_eval and done % train.steps_per_eval == 0 and not last
            saves = last or stop.requested or done % train.steps_per_export == 0
            saves = saves or time.monotonic() - last_save > train.checkpoint_interval
            profiled = train.profiler and done == first_step + train.profiler_start_step + train.profiler_num_steps
            if evaluates or saves or profiled:
                record(*pending, mirror)
                pending = None
            if profiled or (train.profiler and last and done > first_step + train.profiler_start_step and not profiled):
                with clock.pause("profiler", step):
                    _stop_trace()
            if evaluates and evaluate is not None:
                with clock.pause("evaluation", step):
                    figures = evaluate(evaluation_model(state), train.max_eval_batches)
                writer.append("evaluation", step=done, **figures)
                progress.note(f"step {done}: " + "  ".join(f"{name} {value:.4f}" for name, value in figures.items()))
                if mirror is not None:
                    mirror.log(step, {f"eval/{name}": value for name, value in figures.items()})
            if saves:
                save(state, done)
                last_save = time.monotonic()
            if stop.requested and not last:
                progress.note(f"stopping: the checkpoint of step {done} is saved")
                break
        else:
            _finish(writer, train.num_train_steps)
    return state


def keep_to_cpus(resources: Any) -> None:
    """Limits this process to the cores that a CPU config asks for; before JAX starts its threads."""
    wanted = getattr(resources, "num_cpus", None)
    if wanted is None or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if wanted < len(cores):
        os.sched_setaffinity(0, cores[:wanted])
    elif wanted > hardware.usable_cores():
        print(
            f"note: the config is sized for {wanted} cores, this machine has {hardware.usable_cores()}: it takes longer"
        )


def check_devices(resources: Any) -> None:
    """Raises:
    HardwareError: if this process does not have what the config asks for; a result must name the hardware it ran on.
    """
    try:
        actual = jax.default_backend()
    except RuntimeError as error:
        raise HardwareError(f"JAX found no device ({error}): run `marin doctor`") from None
    if actual != resources.platform:
        hint = "use CpuOnlyConfig()" if actual == "cpu" else f"use a config for {actual}"
        raise HardwareError(
            f"the config asks for {resources.device_name} ({resources.platform}), JAX sees only {actual} here: {hint} in the"
            " config, run on such a machine, or look at it with --dry_run true; `marin doctor` shows what this machine has"
        )
    if actual == "gpu" and resources.device_flops_override is None:
        asked, found = hardware.lookup_device(resources.device_name), jax.devices()[0].device_kind
        if hardware.lookup_device(found).name != asked.name:
            raise HardwareError(
                f"the config says {asked.name}, this machine has {found}: set `accelerator_type` to it, or to 'auto'"
            )


def _check_tokenizer(config: TrainLmConfig, source: BatchSource, tokenizer: Tokenizer) -> None:
    for component in source.components:
        cache = component.cache
        if cache.tokenizer_digest is not None and cache.tokenizer_digest != tokenizer.digest:
            raise ConfigError(
                f"the token cache {cache.path} was made with another tokenizer than {config.tokenizer}: tokenize again"
            )
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(f"`vocab_size` is {config.vocab_size}, the tokenizer has {tokenizer.vocab_size}: raise it")


def _check_data(source: BatchSource, num_samples: int) -> None:
    """Says what a run of so many samples takes from the components of a mixture, and which of them repeat.

    Raises:
        ConfigError: if the mixture's epoch limits end the data before.
    """
    source.check_enough(num_samples)
    used = source.use(num_samples)
    for component in used:
        if len(used) > 1:
            counts = component.counts
            print(
                f"data: `{component.name}` has {counts.num_tokens:,} tokens in {component.num_rows:,} rows, gone through"
                f" {component.epochs:.2f} times; {counts.num_lost_tokens:,} tokens are in no row, {counts.num_padding:,} positions"
                " are padding"
            )
        if component.epochs > 1 and not component.limited:
            print(
                f"warning: training goes {component.epochs:.1f} times through the {component.num_rows:,} rows of"
                f" `{component.name}`: use more data, or a mixture whose `max_epochs` says how often is meant",
                file=sys.stderr,
            )


def _starting_point(config: TrainLmConfig, directory: Path, state: TrainState) -> tuple[TrainState, int, int]:
    """The state to begin from, its step, and how far into the data step 0 lies."""
    train = config.train
    offset = 0
    origin = None
    if train.initialize_from_checkpoint_path is not None:
        origin = checkpoints.find(train.initialize_from_checkpoint_path)
        offset = 0 if train.reset_data_loader_on_init else origin.step
    found, problems = checkpoints.latest_valid(directory / "checkpoints")
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if found is not None:
        state = checkpoints.restore(found, state)
        print(f"continuing from the checkpoint of step {found.step:,} of {train.num_train_steps:,}")
        return state, found.step, offset
    if origin is not None:
        params, static = eqx.partition(state.model, eqx.is_array)
        params = checkpoints.restore(origin, params, partial=train.allow_partial_checkpoint, prefix="model.")
        average = None if state.average is None else jax.tree.map(jnp.copy, params)
        state = dataclasses.replace(state, model=eqx.combine(params, static), average=average)
    return state, 0, offset


def _write_run_info(
    config: TrainLmConfig,
    directory: Path,
    writer: RunWriter,
    source: BatchSource,
    tokenizer: Tokenizer,
    measured: dict[str, Any],
) -> None:
    if (directory / RUN_FILE).exists():
        return
    resources = config.train.resources
    environment, diff = capture_environment()
    if diff:
        files.write_bytes(str(directory / "git.diff"), diff)
    described = config_to_json(config) | {"output_path": usual_path(config.output_path)}
    identity = config_to_json(config, omit_placement=True)
    identity = {key: identity[key] for key in ("model", "train", "vocab_size")}
    writer.write_info(
        {
            "schema_version": 1,
            "run_name": config.run_name,
            "tags": list(config.tags),
            "config": described,
            **measured,
            "platform": resources.platform,
            "device_name": resources.device_name,
            "num_devices": resources.num_devices,
            "num_chips": resources.num_chips,
            "device_flops": resources.device_flops,
            "precision": config.precision.compute,
            "seeds": {"model": config.train.seed, "data": config.data_seed},
            "digests": {
                "config": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
                "data": source.digest,
                "tokenizer": tokenizer.digest,
            },
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            **environment,
        }
    )


def _finish(writer: RunWriter, num_steps: int) -> None:
    # ru_maxrss is kilobytes on Linux and bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    writer.append("end", steps=num_steps, peak_memory_bytes=peak)


def _ensure_finished(directory: Path, num_steps: int) -> None:
    """Writes the `end` that a kill between the last checkpoint and the last line left out."""
    writer = RunWriter(directory)
    if not RunRecord.open(directory).is_complete:
        _finish(writer, num_steps)
    writer.close()


def _stop_trace() -> None:
    try:
        jax.profiler.stop_trace()
    except RuntimeError as error:  # no trace was running
        print(f"warning: the profile could not be written ({error})", file=sys.stderr)
