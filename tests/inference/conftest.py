"""A small tokenizer with the chat's special tokens, and small models whose every weight matters."""

from typing import Any

import equinox as eqx
import jax
import pytest

from marin.data.documents import Document, write_documents
from marin.data.tokenizer import Tokenizer, TrainTokenizerConfig, train_tokenizer
from marin.models import GptConfig

SPECIAL_TOKENS = (
    "<|bos|>", "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>",
    "<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>",
)  # fmt: skip
CONFIG = GptConfig(seq_len=32, hidden_dim=32, num_layers=3, num_heads=4, num_kv_heads=2)  # windows of 8 keys


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    documents = str(folder / "documents.jsonl.zst")
    write_documents(
        documents, [Document(str(i), f"the cat number {i} sat on a mat, and so on. " * 9, "t") for i in range(3)]
    )
    train_tokenizer(TrainTokenizerConfig(documents, 275, str(folder), special_tokens=SPECIAL_TOKENS))
    return Tokenizer.load(str(folder))


def _model_of(config: Any, vocab_size: int, seed: int = 1, spread: float = 0.2) -> Any:
    """A model whose every weight matters, as the first values of some are zero."""
    model = config.build(vocab_size, key=jax.random.key(0))
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_array))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [leaf + spread * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, moved), model)


@pytest.fixture(scope="session")
def model_of() -> Any:
    """(config, vocab_size, seed, spread) to a model."""
    return _model_of


@pytest.fixture(scope="session")
def chat_model(chat_tokenizer: Tokenizer) -> Any:
    return _model_of(CONFIG, chat_tokenizer.vocab_size)
