"""The beginning and the end of a run's record: `run.json`, and the line that says that training is complete."""

import hashlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import jax

from marin.data.loader import BatchSource
from marin.data.tokenizer import Tokenizer
from marin.parallel import distributed
from marin.storage import files
from marin.tracking import RunRecord, RunWriter, capture_environment, log_chain
from marin.tracking.console import duration
from marin.tracking.goodput import wall_time
from marin.tracking.run_record import RUN_FILE, read_info
from marin.training.config import TrainLmConfig
from marin.training.config_json import config_to_json
from marin.training.programs import Compilation
from marin.training.run_paths import recorded_paths


def read_run_info(directory: Path) -> dict[str, Any] | None:
    """What `run.json` says of the run that was begun in the directory; None before that.

    Raises:
        ResultsError: it is not an object of JSON.
    """
    path = directory / RUN_FILE
    return read_info(path) if path.exists() else None


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
    identity = config_to_json(config, omit_placement=True)
    identity = {key: identity[key] for key in ("model", "train", "vocab_size")}
    # Each process on processors is counted as a machine of its own; GPUs and TPUs are all in the config.
    machines = jax.process_count() if resources.platform == "cpu" else 1
    writer.write_info(
        info := {
            "schema_version": 1,
            "run_name": config.run_name,
            "tags": list(config.tags),
            "config": described,
            **measured,
            "platform": resources.platform,
            "device_name": resources.device_name,
            "num_devices": resources.num_devices * machines,
            "num_chips": resources.num_chips * machines,
            "num_processes": jax.process_count(),
            "device_flops": resources.device_flops,
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


def opening(config: TrainLmConfig, info: dict[str, Any], first_step: int, compile_time: float) -> str:
    """What is about to happen, in a line."""
    steps = f"{config.train.num_train_steps:,} steps" + (f" from step {first_step:,}" if first_step else "")
    return (
        f"training {info['num_parameters']:,} parameters in {info['precision']} on {info['num_chips']} x {info['device_name']}:"
        f" {steps}, {config.total_tokens:,} tokens; compiled in {compile_time:.1f} s"
    )


def finish(writer: RunWriter, num_steps: int, stopped_by: str | None = None) -> str:
    """Writes the line that makes the record complete, and says where the wall time went.

    Args:
        stopped_by: what ended the run before all of its steps, "budget"; None for a whole one.
    """
    # ru_maxrss is kilobytes on Linux and bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    reason = {} if stopped_by is None else {"stopped_by": stopped_by}
    writer.append("end", steps=num_steps, peak_memory_bytes=peak, **reason)
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
