"""A tokenizer for conversations, and a base run of a tiny model with the pipeline's optimizer."""

import dataclasses
from pathlib import Path

import pytest

from marin.data.cache import TokenizeConfig, tokenize
from marin.data.conversation import SPECIAL_TOKENS
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.finetuning.made import training_conversations
from marin.models.gpt import GptConfig
from marin.nn.precision import Precision
from marin.optim.gpt_muon import GptMuonConfig
from marin.resources import CpuOnlyConfig
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import train_lm

MODEL = GptConfig(seq_len=64, hidden_dim=32, num_layers=2, num_heads=2, window_pattern="SL")
OPTIMIZER = GptMuonConfig(learning_rate=0.01, embedding_lr=0.1, value_embedding_lr=0.05, head_lr=0.004, warmup=0)


@dataclasses.dataclass(frozen=True)
class Base:
    """A finished base run."""

    run: Path
    tokenizer_folder: str

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.tokenizer_folder)


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Base:
    folder = tmp_path_factory.mktemp("base")
    documents = str(folder / "docs.jsonl.zst")
    texts = [
        message["content"] if isinstance(message["content"], str) else " ".join(p["text"] for p in message["content"])
        for conversation in training_conversations(300)
        for message in conversation["messages"]
    ]
    write_documents(documents, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(documents, 400, output_path=str(folder), special_tokens=SPECIAL_TOKENS))
    tokenize(TokenizeConfig(documents=documents, tokenizer=str(folder), output_path=str(folder / "tokens")))
    run = folder / "run"
    train_lm(
        TrainLmConfig(
            model=MODEL,
            train=SimpleTrainConfig(
                CpuOnlyConfig(),
                train_batch_size=8,
                num_train_steps=3,
                learning_rate=OPTIMIZER.learning_rate,
                optimizer_config=OPTIMIZER,
                precision=Precision("f32"),
                watch=WatchConfig(watch_targets=[]),
            ),
            data=str(folder / "tokens"),
            tokenizer=str(folder),
            vocab_size=400,
            output_path=str(run),
        )
    )
    return Base(run, str(folder))
