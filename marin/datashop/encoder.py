"""The encoder classifier: a pretrained encoder with a regression head, frozen or fine-tuned on the labels.

    EncoderConfig(sample=sample, labels=labels, encoder="/models/gte-base-en-v1.5")
    EncoderConfig(sample=sample, labels=labels, encoder=pretrain_encoder_step(pool), fine_tune=False)

    encoder/          the encoder in Hugging Face's layout, with its tokenizer
    head.npz          the weights of the head
    training.json     what was tried: the head alone, each measurement while fine-tuning, and which was kept
    classifier.json, quality.json

`encoder_fit` trains it and `encoder_scoring` scores by it, both of which need JAX; this file imports them when they are used.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from marin.datashop.classifier import TrainClassifierConfig
from marin.errors import ConfigError, DataError
from marin.execution.step import Input, placement
from marin.number_checks import check_whole
from marin.storage import files

if TYPE_CHECKING:
    from marin.datashop.encoder_scoring import EncoderClassifier

ENCODER, HEAD, TRAINING = "encoder", "head.npz", "training.json"
ORIGIN_FILE = "pretraining.json"
CPU_SIZE = "CPU size, no evidence about BERT"
"""What is said of every encoder that was pretrained on the pool."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TrainClassifierConfig):
    """Args:
    encoder: a local folder in Hugging Face's layout (BERT, RoBERTa or GTE), or a `pretrain_encoder_step`.
    fine_tune: train all weights; False keeps the encoder as it is and fits the head alone to its vectors.
    pooling: what stands for a document: "cls", the first position, or "mean", of all positions.
    max_tokens: a document is cut to this many, with the marks at its ends.
    batch_size: documents a step.
    num_epochs: passes over the documents that are learned from, when fine-tuning.
    learning_rate: peak of AdamW's rate, reached after `warmup` of all steps, from where it falls to zero in a line.
    eval_every: steps between measurements of macro-F1 of rounded labels, by which the weights to keep are chosen.
    selection_fraction: of the documents to learn from, those that weights are chosen on; the held-out ones take no part in it.
    compute: "f32" or "bf16"; None is what suits the device.
    checkpoint_interval: seconds between checkpoints to resume from.
    """

    kind: ClassVar[str] = "encoder"
    marin_resumable: ClassVar[bool] = True

    encoder: Input = ""
    fine_tune: bool = True
    pooling: str = "cls"
    max_tokens: int = 512
    batch_size: int = 128
    num_epochs: float = 3.0
    learning_rate: float = 3e-5
    weight_decay: float = 0.01
    warmup: float = 0.1
    eval_every: int = 100
    selection_fraction: float = 0.1
    compute: str | None = placement(default=None)
    checkpoint_interval: float = placement(default=120.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.encoder:
            raise ConfigError(
                "config field `encoder` is empty: give a folder in Hugging Face's layout, or a `pretrain_encoder_step`"
            )
        if self.pooling not in ("cls", "mean"):
            raise ConfigError(f"config field `pooling` is {self.pooling!r}: use 'cls' or 'mean'")
        for name in ("max_tokens", "batch_size", "eval_every"):
            check_whole(f"config field `{name}`", getattr(self, name))
        for name in ("num_epochs", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"config field `{name}` is {getattr(self, name)!r}: use a number above 0")
        if not 0 < self.selection_fraction < 1:
            raise ConfigError(
                f"config field `selection_fraction` is {self.selection_fraction!r}: use a fraction between 0 and 1"
            )

    def train(self) -> None:
        from marin.datashop.encoder_fit import train_encoder

        train_encoder(self)


def load(folder: str, record: dict[str, Any]) -> "EncoderClassifier":
    """The classifier in a folder; `record` is what its `classifier.json` says.

    Raises:
        DataError, CheckpointError: record, weights or tokenizer are damaged or missing.
    """
    from marin.datashop.encoder_scoring import EncoderClassifier, RegressionHead, open_text_encoder

    try:
        pooling, max_tokens = str(record["pooling"]), int(record["max_tokens"])
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{folder} says no whole encoder classifier ({error!r}): train the classifier again") from None
    encoder = open_text_encoder(files.local_path(files.join(folder, ENCODER)), pooling, max_tokens, None)
    head = RegressionHead.load(files.join(folder, HEAD))
    if head.weight_D.shape != (encoder.width,):
        raise DataError(
            f"{files.join(folder, HEAD)} is for vectors of {head.weight_D.size}, the encoder makes {encoder.width}: train the"
            " classifier again"
        )
    return EncoderClassifier(encoder, head)


def encoder_folder(path: str) -> Path:
    """The folder of the encoder at `path`: itself, or what a `pretrain_encoder_step` has left below it.

    Raises:
        ConfigError: there is none.
    """
    folder = Path(files.local_path(path)).expanduser()
    for candidate in (folder, folder / ENCODER):
        if (candidate / "config.json").is_file():
            return candidate
    raise ConfigError(
        f"`encoder` is {path!r}, where no config.json is: give a local folder in Hugging Face's layout with config.json,"
        " model.safetensors and tokenizer.json"
    )


def origin_of(folder: Path) -> dict[str, Any]:
    """Where an encoder comes from, for `classifier.json` and reports; with `note` where its size limits what it shows.

    Raises:
        DataError: its record is damaged.
    """
    path = folder / ORIGIN_FILE
    weights = {each.name: files.sha256_file(str(each)) for each in sorted(folder.glob("*.safetensors"))}
    if not path.is_file():
        return {"origin": folder.resolve().name, "origin_weights": weights, "note": None}
    try:
        pretraining = dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path} is no record of a pretraining ({error}): restore it, run the step that pretrains the encoder again, or"
            " remove the file if the encoder comes from elsewhere"
        ) from None
    return {
        "origin": "masked prediction on the pool",
        "origin_weights": weights,
        "note": CPU_SIZE,
        "pretraining": pretraining,
    }
