"""A small tokenizer with the chat's special tokens, a small model, and a server over it."""

from collections.abc import Iterator
from typing import Any

import chat_server
import pytest

from marin.data.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return chat_server.make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def chat_model(chat_tokenizer: Tokenizer) -> Any:
    return chat_server.model_of(chat_server.CONFIG, chat_tokenizer.vocab_size)


@pytest.fixture(scope="module")
def served(chat_tokenizer: Tokenizer, chat_model: Any) -> Iterator[chat_server.Served]:
    with chat_server.serving(chat_tokenizer, chat_model) as server:
        yield server
