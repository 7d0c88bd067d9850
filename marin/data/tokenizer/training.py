"""Trains a byte-level BPE with Hugging Face's `tokenizers`.

The same documents and settings give the same file, byte for byte, whatever the machine or its number of threads.
Memory grows with the number of different pieces of text, so at most `max_bytes` of the documents are read: spread
evenly over a document set, or from the beginning of a single file.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from marin.data.documents import Document, is_set_path, is_unicode, read_documents, text_bytes
from marin.data.shards import DocumentSet
from marin.data.tokenizer.byte_bpe import byte_of_symbol
from marin.data.tokenizer.learning import SPLIT_PATTERN, learn
from marin.data.tokenizer.loaded import TOKENIZER_FILE, Tokenizer
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, has_versioned, this_output_path
from marin.number_checks import check_whole, is_whole
from marin.storage import files

BOS_TOKEN = "<|bos|>"
MIN_VOCAB_SIZE = 256 + 1  # every byte, and one special token


@dataclass(frozen=True)
class TrainTokenizerConfig:
    """Args:
    documents: a document set, or a `.jsonl.zst` path.
    vocab_size: the exact number of tokens, the special ones included.
    special_tokens: get the first ids, in this order; the one that begins documents should be `<|bos|>`.
    split_pattern: a regular expression (Oniguruma's syntax) whose matches are the pieces that no token crosses.
        Patterns that tiktoken reads alike encode several times faster (`Tokenizer.encoder_reason` tells).
    max_bytes: of text that is trained on. Memory is that of the different pieces in it: on real technical English 8 bytes
        a byte of text at 10 MB and 6 at 30 MB, 100 on words of random letters, which do not repeat.
    """

    documents: Input
    vocab_size: int
    output_path: str = this_output_path()
    special_tokens: tuple[str, ...] = (BOS_TOKEN,)
    split_pattern: str = SPLIT_PATTERN
    max_bytes: int = 200_000_000

    def __post_init__(self) -> None:  # before any step runs, as what comes before this one may take hours or money
        if has_versioned(self):
            return
        check_settings(self)
        check_whole("config field `max_bytes`", self.max_bytes)


class TokenizerSettings(Protocol):
    """What a config says of the tokenizer itself."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def special_tokens(self) -> tuple[str, ...]: ...
    @property
    def split_pattern(self) -> str: ...
    @property
    def output_path(self) -> str: ...


def train_tokenizer_step(
    documents: Input,
    vocab_size: int,
    name: str = "tokenizers/bpe",
    *,
    special_tokens: tuple[str, ...] = (BOS_TOKEN,),
    split_pattern: str = SPLIT_PATTERN,
) -> ExecutorStep:
    """The step that writes `tokenizer.json` and `tokenizer_info.json`."""
    return ExecutorStep(
        name=name,
        fn=train_tokenizer,
        config=TrainTokenizerConfig(documents, vocab_size, special_tokens=special_tokens, split_pattern=split_pattern),
        description=f"byte-level BPE with {vocab_size} tokens",
    )


def train_tokenizer(config: TrainTokenizerConfig) -> None:
    """Trains a byte-level BPE and writes it with what it was trained on.

    Raises:
        ConfigError: a setting cannot work.
        DataError: the documents do not have enough different text for `vocab_size` tokens.
    """
    write_tokenizer(config, sample(str(config.documents), config.max_bytes), str(config.documents))


def write_tokenizer(config: TokenizerSettings, documents: Iterator[Document], where: str) -> None:
    """Trains on all of `documents`, and writes the tokenizer with what it was trained on.

    Args:
        where: what messages call the documents.
    Raises:
        ConfigError: the pattern is no regular expression, or a special token is a piece of the text.
        DataError: the documents do not have enough different text for `vocab_size` tokens.
    """
    from tokenizers import Regex, decoders, pre_tokenizers
    from tokenizers import Tokenizer as HfTokenizer

    try:
        pattern = Regex(config.split_pattern)
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(
            f"config field `split_pattern` is {config.split_pattern!r}, which is no regular expression ({error}): "
            f"correct it, or leave the default"
        ) from None
    statistics = _TextStatistics()
    hf = HfTokenizer(learn(statistics.watch(documents), config.vocab_size, config.special_tokens, config.split_pattern))
    _check_texts_never_become(config.special_tokens, hf)
    hf.add_special_tokens(list(config.special_tokens))
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    hf.decoder = decoders.ByteLevel()
    if hf.get_vocab_size() != config.vocab_size:
        raise DataError(
            f"{where} has only enough text for {hf.get_vocab_size()} tokens, `vocab_size` asks for "
            f"{config.vocab_size}: use a smaller vocabulary or more documents"
        )
    data = hf.to_str(pretty=True).encode()
    tokenizer = Tokenizer(data, TOKENIZER_FILE)
    files.write_bytes(files.join(config.output_path, TOKENIZER_FILE), data)
    files.write_json(
        files.join(config.output_path, "tokenizer_info.json"),
        {
            "digest": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "special_tokens": tokenizer.special_tokens,
            "split_pattern": config.split_pattern,
            "trained_on": {
                "documents": statistics.num_documents,
                "bytes": statistics.num_bytes,
                "text_digest": statistics.digest.hexdigest(),
            },
        },
    )


def sample(documents: str, max_bytes: int) -> Iterator[Document]:
    """At most `max_bytes` of text: evenly spread documents of a document set, or the first ones of a file.

    A document that does not fit is passed over, until nine tenths are taken. Where none of the evenly spread ones fits, the
    first ones of the set are taken that do.

    Raises:
        DataError: no document fits.
    """
    share = 1.0
    if is_set_path(documents):
        share = min(1.0, max_bytes / max(DocumentSet.open(documents).num_bytes, 1))
    for share_of_pass in dict.fromkeys((share, 1.0)):
        num_taken = 0
        for document in _fitting(documents, max_bytes, share_of_pass):
            num_taken += 1
            yield document
        if num_taken:
            return
    raise DataError(
        f"{documents}: no document fits into the {max_bytes:,} bytes of text that are read (`max_bytes`): part its text into"
        " shorter documents, or raise that limit"
    )


def _fitting(documents: str, max_bytes: int, share: float) -> Iterator[Document]:
    """Of evenly spread documents, `share` of all, those that fit together."""
    size = 0
    for index, document in enumerate(read_documents(documents)):
        if int((index + 1) * share) == int(index * share):
            continue
        room = text_bytes(document.text)
        if size + room > max_bytes:
            if size >= 0.9 * max_bytes:
                return
            continue
        size += room
        yield document


def check_settings(config: TokenizerSettings) -> None:
    """Raises:
    ConfigError: the vocabulary is too small, or the special tokens are not different names that no byte has.
    """
    needed = 256 + len(config.special_tokens)
    if not is_whole(config.vocab_size, needed):
        raise ConfigError(
            f"config field `vocab_size` is {config.vocab_size!r}, but the 256 bytes and the special tokens "
            f"({', '.join(config.special_tokens) or 'none'}) need {needed}: use a whole number of at least that"
        )
    for token in config.special_tokens:
        if token in byte_of_symbol() or not is_unicode(token):
            what = "is how the file writes one of the 256 bytes" if is_unicode(token) else "holds a lone surrogate"
            raise ConfigError(
                f"config field `special_tokens` has {token!r}, which {what}: use a name such as '<|end|>'"
            )
    if len(set(config.special_tokens)) != len(config.special_tokens) or "" in config.special_tokens:
        raise ConfigError(
            f"config field `special_tokens` is {config.special_tokens!r}: use different names, none of them empty"
        )


def _check_texts_never_become(special_tokens: tuple[str, ...], hf: Any) -> None:
    """Raises:
    ConfigError: a special token is a piece of text that was learned too, so that texts with it would lose it.
    """
    merged = {"".join(pair) for pair in json.loads(hf.model.__getstate__())["merges"]}
    if taken := [token for token in special_tokens if token in merged]:
        raise ConfigError(
            f"config field `special_tokens` has {taken[0]!r}, which is also a piece of the documents' text, so it would stand for"
            " both: use a name that no text has, such as '<|end|>'"
        )


class _TextStatistics:
    """Counts and digests the texts that pass through."""

    def __init__(self) -> None:
        self.num_documents = 0
        self.num_bytes = 0
        self.digest = hashlib.sha256()

    def watch(self, documents: Iterator[Document]) -> Iterator[str]:
        for document in documents:
            data = document.text.encode()
            self.num_documents += 1
            self.num_bytes += len(data)
            self.digest.update(hashlib.sha256(data).digest())
            yield document.text
