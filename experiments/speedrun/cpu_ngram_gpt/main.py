"""Ten minutes on a processor: a narrow GPT that also embeds hashed pairs of tokens, and rates that are not scaled down.

    python -m experiments.speedrun.cpu_ngram_gpt.main --force_run_failed true --prefix local_store

trains it with five seeds, ten minutes each on two cores. Against nanochat's recipe (`experiments/speedrun/cpu_nanochat`), on the
same text, vocabulary and time:

- each position also looks up the pair of its token and the one before, by a hash, in a table of narrow rows, which a matrix widens
  to the stream: a memory for pairs at the cost of one row a position;
- rates are those of large batches: the square root of the batch, by which the reference scales them, is far too low for 2,048 tokens;
- much weight decay, on the tables too: a second pass over so little text would else be learned by heart;
- rates that fall to zero over most of the run.

What was tried and what did not help is in docs/LOG.md. The results beside this file are of an earlier form of it: commit a9e1592,
rows of 128 tokens, 2,100 steps.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments.python_docs import tokenized
from experiments.simple_train_config import SimpleTrainConfig
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
# Odd numbers with well spread bits (Knuth's multiplicative hash and two of its kind): a product of whole numbers of 32 bits
# carries each bit of a token upwards, and the shift brings the upper ones down again.
_FACTORS = (2654435761, 2246822519)
_SHIFT = 15

python_docs_4096 = tokenized(4096)


@dataclasses.dataclass(frozen=True)
class PairGptConfig(GptConfig):
    """A `Gpt` with embeddings of hashed pairs.

    Args:
        num_buckets: rows of the table; pairs that share one share its row.
        pair_dim: width of a row.
    """

    num_buckets: int = 32_768
    pair_dim: int = 64

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> "PairGpt":
        return PairGpt.init(self, vocab_size, key=key)

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        return super().flops_per_token(vocab_size, context_length) + 2 * self.pair_dim * self.hidden_dim


class PairGpt(Gpt):
    """A `Gpt` whose input is the token's embedding and that of the pair it ends."""

    pair_embedding: Embedding
    pair_projection: Linear

    @staticmethod
    def init(config: PairGptConfig, vocab_size: int, *, key: PRNGKeyArray) -> "PairGpt":  # type: ignore[override]
        plain = Gpt.init(config, vocab_size, key=key)
        width = config.hidden_dim
        bound = (3.0 / config.pair_dim) ** 0.5
        projection = jax.random.uniform(
            jax.random.fold_in(key, 1), (config.pair_dim, width), jnp.float32, -bound, bound
        )
        return PairGpt(
            **{field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)},
            pair_embedding=Embedding(jnp.zeros((config.num_buckets, config.pair_dim), jnp.float32)),
            pair_projection=Linear(projection, None),
        )

    def embedded(self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None) -> Float[Array, "B T D"]:
        pairs_BT = pair_buckets(tokens_BT, segment_ids_BT, self.pair_embedding.weight_VD.shape[0])
        return super().embedded(tokens_BT, segment_ids_BT) + self.pair_projection(self.pair_embedding(pairs_BT))


def pair_buckets(
    tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None, num_buckets: int
) -> Int[Array, "B T"]:
    """The row of each position's pair; the first token of a row or a document is paired with token 0."""
    before_BT = jnp.pad(tokens_BT[:, :-1], ((0, 0), (1, 0)))
    if segment_ids_BT is not None:
        segment_before_BT = jnp.pad(segment_ids_BT[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
        before_BT = jnp.where(segment_ids_BT == segment_before_BT, before_BT, 0)
    first, second = (jnp.uint32(factor) for factor in _FACTORS)
    mixed_BT = (tokens_BT.astype(jnp.uint32) * first) ^ (before_BT.astype(jnp.uint32) * second)
    mixed_BT = mixed_BT ^ (mixed_BT >> _SHIFT)
    return (mixed_BT % jnp.uint32(num_buckets)).astype(jnp.int32)


def optimizer_config() -> GroupsConfig:
    """Muon for matrices, AdamW for the rest; the tables decay as well."""
    schedule: dict[str, Any] = {"warmup": 10, "decay": 0.65, "min_lr_ratio": 0.0, "lr_schedule": "linear"}
    muon = GptMuonConfig(
        learning_rate=0.014,
        weight_decay=0.4,
        momentum=0.95,
        head_lr=0.005,
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
            ParameterGroup("re:^pair_embedding", table(0.05, weight_decay=0.06)),
            ParameterGroup("re:^value_embeddings", table(0.025, weight_decay=0.03)),
            ParameterGroup("embedding", table(0.05, weight_decay=0.03)),
            ParameterGroup("*", muon),
        ],
    )


def speedrun_config(seed: int) -> SpeedrunConfig:
    """The run with a seed; all else is the same."""
    optimizer = optimizer_config()
    return SpeedrunConfig(
        author=Author(name="Marin", affiliation="Marin", url="https://marin.community"),
        description="A GPT of width 192 with embeddings of hashed token pairs, and rates and weight decay for small batches; ten minutes on two CPU cores.",
        model_config=PairGptConfig(seq_len=256, hidden_dim=192, num_layers=2, num_heads=3, window_pattern="L"),
        train_config=SimpleTrainConfig(
            CpuOnlyConfig(num_cpus=2),
            train_batch_size=8,
            num_train_steps=3000,
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
        description="A narrow GPT with pair embeddings, ten minutes on a processor, five seeds",
    )
