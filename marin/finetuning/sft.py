"""Supervised finetuning: a base run goes on with conversations, through the training engine.

Rows are packed by best fit and padded, and no conversation is cut to fill one; only what assistants write is learned. Weights,
and if wanted the optimizer's moments, are those of the base run; the run that comes of it is like any other, with its loss on
held-out conversations and what chat tasks say in `sft.json` beside it, which is written last.
"""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax

from marin.data.loader import BatchSource, open_batches
from marin.data.mixture import Mixture
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError
from marin.evaluation.chat import TaskScore, chat_core
from marin.execution.step import placement, this_output_path
from marin.finetuning.answer_loss import answer_bits_per_byte
from marin.finetuning.chat_scores import AskedModel, ChatEvalOptions, available_tasks, chat_scores, open_task
from marin.finetuning.conversations import VALIDATION
from marin.finetuning.origin import FinetuneRates, Origin, finetuning_optimizer, with_context
from marin.flags import named_as_flags
from marin.inference.options import MAX_SEED
from marin.nn.precision import Precision
from marin.optim.config import check_range
from marin.parallel import distributed
from marin.parallel.mesh import ambient, run_mesh
from marin.resources import Resources
from marin.storage import files
from marin.tracking import RunRecord
from marin.tracking.mirrors import summarize
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import Measurement, train_lm
from marin.training.state import evaluation_model

FIGURES_FILE = "sft.json"
_MOMENTUM = (0.85, 0.95, 300)
_EVAL_ROWS = 16
# How long answers may be while finetuning goes on is no flag of it.
_SHORTER_ANSWERS = (
    "`--chatcore-every -1` leaves the questions to `scripts.chat_eval -i sft`, whose `--max-new-tokens {}`"
)


@dataclasses.dataclass(frozen=True)
class SftConfig:
    """A finetuning run.

    Args:
        data: the output of `tokenize_conversations`.
        origin_digest: the identity of the checkpoint at `origin`.
        num_iterations: steps; -1 for once through the data.
        max_seq_len, total_batch_size, device_batch_size: tokens of a row and of a step, rows a device takes at once; None for
            those of the base run.
        load_optimizer: whether to begin with the base run's moments.
        eval_every, chatcore_every: steps between measurements of the loss and of chat tasks; below 1 for none in between, and of the
            latter for none at the end. Several processes ask no tasks (`asks_tasks`).
        eval_tokens: of the former.
        chat_eval: how tasks are asked in the latter.
    """

    marin_resumable: ClassVar[bool] = True
    marin_together: ClassVar[bool] = True

    resources: Resources
    data: Any
    origin_digest: str
    rates: FinetuneRates = FinetuneRates()
    num_iterations: int = -1
    max_seq_len: int | None = None
    total_batch_size: int | None = None
    load_optimizer: bool = True
    seed: int = 42
    origin: str = placement(default="")
    device_batch_size: int | None = placement(default=None)
    eval_every: int = placement(default=200)
    eval_tokens: int = placement(default=40 * 524_288)
    chatcore_every: int = placement(default=200)
    chat_eval: ChatEvalOptions = placement(default=ChatEvalOptions(max_replies=24))
    task_data: str = placement(default="")
    run_name: str = placement(default="run")
    checkpoint_interval: float = placement(default=600.0)
    flags: Mapping[str, Any] = placement(default_factory=dict)
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        check_range("checkpoint_interval", self.checkpoint_interval, above=0.0)
        check_range("seed", self.seed, at_least=0, at_most=MAX_SEED, whole=True)
        if self.eval_tokens < 1:
            raise ConfigError(f"`--eval-tokens` is {self.eval_tokens}: use at least 1")
        for name, otherwise in (
            ("num_iterations", "-1 for once through the data"),
            ("total_batch_size", "leave it out for that of the base run"),
            ("device_batch_size", "leave it out for that of the base run"),
        ):
            value = getattr(self, name)
            if value is not None and value != -1 and value < 1:
                raise ConfigError(f"`--{name.replace('_', '-')}` is {value}: use at least 1, or {otherwise}")


