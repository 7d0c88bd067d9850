"""A tiny tokenized corpus, and a config that trains on it in a second."""

from pathlib import Path

import numpy as np
import pytest
from trained_run import MODEL, VOCAB, Trained

from marin.data.cache import TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.nn import Precision
from marin.optim import MuonConfig
from marin.resources import CpuOnlyConfig
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import train_lm


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A folder with `tokens/train` and a tokenizer."""
    folder = tmp_path_factory.mktemp("data")
    words = "graph node edge path tree matrix vector sum limit proof returns value of the a and is"
    choose = np.random.default_rng(0)
    texts = [" ".join(choose.choice(words.split(), 60)) for _ in range(60)]
    documents = str(folder / "docs.jsonl.zst")
    write_documents(documents, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=VOCAB, output_path=str(folder)))
    tokenize(TokenizeConfig(documents=documents, tokenizer=str(folder), output_path=str(folder / "tokens")))
    return folder


def config_of(data: Path, output_path: Path, **options) -> TrainLmConfig:
    """A run on the corpus of `data`; the options are those of `SimpleTrainConfig`, and `model`."""
    optimizer = options.pop("optimizer_config", MuonConfig(learning_rate=0.02, adam_lr=0.01, warmup=0, decay=0.5))
    model = options.pop("model", MODEL)
    defaults = {
        "train_batch_size": 8,
        "num_train_steps": 6,
        "learning_rate": optimizer.learning_rate if optimizer else 0.01,
        "optimizer_config": optimizer,
        "precision": Precision("f32"),  # the choice by time would differ between runs that a test compares
        "watch": WatchConfig(watch_targets=[]),
    }
    return TrainLmConfig(
        model=model,
        train=SimpleTrainConfig(CpuOnlyConfig(), **(defaults | options)),
        data=str(data / "tokens"),
        tokenizer=str(data),
        vocab_size=VOCAB,
        output_path=str(output_path),
    )


@pytest.fixture
def make_config(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`make_config(name, num_train_steps=..., ...)`: a run of its own directory."""
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", "1e11")
    return lambda name="run", **options: config_of(data, tmp_path / name, **options)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run of 5 steps with its export, which the tests of a file share and leave as it is."""
    config = config_of(data, tmp_path_factory.mktemp("trained") / "run", num_train_steps=5, steps_per_hf_export=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARIN_CPU_PEAK_FLOPS", "1e11")
        return Trained(config, train_lm(config))
