"""The beginning and the end of a run's record: `run.json`, and the line that says that training is complete."""

import contextlib
import hashlib
import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from marin import hardware
from marin.data.batch_schedule import BatchSchedule
from marin.data.loader import BatchSource
from marin.data.mixture import Mixture
from marin.data.tokenizer import Tokenizer
from marin.errors import CheckpointError, ConfigError, ResultsError
from marin.execution.attempts import usual_path
from marin.main_module import module_of
from marin.optim import GroupsConfig
from marin.parallel import distributed
from marin.resources import Resources
from marin.storage import files
from marin.tracking import RunRecord, RunWriter, log_chain
from marin.tracking.console import duration
from marin.tracking.environment import capture_environment
from marin.tracking.goodput import wall_time
from marin.tracking.machines import is_larger
from marin.tracking.run_record import METRICS_FILE, MOST_HELD, RUN_FILE, read_info, require_fields
from marin.training.checkpoint import Checkpoint
from marin.training.checkpoint_manifest import seal_of
from marin.training.config import TrainLmConfig
from marin.training.config_json import changes, config_to_json
from marin.training.programs import Compilation
from marin.training.run_paths import recorded_paths

_MOST_NAMED = 5  # of the settings that changed
_WRITTEN_AS = {
    "debug_print": "jax.debug.print",
    "debug_callback": "jax.debug.callback",
}  # others are named in code as they are here
_LONG_STEP = 15.0  # at the device's peak: a processor takes about four times as long


def read_run_info(directory: Path) -> dict[str, Any] | None:
    """What `run.json` says of the run that was begun in the directory; None before that.

    Raises:
        ResultsError: it is not an object of JSON.
    """
    path = directory / RUN_FILE
    return read_info(path) if path.exists() else None


def recorded_digest(info: Mapping[str, Any] | None, of: str) -> str | None:
    """That of a run's "tokenizer" or "data"; None where its `run.json` does not say it, or is not there."""
    digests = (info or {}).get("digests")
    return digests.get(of) if isinstance(digests, dict) else None


def samples_taken(run: Path, step: int, otherwise: BatchSchedule) -> int:
    """Samples of its data that a run had taken after `step` steps, those of earlier runs that it went on from among them.

    Args:
        otherwise: the batch sizes to count by where weights were copied without their run.
    Raises:
        ResultsError: its `run.json` does not say its batch sizes.
    """
    info = read_run_info(run)
    if info is None:
        return otherwise.offset_at(step)
    require_fields(info, run / RUN_FILE, "config.train.train_batch_size")
    schedule = BatchSchedule.of(info["config"]["train"]["train_batch_size"])
    return int(info.get("first_sample", 0)) + schedule.offset_at(step)


def note_of_other_order(run: Path, config: TrainLmConfig, source: BatchSource) -> str | None:
    """What a run is told that goes on in the data where `run` stopped, and whose samples are not those of that run."""
    info = read_run_info(run)
    if info is None:
        return None
    before = {"seed": (info.get("seeds") or {}).get("data"), "data": recorded_digest(info, "data")}
    before["rows"] = [part.get("num_rows") for part in info.get("data") or []] or None
    now = {"seed": config.data_seed, "rows": list(source.order.num_rows)}
    if all(component.cache.states_digest for component in source.components):
        now["data"] = source.digest
    if isinstance(config.data, Mixture):  # its stages are given in steps, whose samples follow from the batch sizes
        require_fields(info, run / RUN_FILE, "config.train.train_batch_size")
        schedule = BatchSchedule.of(info["config"]["train"]["train_batch_size"])
        before["stages"], now["stages"] = (
            [stage.start for stage in config.data.stages(each.offset_at)]
            for each in (schedule, config.train.batch_schedule)
        )
    words = {"data": "other data", "rows": "rows of another length", "seed": "another `data_seed`"}
    words["stages"] = "weights that change at other samples, as batches have other sizes"
    other = [name for name in words if name in now and before[name] not in (None, now[name])]
    if not other:
        return None
    why = words["data" if "data" in other else other[0]]
    return (
        f"warning: the data goes on where {usual_path(str(run))} stopped, but it has {why}, so samples are others: rows that were"
        " trained on may come again and others not at all; with `reset_data_loader_on_init=True` it begins anew"
    )


