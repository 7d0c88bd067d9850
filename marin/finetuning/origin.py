"""The run that finetuning begins from: its model, its tokenizer, and the rates that its optimizer had.

Rates are inherited as the base run had them, each times `init_lr_frac`. A finetuned run notes them in `origin.json`, so that
one that begins from it inherits those of the base run too, and not what finetuning made of them.
"""

import dataclasses
from pathlib import Path
from typing import Any

from marin.data.batch_schedule import BatchSchedule
from marin.data.tokenizer import Tokenizer
from marin.errors import CheckpointError, ConfigError, ResultsError
from marin.models.described import config_of_class
from marin.optim import AdamConfig, OptimizerConfig
from marin.optim.config import check_range
from marin.optim.gpt_muon import GptMuonConfig
from marin.storage import files
from marin.tracking.run_record import RUN_FILE, require_fields
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint
from marin.training.checkpoint_manifest import seal_of
from marin.training.run_info import read_run_info
from marin.training.run_model import check_tokenizer_of_run, for_any_device
from marin.training.run_paths import recorded_path

ORIGIN_FILE = "origin.json"
_RATES = (
    "learning_rate",
    "embedding_lr",
    "value_embedding_lr",
    "head_lr",
    "residual_scale_lr",
    "input_scale_lr",
    "mixing_lr",
)


def _optimizer_of(note: Path) -> dict[str, Any]:
    """What an `origin.json` says of the optimizer that a finetuned run inherited.

    Raises:
        ResultsError: it is not what `Origin.note` writes.
    """
    content = files.read_json(str(note))
    if not isinstance(content, dict) or not isinstance(content.get("optimizer"), dict):
        raise ResultsError(f"{note} was changed after it was written: remove its run, and finetune again")
    found: dict[str, Any] = content["optimizer"]
    return found


@dataclasses.dataclass(frozen=True)
class Origin:
    """A run to begin from.

    Args:
        optimizer: the fields of the base run's optimizer; empty if they are not known.
        batch_size, seq_len: sequences a step, and tokens of each: those of its training, which may be fewer than the context.
        precision: the number format that it was trained in.
    """

    checkpoint: Checkpoint
    digest: str
    model: Any
    model_class: str
    vocab_size: int
    tokenizer: str
    optimizer: dict[str, Any]
    batch_size: int
    seq_len: int
    per_device: int | None
    precision: str

    @staticmethod
    def open(path: str | Path, step: int | None = None) -> "Origin":
        """A run's output directory, or one of its checkpoints/step-*.

        Raises:
            CheckpointError: there is no such checkpoint, or it is damaged.
            DataError: its tokenizer is not there, or is another one.
            ResultsError: `run.json` is not that of a training run.
        """
        found = checkpoints.find(str(path)) if step is None else checkpoints.at_step(Path(path), step)
        run = found.path.parents[1]
        info = read_run_info(run)
        if info is None or "model_class" not in info:
            raise CheckpointError(f"{run} has no run.json that names the model's class: it is not a run to begin from")
        require_fields(info, run / RUN_FILE, "config.model", "config.vocab_size", "config.tokenizer")
        config, note = info["config"], run / ORIGIN_FILE
        train = config.get("train") or {}
        inherited = _optimizer_of(note) if note.exists() else None
        described = train.get("optimizer_config") or {"learning_rate": train.get("learning_rate", 3e-4)}
        model = for_any_device(config_of_class(info["model_class"], config["model"]))
        check_tokenizer_of_run(Tokenizer.load(recorded_path(str(config["tokenizer"]), run)), info, run)
        return Origin(
            checkpoint=found,
            digest=seal_of(found.path),
            model=model,
            model_class=info["model_class"],
            vocab_size=int(config["vocab_size"]),
            tokenizer=recorded_path(str(config["tokenizer"]), run),
            optimizer=described if inherited is None else inherited,
            batch_size=BatchSchedule.of(train.get("train_batch_size", 1)).entries[-1][1],
            seq_len=train.get("train_seq_len") or model.max_seq_len,
            per_device=train.get("per_device_parallelism"),
            precision=str(info.get("precision") or "f32"),
        )

    @staticmethod
    def reopen(path: str, digest: str) -> "Origin":
        """What was at `path` when a command began.

        Raises:
            ConfigError: it is another checkpoint by now.
        """
        origin = Origin.open(path)
        if origin.digest != digest:
            raise ConfigError(f"{path} is another checkpoint than when the command began: run it again")
        return origin

    @property
    def is_gpt_muon(self) -> bool:
        """Whether it was trained with the pipeline's optimizer groups."""
        return "head_lr" in self.optimizer and "embedding_lr" in self.optimizer

    def note(self, directory: Path) -> None:
        """Writes `origin.json` beside a run that begins here."""
        content = {"checkpoint": str(self.checkpoint.path), "digest": self.digest, "optimizer": self.optimizer}
        files.write_json(str(directory / ORIGIN_FILE), content)


