"""From the one dial of the pipeline, `--depth`, to a model, a horizon, a batch size, rates and weight decay.

The rules are those of nanochat at HEAD. Everything was tuned at depth 12 with 2^19 tokens a step, and is carried over:

    width           depth x aspect ratio, up to a whole number of heads
    tokens D        ratio x N, where N counts the matrices of the blocks and the head
    batch B         2^19 (D / D_12)^0.383 tokens, to the nearest power of two
    rates           x (B / 2^19)^1/2, those of embeddings and head also x (width / 768)^-1/2
    weight decay    x (B / 2^19)^1/2 D_12 / D, so that it acts over the same share of training

where D_12 is the horizon of depth 12 under the same ratio.
"""

import dataclasses
import math

from marin.errors import ConfigError
from marin.flags import check_at_least, flag_of
from marin.models.gpt import GptConfig, padded_vocab_size
from marin.optim.gpt_muon import GptMuonConfig
from marin.optim.schedule import steps_of

REFERENCE_DEPTH, REFERENCE_WIDTH, REFERENCE_BATCH = 12, 768, 2**19
_BATCH_EXPONENT = 0.383


@dataclasses.dataclass(frozen=True)
class Shape:
    """The flags that make a model; `vocab_size` is the tokenizer's."""

    depth: int
    vocab_size: int
    aspect_ratio: int = 64
    head_dim: int = 128
    max_seq_len: int = 2048
    window_pattern: str = "SSSL"

    def __post_init__(self) -> None:
        check_at_least(1, self, "depth", "vocab_size", "aspect_ratio", "head_dim", "max_seq_len")
        if self.max_seq_len < 2:
            raise ConfigError(f"`--max-seq-len` is {self.max_seq_len}: use at least 2, as a row begins with `<|bos|>`")
        if self.head_dim % 2:
            raise ConfigError(f"`--head-dim` is {self.head_dim}: rotary embeddings need an even number")

    @property
    def width(self) -> int:
        return -(-self.depth * self.aspect_ratio // self.head_dim) * self.head_dim

    def model(self, **ideas: object) -> GptConfig:
        """The model; `ideas` are further fields of `GptConfig`."""
        fields = {
            "seq_len": self.max_seq_len,
            "hidden_dim": self.width,
            "num_layers": self.depth,
            "num_heads": self.width // self.head_dim,
            "window_pattern": self.window_pattern,
            **ideas,
        }
        return GptConfig(**fields)  # type: ignore[arg-type]

    @property
    def scaling_params(self) -> int:
        """N: weights of the blocks' matrices and of the head; neither embeddings nor gates nor scalars."""
        block = 12 * self.width * self.width
        return self.depth * block + self.width * padded_vocab_size(self.vocab_size)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Rates and weight decay as they are at depth 12 and 2^19 tokens a step."""

    embedding_lr: float = 0.3
    unembedding_lr: float = 0.008
    matrix_lr: float = 0.02
    scalar_lr: float = 0.5
    weight_decay: float = 0.28

    def __post_init__(self) -> None:
        for field in ("embedding_lr", "unembedding_lr", "matrix_lr", "scalar_lr"):
            if not 0 < getattr(self, field) < math.inf:
                raise ConfigError(f"`{flag_of(field)}` is {getattr(self, field)}: use a number above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"`--weight-decay` is {self.weight_decay}: use 0 or more")


@dataclasses.dataclass(frozen=True)
class Horizon:
    """How long to train: the first of the three that is above 0.

    Args:
        num_iterations: steps.
        target_flops: of forward and backward passes together.
        target_param_data_ratio: tokens for each of the `scaling_params`.
    """

    num_iterations: int = -1
    target_flops: float = -1.0
    target_param_data_ratio: float = 12.0

    def __post_init__(self) -> None:
        if self.num_iterations <= 0 and self.target_flops <= 0 and self.target_param_data_ratio <= 0:
            raise ConfigError(
                "no training horizon: give `--num-iterations`, `--target-flops` or `--target-param-data-ratio` above 0"
            )


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a run of a depth is.

    Args:
        total_batch_size: tokens a step.
        flops_per_token: of forward and backward pass.
    """

    model: GptConfig
    vocab_size: int
    total_batch_size: int
    num_iterations: int
    optimizer: GptMuonConfig
    num_params: int
    scaling_params: int
    flops_per_token: float

    @property
    def total_tokens(self) -> int:
        return self.total_batch_size * self.num_iterations

    @property
    def param_data_ratio(self) -> float:
        return self.total_tokens / self.scaling_params

    @property
    def total_flops(self) -> float:
        return self.flops_per_token * self.total_tokens


def recipe(
    shape: Shape,
    horizon: Horizon,
    rates: Rates = Rates(),
    *,
    total_batch_size: int = -1,
    warmup_steps: int = 40,
    warmdown_ratio: float = 0.65,
    final_lr_frac: float = 0.05,
    **ideas: object,
) -> Recipe:
    """The run that the flags and the rules make.

    Args:
        total_batch_size: tokens a step; -1 for the rule's.
        ideas: further fields of `GptConfig`.
    Raises:
        ConfigError: the batch is no whole number of sequences, not one step fits into the horizon, or a share is none.
    """
    for flag, share in (("--warmdown-ratio", warmdown_ratio), ("--final-lr-frac", final_lr_frac)):
        if not 0 <= share <= 1:
            raise ConfigError(f"`{flag}` is {share}: use a share from 0 to 1")
    if warmup_steps < 0:
        raise ConfigError(f"`--warmup-steps` is {warmup_steps}: use 0 or more")
    model = shape.model(**ideas)
    ratio = horizon.target_param_data_ratio
    reference = dataclasses.replace(shape, depth=REFERENCE_DEPTH)
    # As in nanochat, the transfer goes by the ratio even where steps or FLOPs decide how long training is.
    relative_tokens = shape.scaling_params / reference.scaling_params
    batch = total_batch_size if total_batch_size > 0 else optimal_batch(relative_tokens)
    if batch % shape.max_seq_len:
        raise ConfigError(
            f"`--total-batch-size` is {batch} tokens, no whole number of sequences of {shape.max_seq_len}: use a multiple of it"
        )
    flops_per_token = 3 * model.flops_per_token(shape.vocab_size, shape.max_seq_len)
    if horizon.num_iterations > 0:
        steps = horizon.num_iterations
    elif horizon.target_flops > 0:
        steps = round(horizon.target_flops / (flops_per_token * batch))
    else:
        steps = int(ratio * shape.scaling_params) // batch
    if steps < 1:
        raise ConfigError(
            f"the horizon is less than one step of {batch:,} tokens: raise it, or lower `--total-batch-size`"
        )
    warmdown_steps = steps_of(warmdown_ratio, steps, "--warmdown-ratio")
    batch_scale = (batch / REFERENCE_BATCH) ** 0.5
    width_scale = (shape.width / REFERENCE_WIDTH) ** -0.5
    optimizer = GptMuonConfig(
        learning_rate=rates.matrix_lr * batch_scale,
        embedding_lr=rates.embedding_lr * width_scale * batch_scale,
        value_embedding_lr=0.5 * rates.embedding_lr * width_scale * batch_scale,
        head_lr=rates.unembedding_lr * width_scale * batch_scale,
        residual_scale_lr=0.01 * rates.scalar_lr * batch_scale,
        input_scale_lr=rates.scalar_lr * batch_scale,
        weight_decay=rates.weight_decay * batch_scale / relative_tokens,
        # A warmup that would run into the warmdown ends where that begins; one of a single step changes nothing.
        warmup=warmup if (warmup := min(warmup_steps, steps - warmdown_steps)) > 1 else 0,
        decay=warmdown_ratio,
        min_lr_ratio=final_lr_frac,
    )
    return Recipe(
        model=model,
        vocab_size=shape.vocab_size,
        total_batch_size=batch,
        num_iterations=steps,
        optimizer=optimizer,
        num_params=model.total_trainable_params(shape.vocab_size),
        scaling_params=shape.scaling_params,
        flops_per_token=flops_per_token,
    )


def optimal_batch(relative_tokens: float) -> int:
    """Tokens a step for a horizon of so many times that of depth 12, as a power of two."""
    return int(2 ** round(math.log2(REFERENCE_BATCH * relative_tokens**_BATCH_EXPONENT)))
