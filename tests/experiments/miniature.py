"""The whole main job on a made-up language: corpus, tokenizer, cache, training, evaluation, results, page, in seconds.

Tests copy this file and change the lines in capitals; MINIATURE_CORPUS_SECONDS makes the corpus step slow enough to
interrupt. It is what a user would write who has a corpus and a machine of their own.
"""

import dataclasses
import os
import random
import time

from experiments.simple_train_config import SimpleTrainConfig
from marin.data.cache import tokenize_step
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import train_tokenizer_step
from marin.execution import ExecutorStep, executor_main, this_output_path
from marin.models.llama import LlamaConfig
from marin.resources import CpuOnlyConfig
from marin.site.leaderboard_step import leaderboard_step
from marin.speedrun.speedrun import Author, SpeedrunConfig, default_speedrun
from marin.storage import files

RESOURCES = CpuOnlyConfig(num_cpus=2)
BATCH_SIZE = 4
STEPS = 30
LEARNING_RATE = 0.01
CHECKPOINT_INTERVAL = 600.0
MORE = {}

SEQ_LEN = 64
VOCAB_SIZE = 320


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
    """How much of the language is written down."""

    documents: int = 400
    heldout: int = 20
    output_path: str = this_output_path()


def write_corpus(config: CorpusConfig) -> None:
    """Sentences of made-up words; common words stay common, so there is something to learn."""
    rng = random.Random(0)
    syllables = ["ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve", "wo", "zi"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]

    def document(index: int) -> Document:
        text = ". ".join(" ".join(rng.choices(words, weights, k=rng.randint(4, 12))) for _ in range(6))
        return Document(f"mini/{index}", text + ".", "miniature")

    written = [document(index) for index in range(config.documents)]
    write_documents(files.join(config.output_path, "train.jsonl.zst"), written[config.heldout :])
    time.sleep(float(os.environ.get("MINIATURE_CORPUS_SECONDS", "0")))
    write_documents(files.join(config.output_path, "heldout.jsonl.zst"), written[: config.heldout])


CORPUS = ExecutorStep("corpora/miniature", write_corpus, CorpusConfig())
TOKENIZER = train_tokenizer_step(CORPUS / "train.jsonl.zst", VOCAB_SIZE)
speedrun_config = SpeedrunConfig(
    author=Author("Ada Example", "Independent", "https://example.org/ada"),
    description="The whole job in miniature.",
    model_config=LlamaConfig(
        seq_len=SEQ_LEN,
        hidden_dim=32,
        intermediate_dim=64,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        gradient_checkpointing=False,
    ),
    train_config=SimpleTrainConfig(
        RESOURCES,
        train_batch_size=BATCH_SIZE,
        num_train_steps=STEPS,
        learning_rate=LEARNING_RATE,
        checkpoint_interval=CHECKPOINT_INTERVAL,
        **MORE,
    ),
    tokenized_dataset=tokenize_step("miniature", CORPUS / "train.jsonl.zst", TOKENIZER),
)

if __name__ == "__main__":
    steps = default_speedrun("miniature", speedrun_config)
    executor_main(steps=[*steps, leaderboard_step(steps[-1])], description="The whole job in miniature")