def write_run_info(
    config: TrainLmConfig,
    directory: Path,
    writer: RunWriter,
    source: BatchSource,
    tokenizer: Tokenizer,
    measured: dict[str, Any],
    compilation: Compilation,
) -> dict[str, Any]:
    """Writes `run.json` when the run begins, and returns what stands in it; a resumed run keeps its first one."""
    saved = read_run_info(directory)
    if saved is not None:
        return saved
    resources = config.train.resources
    environment, diff = capture_environment()
    if diff and distributed.is_main():
        files.write_bytes(str(directory / "git.diff"), diff)
    described = recorded_paths(config_to_json(config), str(config.output_path))
    del described["output_path"]  # where the record lies
    identity = _identity(config)
    writer.write_info(
        info := {
            "schema_version": 1,
            "run_name": config.run_name,
            "tags": list(config.tags),
            "config": described,
            **measured,
            "platform": resources.platform,
            "device_name": resources.device_name,
            "num_devices": resources.num_devices * _machines(resources),
            **machine_of(resources),
            "peak_is_given": resources.platform == "cpu" and hardware.given_cpu_peak() is not None,
            "num_processes": jax.process_count(),
            **compilation.as_json(),
            "seeds": {"model": config.train.seed, "data": config.data_seed},
            "digests": {
                "config": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
                "data": source.digest,
                "tokenizer": tokenizer.digest,
            },
            "evaluation_link": log_chain.EVALUATION_LINK,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            **environment,
        }
    )
    return json.loads(json.dumps(info))


def _identity(config: TrainLmConfig) -> dict[str, Any]:
    """What of a config decides what is trained."""
    whole = config_to_json(config, omit_placement=True)
    return {key: whole[key] for key in ("model", "train", "vocab_size")}


def classes_of(config: TrainLmConfig) -> dict[str, str]:
    """The classes of the model's config and of the optimizer's, with those of its groups: fields alone do not name them."""

    def named(value: Any) -> str:
        held = value.groups if isinstance(value, GroupsConfig) else ()
        groups = ", ".join(type(group.optimizer).__qualname__ for group in held)
        return f"{module_of(type(value))}:{type(value).__qualname__}" + (f" of {groups}" if groups else "")

    return {"model_class": named(config.model), "optimizer_class": named(config.train.build_optimizer())}


def check_same_run(config: TrainLmConfig, directory: Path) -> None:
    """Looks whether the run that was begun in the directory, if any, is that of this config.

    Settings that only one of them knows are not compared: another version of the engine may have begun the run.

    Raises:
        ConfigError: naming the settings that are others. `run.json` would go on saying what is no longer so.
    """
    saved = read_run_info(directory)
    if saved is None:
        return
    described = recorded_paths(_identity(config), str(config.output_path))
    changed = [
        f"{name} is {now}, it began with {before}" for name, before, now in changes(saved.get("config"), described)
    ]
    # A file may have been moved in between: its name is no setting.
    for name, now in classes_of(config).items():
        before = saved.get(name)
        if isinstance(before, str) and before.rpartition(":")[2] != now.rpartition(":")[2]:
            changed.append(f"{name} is {now}, it began with {before}")
    if changed:
        more = f", and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        raise ConfigError(
            f"{directory} holds a run with other settings ({'; '.join(changed[:_MOST_NAMED])}{more}): give another output path, with"
            " `initialize_from_checkpoint_path` to begin from that run's weights, or the settings that it was begun with"
        )


def check_same_data(directory: Path, source: BatchSource, tokenizer: Tokenizer) -> None:
    """Looks whether the run that was begun in the directory, if any, is of this data and tokenizer.

    Raises:
        ConfigError: they are others, wherever they lie. Rows of a cache that states no digest are not looked at: to make
            one takes reading all of it.
    """
    saved = read_run_info(directory)
    found = {"tokenizer": tokenizer.digest}
    if all(component.cache.states_digest for component in source.components):
        found["data"] = source.digest
    for name, digest in found.items():
        if recorded_digest(saved, name) not in (None, digest):
            raise ConfigError(
                f"{directory} holds a run that began with {'another tokenizer' if name == 'tokenizer' else 'other data'}: put"
                " back what it began with, or give another output path, with `initialize_from_checkpoint_path` to begin from"
                " its weights"
            )


def check_log(directory: Path) -> None:
    """Reads the log of the run that was begun in the directory, if any; a torn last line is what a kill leaves.

    Raises:
        ResultsError: a line is none that a run writes. Its end, which counts all steps, could not be written.
    """
    if read_run_info(directory) is not None and (directory / METRICS_FILE).exists():
        try:
            RunRecord.open(directory)
        except ResultsError as error:
            raise ResultsError(f"{error}: restore it, or move {directory} away to begin the run again") from None


def note_of_other_parts(info: dict[str, Any], config: TrainLmConfig) -> str | None:
    """What a run is told that goes on with batches cut into other parts than it began with; None where they are the same."""
    train = (info.get("config") or {}).get("train") or {}
    before, now = train.get("per_device_parallelism"), config.train.per_device_parallelism
    if before == now:
        return None
    began, goes_on = ("the whole batch" if parts is None else f"{parts:,} sequences" for parts in (before, now))
    return (
        f"note: this run began with {began} on a device at once and goes on with {goes_on}: gradients are summed in another order, so"
        " bits may differ from those of a run that was not changed"
    )


def machine_of(resources: Resources) -> dict[str, Any]:
    """What the peak of all that this process and those beside it compute on follows from."""
    return {"num_chips": resources.num_chips * _machines(resources), "device_flops": resources.device_flops}


