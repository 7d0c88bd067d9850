"""The functions that a speedrun's steps run: train, evaluate, results, page. Each takes its resolved config."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError, ResultsError
from marin.evaluation import (
    EvalSet,
    Scorer,
    bits_per_byte,
    bits_per_byte_of,
    compressor_bits_per_byte,
    probe_validity,
)
from marin.evaluation.exported import export_program
from marin.evaluation.harness_tasks import TaskEvaluator
from marin.evaluation.training_tokens import TrainingSample
from marin.execution.attempts import usual_path
from marin.execution.replaced_code import replaced_code
from marin.execution.step import placement, this_output_path
from marin.inference import sample_text
from marin.nn.precision import Precision
from marin.parallel import distributed
from marin.speedrun import scoring_apart
from marin.speedrun.dataset import describe_cache
from marin.speedrun.evaluation_record import EVALUATION_FILE
from marin.speedrun.results import FILE_NAME, RunInfo, write_results
from marin.speedrun.run_results import SubmissionInfo, results_from_run
from marin.storage import files
from marin.tracking import RunRecord
from marin.tracking.console import duration, said_if_long
from marin.training import checkpoint as checkpoints
from marin.training.compile_cache import use_compile_cache
from marin.training.config import STEPS_PER_TASK_EVAL, TrainLmConfig
from marin.training.loop import Evaluate, Measurement, train_lm
from marin.training.traced_flops import scoring_flops

_PROMPT, _SAMPLE_TOKENS = "Return the ", 160  # of the text that a trained model writes


@dataclasses.dataclass(frozen=True)
class SpeedrunTrainConfig:
    """A training run, and the documents that it is scored on as it goes."""

    marin_resumable = True
    marin_together = True

    train: TrainLmConfig
    evaluation_set: str
    evaluation_documents: Any
    run_info: Callable[[], str] | None = placement(default=None, repr=False)
    check: Callable[..., None] | None = placement(default=None, repr=False)

    def dry_run_info(self) -> str | None:
        return None if self.run_info is None else self.run_info()

    def check_before_run(self, *, on_this_machine: bool) -> None:
        if self.check is not None:
            self.check(on_this_machine=on_this_machine)


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """Scoring a finished run, in the precision that it was trained in.

    `num_bytes_compressed` limits what compressors are given of a large set.
    """

    run: Any
    model: Any
    vocab_size: int
    tokenizer: Any
    evaluation_set: str
    evaluation_documents: Any
    ema: bool
    batch_size: int | None = None
    num_bytes_compressed: int = 16_000_000
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class ResultsConfig:
    """Writing `speedrun_results.json` of an evaluated run, and publishing it where people look."""

    run: Any
    evaluation: Any
    submission: SubmissionInfo
    tokenized_dataset: Any
    prefix: Any
    output_path: str = this_output_path()


def train_speedrun(config: SpeedrunTrainConfig) -> None:
    """Trains, measuring bits per byte every `steps_per_eval` steps, and tasks every `steps_per_task_eval`."""
    train = config.train
    started = time.perf_counter()
    tokenizer = Tokenizer.load(train.tokenizer)
    eval_set = EvalSet.read(config.evaluation_set, config.evaluation_documents)
    train_lm(train, evaluate=_evaluator(config, eval_set, tokenizer), measurements=_task_evaluation(train, tokenizer))
    if distributed.is_main():  # who writes the record; the others may be here before its end is written
        num_steps = RunRecord.open(str(train.output_path)).of("end")[-1]["steps"]
        print(
            f"trained to step {num_steps:,}; this process took {duration(time.perf_counter() - started)} of wall time"
        )


def _evaluator(config: SpeedrunTrainConfig, eval_set: EvalSet, tokenizer: Tokenizer) -> Evaluate:
    train = config.train
    per_device = train.train.per_device_eval_parallelism

    def evaluate(model: Any, max_batches: int | None) -> dict[str, float]:
        precision = Precision(RunRecord.open(str(train.output_path)).info["precision"])
        measured = bits_per_byte(
            model,
            eval_set,
            tokenizer,
            train.model.max_seq_len,
            precision=precision,
            max_batches=max_batches,
            batch_size=_eval_batch_size(per_device),
        )
        return {"bits_per_byte": measured.value}

    return evaluate


def _task_evaluation(config: TrainLmConfig, tokenizer: Tokenizer) -> list[Measurement]:
    if not config.train.task_eval_names:
        return []
    evaluator = TaskEvaluator(config.train.task_eval_names, tokenizer, config.model.max_seq_len)

    def measure(model: Any, done: int) -> dict[str, float]:
        return evaluator(model, Precision(RunRecord.open(str(config.output_path)).info["precision"]))

    every = config.train.steps_per_task_eval or STEPS_PER_TASK_EVAL
    return [Measurement("task evaluation", every, measure, at_end=True)]


def _eval_batch_size(per_device: int | None) -> int:
    return 16 if per_device is None else per_device * len(jax.devices())


def evaluate_speedrun(config: EvaluateConfig) -> None:
    """Loads the last checkpoint, scores it on every evaluation document, probes the score, and lets it write a little."""
    probe_seed = _probe_seed()
    tokenizer = Tokenizer.load(config.tokenizer)
    eval_set = EvalSet.read(config.evaluation_set, config.evaluation_documents)
    use_compile_cache()
    model = load_model(config)
    context = config.model.max_seq_len
    info = RunRecord.open(str(config.run)).info
    precision = Precision(info["precision"])
    batch_size = _eval_batch_size(config.batch_size)
    scorer = Scorer.of(model, precision)
    with said_if_long(f"scoring {eval_set.num_bytes:,} bytes of {eval_set.name}, then probing the score"):
        measured = bits_per_byte_of(scorer, eval_set, tokenizer, context, batch_size=batch_size)
        validity = probe_validity(
            scorer,
            eval_set,
            tokenizer,
            context,
            measured,
            batch_size=batch_size,
            seed=probe_seed,
            training=TrainingSample.of_run(str(config.run), info),
        )
    if os.environ.get(scoring_apart.WANTED):
        _write_program(config, scorer, batch_size)
    scored = scoring_flops(config.model, config.vocab_size, context)
    stream_rows = np.zeros((2, batch_size, context), np.int32)
    data = eval_set.text_bytes()[: config.num_bytes_compressed]
    compressors = compressor_bits_per_byte(data)
    sample = sample_text(
        model,
        tokenizer,
        context_length=min(context, 512),
        precision=precision,
        prompt=_PROMPT,
        num_tokens=_SAMPLE_TOKENS,
    )
    content = {
        "evaluation": {
            "name": measured.set_name,
            "digest": measured.digest,
            "bits_per_byte": measured.value,
            "levanter_bits_per_byte": measured.levanter,
            "bytes": measured.num_bytes,
            "tokens": measured.num_tokens,
            "documents": measured.num_documents,
            "context_length": context,
            "flops_per_token": scored.flops,
            "uncounted": list(scored.uncounted),
            "held_bytes": scorer.constant_bytes(*stream_rows)[0],
            "replaced": replaced_code(),
        },
        "validity": validity.as_json(),
        "compressors": compressors,
        "sample": _PROMPT + sample,
    }
    files.write_json(files.join(config.output_path, EVALUATION_FILE), content)
    print(
        f"bits per byte on {measured.num_bytes:,} held-out bytes: {measured.value:.4f}"
        + "".join(f"   {name.replace('_', ' -')} {value:.3f}" for name, value in compressors.items())
    )
    for name, probe in validity.probes.items():
        if not probe.passed:
            print(
                f"warning: the probe `{name}` failed: {probe.message}; no verdict on these results will pass",
                file=sys.stderr,
            )


def _write_program(config: EvaluateConfig, scorer: Scorer, batch_size: int) -> None:
    """For who scores a run again, see `marin.speedrun.scoring_apart`; a program that cannot be written down is missed there."""
    folder = files.join(config.output_path, scoring_apart.PROGRAM_FOLDER)
    about = scoring_apart.About(
        prefix=_weights(config),
        softcap=scorer.softcap,
        tokenizer=str(config.tokenizer),
        evaluation_set=config.evaluation_set,
        evaluation_documents=str(config.evaluation_documents),
    )
    try:
        export_program(scorer, folder, batch_size, config.model.max_seq_len)
    except DataError as error:
        print(f"warning: {error}", file=sys.stderr)
        return
    files.write_json(files.join(folder, scoring_apart.ABOUT_FILE), dataclasses.asdict(about))


def _probe_seed() -> int | None:
    """Where somebody who scores a run again wants its probes to look; None for where they looked when it was scored."""
    given = os.environ.get("MARIN_PROBE_SEED")
    if given and not given.isdecimal():
        raise ConfigError(f"MARIN_PROBE_SEED is {given!r}: give a whole number, or unset it")
    return int(given) if given else None


def load_model(config: EvaluateConfig) -> Any:
    """The trained model of a run: the average of its weights where one was kept."""
    ends = RunRecord.open(str(config.run)).of("end")
    if not ends:
        raise ResultsError(f"the run in {config.run} has not ended: run the same command again to continue it")
    found = checkpoints.at_step(Path(str(config.run)), ends[-1]["steps"])
    model = config.model.build(config.vocab_size, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)
    return eqx.combine(checkpoints.restore(found, params, prefix=_weights(config)), static)


def _weights(config: EvaluateConfig) -> str:
    """Below which path a checkpoint has the weights that are scored."""
    return "average." if config.ema else "model."


def write_speedrun_results(config: ResultsConfig) -> None:
    """Writes the results, and the newest of them where the documented `cp` commands look."""
    prefix = str(config.prefix)
    dataset = describe_cache(config.tokenized_dataset, prefix)
    info = results_from_run(config.run, config.evaluation, dataset, config.submission)
    write_results(files.join(config.output_path, FILE_NAME), info)
    for place in (str(config.run), files.join(prefix, "checkpoints", "speedrun"), prefix):
        write_results(files.join(place, FILE_NAME), info)
    print(summary(info, usual_path(files.join(config.output_path, FILE_NAME))))


def _mfu(info: RunInfo) -> str:
    traced = "" if info.traced_mfu is None else f", {info.traced_mfu:.1%} (traced FLOPs)"
    return f"{info.mfu:.1%} (model FLOPs){traced}"


def summary(info: RunInfo, path: str) -> str:
    """What a person wants to know when a run is done."""
    assert info.evaluation is not None and info.compressors is not None
    bpb, best = info.evaluation.bits_per_byte, info.compressors.xz_9
    assert bpb is not None and best is not None and info.training_time is not None and info.mfu is not None
    lines = [
        f"  bits per byte      {bpb:.4f}   ({bpb / best:.2f} of what xz -9 needs for the same {info.evaluation.bytes:,} bytes)",
        f"  gzip -9, xz -9, zstd -19   {info.compressors.gzip_9:.3f}, {best:.3f}, {info.compressors.zstd_19:.3f}",
        f"  training time      {duration(info.training_time)}   compile {info.compile_time:.1f} s   MFU {_mfu(info)}",
        f"  hardware FLOPs     {info.training_hardware_flops:.3e}   model FLOPs {info.model_flops:.3e}",
        f"  parameters         {info.model_size:,}   tokens {info.total_tokens:,}",
        f"  peak memory        {(info.peak_memory_bytes or 0) / 2**30:.2f} GiB",
    ]
    if info.resumed:
        lines.append(
            f"  resumed            {info.num_resumes} times; {duration(info.wasted_time or 0)} of work was done twice"
        )
    if info.validity is not None:
        failed = info.validity.failed
        outcome = (
            f"FAILED: {', '.join(failed)}"
            if failed
            else f"the predictions are predictions ({info.validity.seconds:.1f} s)"
        )
        lines.append(f"  validity probes    {outcome}")
    sample = json.dumps((info.sample or "")[:300], ensure_ascii=False)
    return "\n".join([*lines, f"  the model writes   {sample}", f"  results            {path}"])
