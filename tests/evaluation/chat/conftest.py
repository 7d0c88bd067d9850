"""A tokenizer with the special tokens of conversations, and a tiny model for it."""

import jax
import pytest

from marin.data.conversation import SPECIAL_TOKENS
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.models.gpt import GptConfig


@pytest.fixture(scope="session")
def chat_tokenizer_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("chat_tokenizer")
    texts = [f"What is {i} plus {i}? Multiple Choice question: - {i}=A answer {2 * i}" for i in range(99)]
    write_documents(str(folder / "docs.jsonl.zst"), [Document(str(i), text, "t") for i, text in enumerate(texts)])
    config = TrainTokenizerConfig(
        str(folder / "docs.jsonl.zst"), 320, output_path=str(folder), special_tokens=SPECIAL_TOKENS
    )
    train_tokenizer(config)
    return str(folder)


@pytest.fixture(scope="session")
def chat_tokenizer(chat_tokenizer_folder) -> Tokenizer:
    return Tokenizer.load(chat_tokenizer_folder)


@pytest.fixture(scope="session")
def chat_model(chat_tokenizer):
    config = GptConfig(seq_len=64, hidden_dim=32, num_layers=2, num_heads=2)
    return config.build(chat_tokenizer.vocab_size, key=jax.random.key(0))