def _machines(resources: Resources) -> int:
    # Each process on processors is counted as a machine of its own; GPUs and TPUs are all in the config.
    return jax.process_count() if resources.platform == "cpu" else 1


def warning_of_larger(info: dict[str, Any], resources: Resources) -> str | None:
    """What a run is told that goes on with more than the machine that its cost counts; None where it has no more."""
    machine = machine_of(resources)
    if not is_larger(info, machine):
        return None
    return (
        f"warning: this run began on {info['num_chips']} x {info['device_name']} of {info['device_flops']:.3g} FLOP/s, which is what"
        f" its cost counts, and goes on with {machine['num_chips']} x {resources.device_name} of {machine['device_flops']:.3g}: its"
        " figures of cost and MFU will be wrong, and as a speedrun it takes no rank"
    )


def warnings_of_programs(
    calls_out: set[str], model_calls_out: set[str], held: tuple[int, str], directory: str
) -> Iterator[str]:
    """What the author of a run is told of its programs before it trains, as a verdict on it as a speedrun will say.

    Args:
        calls_out: by what they call out of themselves.
        model_calls_out: by what the model does so where it is scored.
        held: how many bytes the largest holds of its own, and its largest array in words.
        directory: of the run.
    """
    rung = "as a speedrun the run's rung `log` stays open until a person has read the code"
    if names := _calls(model_calls_out):
        yield (
            f"warning: the model calls out of its own program ({names}): as a speedrun this run will NOT COUNT, as the probe `one_pass` at"
            f" its end fails whatever it scores; stop it, remove these calls from the model's code, move {usual_path(directory)} away, and"
            " train again"
        )
    if names := _calls(calls_out - model_calls_out):
        yield f"warning: training calls out of its own programs ({names}): {rung}"
    if held[0] > MOST_HELD:
        yield (
            f"warning: what makes the model or trains it holds {held[0]:,} bytes of its own, more than {MOST_HELD:,} (the largest array is"
            f" {held[1]}): compute tables from jnp.arange and random keys where they are used; {rung}"
        )


def _calls(primitives: set[str]) -> str:
    """What is called, by the names that stand in code."""
    return ", ".join(_WRITTEN_AS.get(name, name) for name in sorted(primitives))


def warning_of_replaced(names: Sequence[str]) -> str:
    """What the author of a run is told whose experiment gives other code to names that are not its own."""
    return (
        f"warning: other code than their files have stands behind {', '.join(names)}: as a speedrun the run's rung `log` stays open until a"
        " person has read it; give code of your own names of your own"
    )


def opening(config: TrainLmConfig, info: dict[str, Any], first_step: int, compile_time: float) -> str:
    """What is about to happen, in a line."""
    steps = f"{config.train.num_train_steps:,} steps" + (f" from step {first_step:,}" if first_step else "")
    return (
        f"training {info['num_parameters']:,} parameters in {info['precision']} on {info['num_chips']} x {info['device_name']}:"
        f" {steps}, {config.total_tokens:,} tokens; compiled in {compile_time:.1f} s"
    )


def note_of_long_steps(config: TrainLmConfig, info: dict[str, Any], first_step: int) -> str | None:
    """What a person is told who will see nothing for a while; None where steps are short."""
    machine = machine_of(config.train.resources)
    tokens = config.train.batch_schedule.size_at(first_step) * config.seq_len
    least = 3 * info["model_flops_per_token"] * tokens / (machine["num_chips"] * machine["device_flops"])
    if least < _LONG_STEP:
        return None
    return (
        f"a step of {tokens:,} tokens takes {duration(least)} or more here: its figures come when it is done, and Ctrl-C waits for"
        " it too; a smaller batch makes steps shorter"
    )


def finish(writer: RunWriter, num_steps: int, stopped_by: str | None = None) -> str:
    """Writes the line that makes the record complete, and says where the wall time went.

    Args:
        stopped_by: what ended the run before all of its steps, "budget"; None for a whole one.
    """
    # ru_maxrss is kilobytes on Linux and bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    more: dict[str, Any] = {} if stopped_by is None else {"stopped_by": stopped_by}
    with contextlib.suppress(CheckpointError):
        more["checkpoint"] = seal_of(Checkpoint.of_step(writer.directory / "checkpoints", num_steps).path)
    writer.append("end", steps=num_steps, peak_memory_bytes=peak, **more)
    spent = wall_time(RunRecord.open(writer.directory).events)
    again = f"; {spent.num_lost_steps:,} steps were taken twice" if spent.num_lost_steps else ""
    processes = f" over {spent.num_processes} processes" if spent.num_processes > 1 else ""
    return f"wall time {duration(spent.total)}{processes}: {spent.shares()}{again}"


def ensure_finished(directory: Path, num_steps: int, stopped_by: str | None = None) -> None:
    """Writes the `end` that a kill between the last checkpoint and the last line left out."""
    writer = RunWriter(directory)
    if not RunRecord.open(directory).is_complete:
        finish(writer, num_steps, stopped_by)
    writer.close()
