"""Training the base model: the engine's loop, with validation, CORE and samples at their own pace, and figures at the end.

The run directory is that of every training run, with `base_train.json` beside it, which is written last. Two times are
reported: `total_training_time`, the project's (all steps, waiting for data included, pauses not), and
`total_training_time_after_10_steps`, nanochat's (the same without the first eleven steps).
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax

from marin.data.tokenizer import Tokenizer
from marin.evaluation import bits_per_byte
from marin.evaluation.bits_per_byte import BitsPerByte
from marin.evaluation.core import evaluate_core
from marin.evaluation.likelihood import LikelihoodScorer
from marin.execution.step import placement, this_output_path
from marin.gpt2.datasets import ValidationConfig
from marin.gpt2.samples import write_samples
from marin.nn.precision import Precision
from marin.parallel import distributed
from marin.parallel.mesh import ambient, run_mesh
from marin.storage import files
from marin.tracking import RunRecord
from marin.tracking.mirrors import summarize
from marin.training.config import TrainLmConfig
from marin.training.loop import Measurement, train_lm
from marin.training.state import evaluation_model

FIGURES_FILE = "base_train.json"
_FIRST_TIMED_STEP = 11


@dataclasses.dataclass(frozen=True)
class BaseTrainConfig:
    """A training run and what is measured of it.

    Args:
        flags: what the command line said, for people.
        eval_every, core_every, sample_every: steps between two; 0 for never. CORE and samples follow the last step too.
        core_bundle: the folder with CORE's data; None where it is absent, and CORE is not measured.
        core_max_per_task: items of each task; -1 for all.
    """

    marin_resumable: ClassVar[bool] = True
    marin_together: ClassVar[bool] = True

    train: TrainLmConfig
    validation: ValidationConfig
    eval_every: int = placement(default=0)
    core_every: int = placement(default=0)
    sample_every: int = placement(default=0)
    core_bundle: str | None = placement(default=None)
    core_max_per_task: int = placement(default=500)
    flags: Mapping[str, Any] = placement(default_factory=dict)
    output_path: str = this_output_path()


def train_base(config: BaseTrainConfig) -> None:
    """Trains, or continues, and measures; a kill during the last measurement repeats only that."""
    train = config.train
    tokenizer = Tokenizer.load(str(train.tokenizer))
    validation = config.validation.read()
    directory = Path(str(config.output_path))

    def precision() -> Precision:
        return Precision(RunRecord.open(directory).info["precision"])

    def measure_bits(model: Any) -> BitsPerByte:
        return bits_per_byte(
            model,
            validation,
            tokenizer,
            train.model.max_seq_len,
            precision=precision(),
            batch_size=(train.train.per_device_parallelism or 16) * jax.device_count(),
        )

    def evaluate(model: Any, done: int) -> dict[str, float]:
        found = measure_bits(model)
        return {"val_bpb": found.value, "val_bpb_nanochat": found.nanochat}

    def core(model: Any, done: int) -> dict[str, float]:
        assert config.core_bundle is not None
        scorer = LikelihoodScorer(model, precision=precision())
        result = evaluate_core(scorer, tokenizer, config.core_bundle, max_per_task=config.core_max_per_task)
        whole = result.core_metric
        return {"partial_core_metric": result.partial_core_metric} if whole is None else {"core_metric": whole}

    def sample(model: Any, done: int) -> dict[str, float]:
        write_samples(model, tokenizer, train.model.max_seq_len, precision(), directory / f"samples-{done:06d}.json")
        return {}

    measures_core = config.core_bundle is not None and config.core_every > 0
    # All of them are made by all processes together: each computes the same, in the same order.
    measurements = [Measurement("evaluation", config.eval_every, evaluate)] if config.eval_every > 0 else []
    if measures_core:
        measurements.append(Measurement("CORE", config.core_every, core))
    if config.sample_every > 0:
        measurements.append(Measurement("samples", config.sample_every, sample))

    state = train_lm(train, measurements=measurements)
    with distributed.taking_part(), ambient(run_mesh(train.train.resources, train.train.parallelism)):
        model, steps = evaluation_model(state), int(state.step)
        last: dict[str, Any] = evaluate(model, steps) if config.eval_every > 0 else {}
        if measures_core:
            last |= core(model, steps)
        if config.sample_every > 0:
            sample(model, steps)
        if distributed.is_main():
            _write_figures(config, directory, last)


def _write_figures(config: BaseTrainConfig, directory: Path, last: dict[str, Any]) -> None:
    record = RunRecord.open(directory)
    figures = figures_of_run(record) | last
    if "val_bpb" in last:
        figures["min_val_bpb"] = min(
            [last["val_bpb"], *(e["val_bpb"] for e in record.of("evaluation") if "val_bpb" in e)]
        )
    files.write_json(str(directory / FIGURES_FILE), figures)
    wanted = ("total_training_time", "core_metric", "partial_core_metric", "val_bpb", "min_val_bpb", "mfu")
    summarize(directory, record.info, {name: figures[name] for name in wanted if figures.get(name) is not None})
    print("   ".join(f"{name} {figures[name]:.6g}" for name in wanted if figures.get(name) is not None))


def figures_of_run(record: RunRecord) -> dict[str, Any]:
    """What the log of a finished run says of its cost; times in seconds, FLOPs of forward and backward pass."""
    info, steps = record.info, record.steps()
    times = [step["step_time"] for step in steps]
    total = math.fsum(times)
    tokens = sum(step["tokens"] for step in steps)
    flops = 3 * info["model_flops_per_token"] * tokens
    peak = info["num_chips"] * info["device_flops"]
    end = record.of("end")[-1]
    return {
        "steps": len(steps),
        "tokens": tokens,
        "parameters": info["num_parameters"],
        "flops_per_token": 3 * info["model_flops_per_token"],
        "total_flops": flops,
        "total_training_time": total,
        "total_training_time_after_10_steps": math.fsum(times[_FIRST_TIMED_STEP:]),
        "compile_time": math.fsum(start["compile_time"] for start in record.of("start")),
        "tokens_per_second": tokens / total,
        "mfu": flops / (total * peak),
        "train_loss": steps[-1]["loss"],
        "device": info["device_name"],
        "chips": info["num_chips"],
        "processes": info["num_processes"],
        "precision": info["precision"],
        "peak_memory_bytes": _device_memory() or end["peak_memory_bytes"],
        "resumes": len(record.of("start")) - 1,
    }


def _device_memory() -> int | None:
    """The most that the first device has held, in bytes; None where it does not say, as processors do not."""
    stats = jax.local_devices()[0].memory_stats()
    return None if not stats else stats.get("peak_bytes_in_use")


def read_figures(run: Path) -> dict[str, Any]:
    """What `base_train.json` of a finished run says; empty where there is none."""
    path = run / FIGURES_FILE
    return files.read_json(str(path)) if path.is_file() else {}
