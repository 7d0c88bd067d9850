"""A small tokenizer with the chat's special tokens, a small model, and a server over it."""

from collections.abc import Iterator
from typing import Any

import chat_server
import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

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


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """As Llama 2's: characters without a token of their own are made of tokens that are bytes, and spaces stand before words."""
    words = ["\u2581", "a", "\u2581a", "b", "\u2581b", "\u00e9", "!"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    merges = [("\u2581", "a"), ("\u2581", "b")]
    made = HfTokenizer(BPE({token: place for place, token in enumerate(vocabulary)}, merges, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(made.to_str().encode(), "made")