def train_sft(config: SftConfig) -> None:
    """Trains, or continues, and measures; a kill during the last measurement repeats only that.

    Raises:
        ConfigError: the flags do not go together, or not with the base run.
    """
    origin = Origin.reopen(config.origin, config.origin_digest)
    train = training_config(config, origin)
    tokenizer = Tokenizer.load(origin.tokenizer)
    directory = Path(str(config.output_path))
    validation = _validation_rows(config, train, tokenizer)

    def precision() -> Precision:
        return Precision(RunRecord.open(directory).info["precision"])

    def loss(model: Any, max_rows: int | None) -> dict[str, float]:
        value = answer_bits_per_byte(
            model,
            validation,
            tokenizer,
            precision=precision(),
            batch_size=(train.train.per_device_parallelism or _EVAL_ROWS) * jax.device_count(),
            max_rows=max_rows,
        )
        return {"val_bpb": value}

    def ask(model: Any) -> list[TaskScore]:
        tasks = [open_task(name, Path(config.task_data)) for name in available_tasks(Path(config.task_data))]
        asked = AskedModel(model, tokenizer, precision(), train.model.max_seq_len)
        return chat_scores(asked, tasks, config.chat_eval, shorter=_SHORTER_ANSWERS)

    asks = asks_tasks(config.chatcore_every, os.environ)
    measurements = []
    if config.eval_every > 0:
        some = -(-config.eval_tokens // train.model.max_seq_len)
        measure = Measurement("evaluation", config.eval_every, lambda model, done: loss(model, some))
        measurements.append(measure)
    if asks:
        asking = Measurement("evaluation", config.chatcore_every, lambda model, done: figures_of(ask(model)))
        measurements.append(asking)
    if distributed.process_index(os.environ) == 0:
        origin.note(directory)
    state = train_lm(train, measurements=measurements)
    if (directory / FIGURES_FILE).exists():
        return
    with distributed.taking_part(), ambient(run_mesh(train.train.resources, train.train.parallelism)):
        model = evaluation_model(state)
        last = loss(model, None)
        scores = ask(model) if asks else []
        if distributed.is_main():
            _write_figures(config, directory, last, scores)


def asks_tasks(every: int, environment: Mapping[str, str]) -> bool:
    """Whether chat tasks are asked every so many steps; not by several processes, which take each step of a computation together, as
    generating does not: the first of them says so."""
    if every < 1:
        return False
    is_alone = distributed.processes_of(environment) is None
    if not is_alone and distributed.process_index(environment) == 0:
        print(
            "note: several processes finetune together, and ask no chat tasks meanwhile: `python -m scripts.chat_eval -i sft` asks"
            " them afterwards",
            file=sys.stderr,
        )
    return is_alone


def training_config(config: SftConfig, origin: Origin) -> TrainLmConfig:
    """What the training engine is given.

    Raises:
        ConfigError: the batch is no whole number of rows.
    """
    model = with_context(origin.model, config.max_seq_len or origin.model.max_seq_len)
    inherited = origin.batch_size * origin.seq_len
    batch_tokens = inherited if config.total_batch_size in (None, -1) else config.total_batch_size
    rows, rest = divmod(batch_tokens, model.max_seq_len)
    if rest or rows < 1:
        raise ConfigError(
            f"`--total-batch-size` is {batch_tokens} tokens, no whole number of rows of {model.max_seq_len}: use a multiple of it"
        )
    data = Mixture({"conversations": str(config.data)}, {"conversations": 1.0}, packing="best_fit_truncate")
    tokenizer = Tokenizer.load(origin.tokenizer)
    steps = config.num_iterations
    if steps == -1:
        steps = max(1, open_batches(data, model.max_seq_len, tokenizer.bos_id).components[0].rows.num_rows // rows)
    optimizer = finetuning_optimizer(
        origin, config.rates, batch_scale=(batch_tokens / inherited) ** 0.5, momentum=_MOMENTUM
    )
    per_device = origin.per_device if config.device_batch_size in (None, -1) else config.device_batch_size
    if config.load_optimizer and not origin.is_gpt_muon:
        print("note: the base run has another optimizer than finetuning: its moments are not taken over")
    with named_as_flags({"per_device_parallelism": "--device-batch-size"}):
        train = SimpleTrainConfig(
            config.resources,
            train_batch_size=rows,
            num_train_steps=steps,
            learning_rate=optimizer.learning_rate,
            optimizer_config=optimizer,
            data_seed=config.seed,
            seed=config.seed,
            precision=Precision(origin.precision),
            initialize_from_checkpoint_path=str(origin.checkpoint.path),
            initialize_optimizer=config.load_optimizer and origin.is_gpt_muon,
            per_device_parallelism=min(per_device, rows) if per_device else None,
            steps_per_export=max(steps, 1),
            steps_per_hf_export=-1,
            checkpoint_interval=config.checkpoint_interval,
            watch=WatchConfig(watch_targets=[]),
        )
    return TrainLmConfig(
        model=model,
        train=train,
        data=data,
        tokenizer=origin.tokenizer,
        vocab_size=origin.vocab_size,
        output_path=config.output_path,
        run_name=config.run_name,
    )


def figures_of(scores: list[TaskScore]) -> dict[str, float]:
    """The accuracy of each task, and ChatCORE under the name that it deserves."""
    core = chat_core(scores)
    figures = {f"{score.name} accuracy": score.accuracy for score in scores}
    if core is not None:
        figures["chatcore" if core.is_whole else "partial_chatcore"] = core.value
    return figures


def read_figures(run: Path) -> dict[str, Any]:
    """What `sft.json` of a finished run says."""
    figures: dict[str, Any] = files.read_json(str(run / FIGURES_FILE))
    return figures


def _validation_rows(config: SftConfig, train: TrainLmConfig, tokenizer: Tokenizer) -> BatchSource:
    path = files.join(str(config.data), VALIDATION)
    data = Mixture({"validation": path}, {"validation": 1.0}, packing="best_fit_truncate")
    return open_batches(data, train.model.max_seq_len, tokenizer.bos_id)


def _write_figures(config: SftConfig, directory: Path, last: dict[str, float], scores: list[TaskScore]) -> None:
    record = RunRecord.open(directory)
    steps = record.steps()
    tasks = {score.name: score.as_json() for score in scores}
    named = figures_of(scores)
    figures: dict[str, Any] = {
        "steps": len(steps),
        "tokens": sum(step["tokens"] for step in steps),
        "training_time": sum(step["step_time"] for step in steps),
        "train_loss": steps[-1]["loss"],
        **last,
        "chatcore": named.get("chatcore"),
        "partial_chatcore": named.get("partial_chatcore"),
    }
    files.write_json(str(directory / FIGURES_FILE), figures | {"tasks": tasks})
    summarize(directory, record.info, last | named)
    shown = " ".join(f"  {name} {value:.4g}" for name, value in (last | named).items())
    print(f"finetuned {len(steps):,} steps:{shown}")
