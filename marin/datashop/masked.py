"""An encoder pretrained by masked prediction on the pool, for where there is no published one.

    encoder = pretrain_encoder_step("encoders/pool", pool)
    EncoderConfig(sample=sample, labels=labels, encoder=encoder)

    encoder/config.json, model.safetensors, tokenizer.json     as any other encoder
    encoder/pretraining.json                                   what it was trained on, and how well it predicts

At the sizes that a processor trains such an encoder says nothing about BERT: every classifier made of it carries that note.
`masked_fit` trains; this file imports no JAX.
"""

from dataclasses import dataclass
from typing import ClassVar

from marin.data.tokenizer.for_encoders import SPECIAL_TOKENS
from marin.errors import ConfigError
from marin.execution.step import ExecutorStep, Input, has_versioned, placement, this_output_path
from marin.number_checks import check_whole


@dataclass(frozen=True, kw_only=True)
class PretrainEncoderConfig:
    """The default is a GTE-like encoder of 1.9 million parameters, embeddings included.

    Args:
        documents: the pool, a document set or a `.jsonl.zst` path.
        vocab_size: of the byte-level BPE that is trained on the pool.
        max_tokens: of a row in training, and the most that the encoder takes.
        rotary: rotate queries and keys and gate the feed-forward, as GTE does; False is BERT's architecture.
        mask_fraction: of the tokens that are to be predicted: of them 80 % are masked, 10 % replaced, 10 % left (BERT's rule).
        held_out_windows: rows that are only measured on.
        max_tokenizer_bytes: of the pool's text that the tokenizer is trained on.
    """

    marin_resumable: ClassVar[bool] = True

    documents: Input
    vocab_size: int = 8192
    hidden_dim: int = 128
    intermediate_dim: int = 384
    num_layers: int = 4
    num_heads: int = 4
    max_tokens: int = 128
    rotary: bool = True
    num_steps: int = 1000
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.06
    mask_fraction: float = 0.15
    held_out_windows: int = 64
    seed: int = 0
    max_tokenizer_bytes: int = 20_000_000
    compute: str | None = placement(default=None)
    checkpoint_interval: float = placement(default=120.0)
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        if has_versioned(self):
            return
        for name in ("num_steps", "batch_size", "held_out_windows", "num_layers", "num_heads", "hidden_dim"):
            check_whole(f"config field `{name}`", getattr(self, name))
        check_whole("config field `vocab_size`", self.vocab_size, 256 + len(SPECIAL_TOKENS))
        check_whole("config field `max_tokens`", self.max_tokens, 8)
        if not 0 < self.mask_fraction < 1:
            raise ConfigError(f"config field `mask_fraction` is {self.mask_fraction!r}: use a fraction such as 0.15")


def pretrain_encoder_step(name: str, documents: Input, **fields: object) -> ExecutorStep:
    """The step that pretrains an encoder on `documents`; `fields` are those of `PretrainEncoderConfig`."""
    config = PretrainEncoderConfig(documents=documents, **fields)  # type: ignore[arg-type]
    return ExecutorStep(
        name=name,
        fn=pretrain_encoder,
        config=config,
        description=f"encoder of {config.num_layers} layers of width {config.hidden_dim}, masked prediction on the pool",
    )


def pretrain_encoder(config: PretrainEncoderConfig) -> None:
    """Writes `encoder/`; goes on where a killed attempt stopped.

    Raises:
        DataError: the pool has too little text.
        NonFiniteLossError: training diverged.
    """
    from marin.datashop.masked_fit import pretrain

    pretrain(config)
