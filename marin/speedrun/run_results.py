"""From a run directory to its results: a pure function of the files that the run and its evaluation left.

`results_from_run(directory)` reads `run.json`, `metrics.jsonl` and `evaluation.json` and recomputes every figure; it can
be run again at any time and gives the same file.
"""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

from marin.errors import ResultsError
from marin.speedrun.evaluation_record import EVALUATION_FILE, EvaluationRecord
from marin.speedrun.results import Author, Digests, RunInfo, timestamp
from marin.speedrun.tracks import C4_EN
from marin.tracking import log_chain
from marin.tracking.goodput import wall_time
from marin.tracking.run_record import METRICS_FILE, RUN_FILE, RunRecord


@dataclasses.dataclass(frozen=True)
class SubmissionInfo:
    """What a results file says that the run directory does not: whose it is, and what the config claims."""

    author: dict[str, Any] | None
    description: str
    model_flops_per_token: float
    counted_flops_per_token: float


def results_from_run(
    run_directory: str | Path, evaluation_directory: str | Path, tokenized_dataset: str, submission: SubmissionInfo
) -> RunInfo:
    """The results of a finished and evaluated run; configs and hardware are those that it recorded, not those of today.

    Raises:
        ResultsError: if the run is not complete, steps are missing from its log, or the evaluation is of another run.
    """
    directory = Path(run_directory)
    record = RunRecord.open(directory)
    check_steps(record)
    evaluated = _read_evaluation(Path(evaluation_directory) / EVALUATION_FILE)
    evaluation = evaluated.evaluation
    assert evaluation is not None
    figures = figures_of_log(record, submission.model_flops_per_token)
    author = submission.author or {"name": "(none given)", "affiliation": "(none given)", "url": None}
    run, metrics = (directory / RUN_FILE).read_bytes(), (directory / METRICS_FILE).read_bytes()
    head = log_chain.head_of(run, metrics)
    return RunInfo(
        author=Author(**author),
        description=submission.description,
        tokenized_dataset=tokenized_dataset,
        counted_flops_per_token=submission.counted_flops_per_token,
        c4_en_bpb=evaluation.levanter_bits_per_byte if evaluation.name == C4_EN else None,
        evaluation=evaluation,
        validity=evaluated.validity,
        compressors=evaluated.compressors,
        sample=evaluated.sample,
        digests=Digests(
            **digests_of_log(record, run, metrics, head),
            evaluation_set=evaluation.digest,
            evaluation_link=evaluated.link(head),
        ),
        **figures,
    )


def figures_of_log(record: RunRecord, model_flops_per_token: float) -> dict[str, Any]:
    """What a results file says of a run that follows from its log, by the attributes of `RunInfo`.

    Sums are correctly rounded, so that every Python gives the same digits. Verification computes them again with this function.

    Args:
        record: of a run that `check_steps` has nothing against.
        model_flops_per_token: what the model's config claims.
    """
    info, steps, starts, end = record.info, record.steps(), record.of("start"), record.of("end")[-1]
    train_config = dict(info["config"]["train"])
    resources = train_config.pop("resources")
    total_tokens = sum(step["tokens"] for step in steps)
    training_time = math.fsum(step["step_time"] for step in steps)
    hardware_flops = training_time * info["num_chips"] * info["device_flops"]
    model_flops = 3 * model_flops_per_token * total_tokens
    traced = info.get("traced_flops_per_token") or {}
    traced_training = traced.get("training")
    traced_flops = None if traced_training is None else traced_training * total_tokens
    return {
        "model": info["config"]["model"],
        "train_config": train_config,
        "resources": resources,
        "model_size": info["num_parameters"],
        "total_tokens": total_tokens,
        "num_train_steps": len(steps),
        "model_flops": model_flops,
        "model_flops_per_token": model_flops_per_token,
        "traced_flops": traced_flops,
        "traced_flops_per_token": traced.get("forward"),
        "traced_training_flops_per_token": traced_training,
        "device_name": info["device_name"],
        "platform": info["platform"],
        "processor": (info.get("host") or {}).get("cpu_model") if info["platform"] == "cpu" else None,
        "num_devices": info["num_devices"],
        "num_chips": info["num_chips"],
        "device_flops": info["device_flops"],
        "training_time": training_time,
        "compile_time": math.fsum(start["compile_time"] for start in starts),
        "wasted_time": math.fsum(step["step_time"] for step in record.superseded()),
        "training_hardware_flops": hardware_flops,
        "mfu": model_flops / hardware_flops,
        "traced_mfu": None if traced_flops is None else traced_flops / hardware_flops,
        "wall_time": wall_time(record.events).as_json(),
        "peak_memory_bytes": end["peak_memory_bytes"],
        "run_completion_timestamp": timestamp(end["time"]),
        "wandb_run_link": next((entry["wandb_url"] for entry in record.of("mirror") if entry.get("wandb_url")), None),
        "seed": info["seeds"]["model"],
        "resumed": len(starts) > 1,
        "num_resumes": len(starts) - 1,
        "stopped_by": end.get("stopped_by"),
        "git_commit": info["git"]["commit"],
        "git_dirty": info["git"]["dirty"],
    }


def digests_of_log(record: RunRecord, run: bytes, metrics: bytes, head: str) -> dict[str, str | None]:
    """What binds a results file to its log, by the attributes of `Digests`.

    Args:
        run, metrics: the bytes of `run.json` and `metrics.jsonl`.
        head: of the hash chain over both.
    """
    found, ends = record.info["digests"], record.of("end")
    return {
        "config": found["config"],
        "data": found["data"],
        "tokenizer": found["tokenizer"],
        "checkpoint": ends[-1].get("checkpoint") if ends else None,
        "run": hashlib.sha256(run).hexdigest(),
        "metrics_log": hashlib.sha256(metrics).hexdigest(),
        "log_head": head,
    }


def check_steps(record: RunRecord) -> None:
    """Raises:
    ResultsError: if the run has not ended, or its log or `run.json` lacks what results are made from.
    """
    directory = record.directory
    if not record.is_complete:
        raise ResultsError(f"the run in {directory} has not ended: run the same command again to continue it")
    numbers = [step["step"] for step in record.steps()]
    expected = record.of("end")[-1]["steps"]
    if numbers != list(range(expected)):
        missing = next((i for i, number in enumerate(numbers) if i != number), len(numbers))
        raise ResultsError(
            f"{directory / METRICS_FILE} has {len(numbers)} steps of {expected}, the first gap at step {missing}: the log was"
            " changed after it was written, so no result can be made from it"
        )
    for key in ("num_chips", "device_flops", "num_parameters", "seeds", "git", "digests"):
        if key not in record.info:
            raise ResultsError(f"{directory / RUN_FILE} has no `{key}`: it was changed after it was written")


def _read_evaluation(path: Path) -> EvaluationRecord:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read ({error}): run the evaluation step again") from None
    return EvaluationRecord.parse(content, str(path))