@dataclasses.dataclass(frozen=True)
class FinetuneRates:
    """The learning rates of finetuning.

    Args:
        embedding_lr, unembedding_lr, matrix_lr: at the first step, before `init_lr_frac`; None for those of the base run.
        init_lr_frac: all rates are multiplied by it.
        warmup_ratio, warmdown_ratio: shares of the steps over which they rise, and fall at the end.
        final_lr_frac: what they fall to.
    """

    embedding_lr: float | None = None
    unembedding_lr: float | None = None
    matrix_lr: float | None = None
    init_lr_frac: float = 0.8
    warmup_ratio: float = 0.0
    warmdown_ratio: float = 0.5
    final_lr_frac: float = 0.0

    def __post_init__(self) -> None:
        for name in ("embedding_lr", "unembedding_lr", "matrix_lr"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), above=0.0)
        check_range("init_lr_frac", self.init_lr_frac, above=0.0)
        for name in ("warmup_ratio", "warmdown_ratio", "final_lr_frac"):
            check_range(name, getattr(self, name), at_least=0.0, at_most=1.0)
        if self.warmup_ratio + self.warmdown_ratio > 1:
            raise ConfigError(
                f"`--warmup-ratio` {self.warmup_ratio} and `--warmdown-ratio` {self.warmdown_ratio} are more than all steps: lower one"
            )


def finetuning_optimizer(
    origin: Origin, rates: FinetuneRates, *, batch_scale: float = 1.0, momentum: tuple[float, float, int]
) -> OptimizerConfig:
    """The base run's kind of optimizer without weight decay for matrices, and with the schedule of finetuning.

    Of a run of another kind than the pipeline's, Adam takes the place, with that run's peak rate.

    Args:
        batch_scale: inherited rates are multiplied by it, but for that of smear and backout, which goes by no batch
            (`marin.gpt2.depth`); the root of what the batch has grown by.
        momentum: of the matrices: at first, later, and the steps in between.
    Raises:
        ConfigError: a rate is given for a part of the weights that has none of its own.
    """
    schedule: dict[str, Any] = {
        "weight_decay": 0.0,
        "warmup": rates.warmup_ratio,
        "decay": rates.warmdown_ratio,
        "min_lr_ratio": rates.final_lr_frac,
        "lr_schedule": "linear",
    }
    if not origin.is_gpt_muon:
        for name in ("embedding_lr", "unembedding_lr"):
            if getattr(rates, name) is not None:
                raise ConfigError(
                    f"`--{name.replace('_', '-')}` is {getattr(rates, name)}, but of a run of another optimizer than the"
                    " pipeline's all weights have one rate: leave it out, and give that one as `--matrix-lr`"
                )
        rate = rates.matrix_lr or origin.optimizer["learning_rate"] * batch_scale
        return AdamConfig(learning_rate=rate * rates.init_lr_frac, max_grad_norm=1.0, **schedule)
    base = config_of_class("marin.optim.gpt_muon:GptMuonConfig", origin.optimizer)
    assert isinstance(base, GptMuonConfig)
    found = {name: getattr(base, name) * (1.0 if name == "mixing_lr" else batch_scale) for name in _RATES}
    if rates.matrix_lr is not None:
        found["learning_rate"] = rates.matrix_lr
    if rates.embedding_lr is not None:
        found |= {"embedding_lr": rates.embedding_lr, "value_embedding_lr": 0.5 * rates.embedding_lr}
    if rates.unembedding_lr is not None:
        found["head_lr"] = rates.unembedding_lr
    first, later, steps = momentum
    return dataclasses.replace(
        base,
        **{name: rate * rates.init_lr_frac for name, rate in found.items()},
        momentum_start=first,
        momentum=later,
        momentum_end=later,
        momentum_steps=steps,
        **schedule,
    )


def with_context(model: Any, max_seq_len: int) -> Any:
    """The model's config with another context; windows stay as they were trained.

    Raises:
        ConfigError: the model's config has no context that can be changed.
    """
    if max_seq_len == model.max_seq_len:
        return model
    if max_seq_len < 2:
        raise ConfigError(f"`--max-seq-len` is {max_seq_len}: use at least 2")
    if not hasattr(model, "seq_len"):
        raise ConfigError(f"`--max-seq-len` cannot change the context of a {type(model).__name__}: leave it out")
    changes: dict[str, Any] = {"seq_len": max_seq_len}
    if hasattr(model, "short_window"):
        windows = {model.window(layer) for layer in range(model.num_layers)} - {None}
        changes["short_window"] = windows.pop() if windows else None
    return dataclasses.replace(model, **changes)
