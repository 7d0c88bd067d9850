"""Ten minutes on a processor: a narrow GPT that also embeds hashed pairs and triples of tokens, and rates that are not scaled down.

    python -m experiments.speedrun.cpu_ngram_gpt.main --force_run_failed true --prefix local_store

trains it with five seeds, ten minutes each on two cores. Against nanochat's recipe (`experiments/speedrun/cpu_nanochat`), on the
same text, vocabulary and time:

- each position also looks up the pair and the triple of tokens that it ends, by a hash, in tables of narrow rows, which matrices
  widen to the stream: a memory for n-grams at the cost of two rows a position;
- rates are those of large batches: the square root of the batch, by which the reference scales them, is far too low for 2,048 tokens;
- much weight decay, on the tables too: a second pass over so little text would else be learned by heart;
- rates that fall to zero over most of the run;
- rows of 256 tokens, eight a step, and evaluation in a context of 2,048: every layer sees the last 256 tokens, so that nothing is asked
  of a model that it was not trained for, and fewer tokens have little before them;
- three iterations of Muon's instead of five: the result is the same and a step takes less;
- no backout: in two layers the middle one is the last, so that it only scales a stream that is normalized next, and training lets the
  scale wander to where the stream is taken out whole.

What was tried and what did not help is in docs/LOG.md.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments.python_docs import tokenized
from experiments.simple_train_config import SimpleTrainConfig
from marin.errors import ConfigError
from marin.execution.executor import executor_main
from marin.models.gpt import Gpt, GptConfig
from marin.nn import Embedding, Linear, Precision
from marin.optim import AdamConfig, GroupsConfig, ParameterGroup
from marin.optim.gpt_muon import GptMuonConfig
from marin.resources import CpuOnlyConfig
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun
from marin.training import WatchConfig

NAME = Path(__file__).resolve().parent.name
SEEDS = range(5)
# Odd numbers with well spread bits (Knuth's multiplicative hash and others of its kind): a product of whole numbers of 32 bits
# carries each bit of a token upwards, and the shift brings the upper ones down again.
_FACTORS = (2654435761, 2246822519, 3266489917)
_SHIFT = 15

python_docs_4096 = tokenized(4096)


@dataclasses.dataclass(frozen=True)
class NgramGptConfig(GptConfig):
    """A `Gpt` with embeddings of hashed n-grams; `window_pattern` and `short_window` play no part.

    Args:
        num_buckets: rows of the tables of pairs, triples and so on; n-grams that share one share its row.
        ngram_dim: width of a row.
        attention_window: keys that a query sees, in every layer.
    """

    num_buckets: tuple[int, ...] = (131_072, 131_072)
    ngram_dim: int = 64
    attention_window: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.num_buckets) >= len(_FACTORS):
            raise ConfigError(f"`num_buckets` has {len(self.num_buckets)} tables: use at most {len(_FACTORS) - 1}")

    def window(self, layer: int) -> int:
        return self.attention_window

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "NgramGpt":
        return NgramGpt.init(self, vocab_size, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        widening = 2 * self.ngram_dim * self.hidden_dim * len(self.num_buckets)
        return super().flops_per_token(vocab_size, context_length) + widening


class NgramGpt(Gpt):
    """A `Gpt` whose input is the token's embedding and those of the n-grams it ends."""

    ngram_embeddings: tuple[Embedding, ...]
    ngram_projections: tuple[Linear, ...]

    @staticmethod
    def init(config: NgramGptConfig, vocab_size: int, *, key: PRNGKeyArray) -> "NgramGpt":  # type: ignore[override]
        plain = Gpt.init(config, vocab_size, key=key)
        bound = (3.0 / config.ngram_dim) ** 0.5
        shape = (config.ngram_dim, config.hidden_dim)
        keys = [jax.random.fold_in(key, table) for table in range(1, len(config.num_buckets) + 1)]
        return NgramGpt(
            **{field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)},
            ngram_embeddings=tuple(Embedding(jnp.zeros((rows, config.ngram_dim))) for rows in config.num_buckets),
            ngram_projections=tuple(
                Linear(jax.random.uniform(k, shape, jnp.float32, -bound, bound), None) for k in keys
            ),
        )

    def embedded(self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        x_BTD = super().embedded(tokens_BT, segment_ids_BT)
        tables = zip(self.ngram_embeddings, self.ngram_projections, strict=True)
        for length, (table, projection) in enumerate(tables, start=2):
            rows_BT = ngram_buckets(tokens_BT, segment_ids_BT, length, table.weight_VD.shape[0])
            x_BTD = x_BTD + projection(table(rows_BT))
        return x_BTD


def ngram_buckets(
    tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None, length: int, num_buckets: int
) -> Int[Array, "B T"]:
    """The row of the n-gram that each position ends; before the first token of a row or a document stand tokens 0."""
    mixed_BT = tokens_BT.astype(jnp.uint32) * jnp.uint32(_FACTORS[0])
    for back, factor in enumerate(_FACTORS[1:length], start=1):
        before_BT = jnp.pad(tokens_BT[:, :-back], ((0, 0), (back, 0)))
        if segment_ids_BT is not None:
            segment_before_BT = jnp.pad(segment_ids_BT[:, :-back], ((0, 0), (back, 0)), constant_values=-1)
            before_BT = jnp.where(segment_ids_BT == segment_before_BT, before_BT, 0)
        mixed_BT = mixed_BT ^ (before_BT.astype(jnp.uint32) * jnp.uint32(factor))
    mixed_BT = mixed_BT ^ (mixed_BT >> _SHIFT)
    return (mixed_BT % jnp.uint32(num_buckets)).astype(jnp.int32)


def optimizer_config() -> GroupsConfig:
    """Muon for matrices, AdamW for the rest; the tables decay as well."""
    schedule: dict[str, Any] = {"warmup": 10, "decay": 0.65, "min_lr_ratio": 0.0, "lr_schedule": "linear"}
    muon = GptMuonConfig(
        learning_rate=0.014,
        weight_decay=0.4,
        momentum=0.95,
        polar_steps=3,
        head_lr=0.01,
        residual_scale_lr=0.005 / 16,
        input_scale_lr=0.5 / 16,
        mixing_lr=0.2 / 16,
        **schedule,
    )

    def table(learning_rate: float, weight_decay: float) -> AdamConfig:
        return AdamConfig(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            default_weight_decay_mask=False,
            beta1=0.8,
            beta2=0.995,
            epsilon=1e-10,
            max_grad_norm=None,
            **schedule,
        )

    return GroupsConfig(
        learning_rate=muon.learning_rate,
        groups=[
            ParameterGroup("matrix", muon),
            ParameterGroup("re:^ngram_embeddings", table(0.05, weight_decay=0.06)),
            ParameterGroup("re:^value_embeddings", table(0.05, weight_decay=0.03)),
            ParameterGroup("embedding", table(0.1, weight_decay=0.03)),
            ParameterGroup("*", muon),
        ],
    )


def speedrun_config(seed: int) -> SpeedrunConfig:
    """The run with a seed; all else is the same."""
    optimizer = optimizer_config()
    return SpeedrunConfig(
        author=Author(name="Marin", affiliation="Marin", url="https://marin.community"),
        description="A GPT of width 192 with embeddings of hashed token pairs and triples, and rates and weight decay for small batches; ten minutes on two CPU cores.",
        model_config=NgramGptConfig(seq_len=2048, hidden_dim=192, num_layers=2, num_heads=3, backout=False),
        train_config=SimpleTrainConfig(
            CpuOnlyConfig(num_cpus=2),
            train_batch_size=8,
            num_train_steps=2400,
            train_seq_len=256,
            learning_rate=optimizer.learning_rate,
            optimizer_config=optimizer,
            precision=Precision("f32"),
            watch=WatchConfig(watch_targets=[]),
            checkpoint_interval=120,
            seed=seed,
        ),
        tokenized_dataset=python_docs_4096,
    )


if __name__ == "__main__":
    executor_main(
        steps=[step for seed in SEEDS for step in default_speedrun(f"{NAME}_seed_{seed}", speedrun_config(seed))],
        description="A narrow GPT with n-gram embeddings, ten minutes on a processor, five seeds",
    )
