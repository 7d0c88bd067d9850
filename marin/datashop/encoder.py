"""The encoder classifier's config: a pretrained encoder with a regression head, frozen or fine-tuned on labels.

    EncoderConfig(sample=sample, labels=labels, encoder="/models/gte-base-en-v1.5", fine_tune=True)

`marin.datashop.encoder_fit` trains it; this file imports no JAX, so that a pipeline can be described without.
"""

import dataclasses
from typing import Any, ClassVar

from marin.errors import ConfigError
from marin.execution.step import placement, this_output_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """An encoder with a regression head.

    Args:
        encoder: a local folder in Hugging Face's layout (BERT, RoBERTa or GTE), or a `pretrain_encoder_step`.
        fine_tune: train all weights; False keeps the encoder as it is and fits the head to its vectors.
        pooling: what stands for a document: "cls", the first position, or "mean", of all positions.
        max_tokens: a document is cut to this many, with the marks at its ends.
        batch_size: documents a step.
        num_epochs: passes over the training part, when fine-tuning.
        learning_rate: peak of AdamW's rate, reached after `warmup` of all steps, then falling to zero in a line.
        eval_every: steps between measurements of macro-F1, by which the weights to keep are chosen.
        selection_fraction: documents of the training part that weights are chosen on; the held-out part takes no part in it.
    """

    marin_resumable: ClassVar[bool] = True

    sample: Any
    labels: Any
    encoder: Any
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
    held_out_fraction: float = 0.1
    seed: int = 0
    threshold: float = 3.0
    compute: str | None = placement(default=None)
    checkpoint_interval: float = placement(default=120.0)
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if self.pooling not in ("cls", "mean"):
            raise ConfigError(f"`pooling` is {self.pooling!r}: use 'cls' or 'mean'")
        for field in ("max_tokens", "batch_size", "eval_every"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"`{field}` is {value!r}: use a whole number of at least 1")
        for field in ("held_out_fraction", "selection_fraction"):
            if not 0 < getattr(self, field) < 1:
                raise ConfigError(f"`{field}` is {getattr(self, field)!r}: use a share between 0 and 1")
