"""Byte-level BPE tokenizers: trained here or loaded from any `tokenizer.json`, the ecosystem's file format.

Training and encoding are Hugging Face's `tokenizers`. The same documents and vocabulary size give the same file,
byte for byte, whatever the machine or its number of threads. Text is never taken for a special token: a document that
contains the characters `<|bos|>` is encoded as those characters.

`token_bytes` says how many bytes of text each token stands for. It is exact only when the tokenizer encodes the text's
own bytes, so it is refused for one that normalizes, adds a prefix space, or is not byte-level.
"""

import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32

from marin.data.documents import read_documents
from marin.errors import ConfigError, DataError, StorageError
from marin.execution.step import ExecutorStep, InputName, this_output_path
from marin.storage import files

BOS_TOKEN = "<|bos|>"
# What stands between documents in tokenizers trained elsewhere, in the order in which they are looked for.
_BOS_TOKENS = (BOS_TOKEN, "<|begin_of_text|>", "<s>", "<|endoftext|>")
MIN_VOCAB_SIZE = 256 + 1  # every byte, and the one special token

# The published GPT-4 pattern, with numbers split after two digits instead of three: in a vocabulary of a few thousand
# tokens the thousand three-digit numbers would crowd out words.
# In order: clitics; a word with the one character before it; digits; punctuation and the line ends after it; blank
# lines; spaces, but not the one that belongs to the next word; other spaces.
SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

TOKENIZER_FILE = "tokenizer.json"
_BATCH_CHARS = 4_000_000


@dataclass(frozen=True)
class TrainTokenizerConfig:
    """Args:
    documents: a `.jsonl.zst` path.
    vocab_size: the exact number of tokens, the special one included.
    """

    documents: str | InputName
    vocab_size: int
    output_path: str = this_output_path()


def train_tokenizer_step(documents: str | InputName, vocab_size: int, name: str = "tokenizers/bpe") -> ExecutorStep:
    """The step that writes `tokenizer.json` and `tokenizer_info.json`."""
    return ExecutorStep(
        name=name,
        fn=train_tokenizer,
        config=TrainTokenizerConfig(documents, vocab_size),
        description=f"byte-level BPE with {vocab_size} tokens",
    )


def train_tokenizer(config: TrainTokenizerConfig) -> None:
    """Trains a byte-level BPE with one special token, `<|bos|>`, whose id is 0.

    Raises:
        ConfigError: `vocab_size` is below 257.
        DataError: the documents do not have enough different text for `vocab_size` tokens.
    """
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as HfTokenizer

    if config.vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(
            f"config field `vocab_size` is {config.vocab_size}, but the 256 bytes and `{BOS_TOKEN}` need "
            f"{MIN_VOCAB_SIZE}: use at least that"
        )
    hf = HfTokenizer(models.BPE())
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    hf.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[BOS_TOKEN],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    statistics = _TextStatistics()
    hf.train_from_iterator(statistics.watch(str(config.documents)), trainer)
    if hf.get_vocab_size() != config.vocab_size:
        raise DataError(
            f"{config.documents} has only enough text for {hf.get_vocab_size()} tokens, `vocab_size` asks for "
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
            "bos_token": BOS_TOKEN,
            "bos_id": tokenizer.bos_id,
            "split_pattern": SPLIT_PATTERN,
            "trained_on": {
                "documents": statistics.num_documents,
                "bytes": statistics.num_bytes,
                "text_digest": statistics.digest.hexdigest(),
            },
        },
    )


class Tokenizer:
    """An opened `tokenizer.json`."""

    def __init__(self, data: bytes, where: str):
        from tokenizers import Tokenizer as HfTokenizer

        self._where = where
        try:
            self._hf = HfTokenizer.from_str(data.decode())
            self._spec: dict[str, Any] = json.loads(data)
        except Exception as error:  # the library raises nothing more specific
            raise DataError(
                f"{where} is not a tokenizer that the `tokenizers` library reads ({error}): restore the file, "
                f"or remove it and run its step again"
            ) from None
        self._hf.encode_special_tokens = True
        self._hf.no_truncation()
        self._hf.no_padding()
        self.digest = hashlib.sha256(data).hexdigest()
        """SHA-256 of the file, in hex."""
        self._vocab: dict[str, int] = self._hf.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        """One more than the largest id."""

    @staticmethod
    def load(path: str) -> "Tokenizer":
        """Opens a `tokenizer.json`, or the one in the directory `path`.

        Raises:
            DataError: there is none, or it cannot be read.
        """
        where = path if path.endswith(".json") else files.join(path, TOKENIZER_FILE)
        try:
            data = files.read_bytes(where)
        except StorageError as error:
            raise DataError(f"no tokenizer: {error}") from None
        return Tokenizer(data, where)

    @functools.cached_property
    def bos_id(self) -> int:
        """The id that begins every document.

        Raises:
            DataError: the tokenizer has no such special token.
        """
        for token in _BOS_TOKENS:
            if token in self._special_tokens:
                return self._special_tokens[token]
        raise DataError(
            f"{self._where} has no token that begins a document (looked for {', '.join(_BOS_TOKENS)}): "
            f"add one of them as a special token"
        )

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without special tokens.

        Raises:
            DataError: `text` holds a lone surrogate, so it has no bytes.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        try:
            return [encoding.ids for encoding in self._hf.encode_batch_fast(texts, add_special_tokens=False)]
        except (TypeError, UnicodeEncodeError):
            for index, text in enumerate(texts):
                if not isinstance(text, str):
                    raise DataError(
                        f"text {index} of the batch is a {type(text).__name__}: expected a string"
                    ) from None
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise DataError(
                        f"text {index} of the batch cannot be encoded ({error}): replace its lone surrogates, "
                        f"for example with text.encode('utf-8', 'replace').decode()"
                    ) from None
            raise

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out; bytes that are not UTF-8 become U+FFFD."""
        return str(self._hf.decode([int(i) for i in ids], skip_special_tokens=True))

    @functools.cached_property
    def token_bytes(self) -> Int32[np.ndarray, " V"]:
        """The number of bytes of text that each token stands for; 0 for special tokens and for ids without a token.

        Raises:
            DataError: the tokenizer does not encode the bytes of the text as they are.
        """
        self._require_exact_bytes()
        alphabet = _byte_alphabet()
        added = {entry["content"]: entry for entry in self._spec.get("added_tokens") or []}
        sizes = np.zeros(self.vocab_size, np.int32)
        for token, token_id in self._vocab.items():
            if token in self._special_tokens:
                continue
            if token in added:
                sizes[token_id] = len(token.encode())
            elif alphabet.issuperset(token):
                sizes[token_id] = len(token)
            else:
                raise DataError(
                    f"{self._where}: token {token_id} ({token!r}) is not made of byte symbols: bytes per token are "
                    f"known only for byte-level BPE"
                )
        sizes.setflags(write=False)
        return sizes

    @functools.cached_property
    def _special_tokens(self) -> dict[str, int]:
        return {token["content"]: token["id"] for token in self._spec.get("added_tokens") or [] if token.get("special")}

    def _require_exact_bytes(self) -> None:
        stages = _stages(self._spec.get("pre_tokenizer"))
        byte_level = [stage for stage in stages if stage.get("type") == "ByteLevel"]
        problem = None
        if not byte_level:
            problem = "is not byte-level"
        elif any(stage.get("add_prefix_space") for stage in byte_level):
            problem = "adds a space before the text"
        elif self._spec.get("normalizer") is not None:
            problem = "normalizes the text"
        elif any(
            token.get("lstrip") or token.get("rstrip")
            for token in self._spec.get("added_tokens") or []
            if not token.get("special")
        ):
            problem = "strips spaces beside added tokens"
        if problem:
            raise DataError(
                f"{self._where} {problem}, so the bytes that a token stands for are not known: use a byte-level "
                f"BPE that keeps the text as it is"
            )


class _TextStatistics:
    """Counts and digests the texts that pass through."""

    def __init__(self) -> None:
        self.num_documents = 0
        self.num_bytes = 0
        self.digest = hashlib.sha256()

    def watch(self, path: str) -> Iterator[str]:
        for document in read_documents(path):
            data = document.text.encode()
            self.num_documents += 1
            self.num_bytes += len(data)
            self.digest.update(hashlib.sha256(data).digest())
            yield document.text


def text_batches(path: str, max_chars: int = _BATCH_CHARS) -> Iterator[list[str]]:
    """The texts of a `.jsonl.zst` file in lists of about `max_chars` characters, which bounds memory."""
    batch: list[str] = []
    size = 0
    for document in read_documents(path):
        batch.append(document.text)
        size += len(document.text)
        if size >= max_chars:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _stages(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return [stage for inner in pre_tokenizer.get("pretokenizers", []) for stage in _stages(inner)]
    return [pre_tokenizer]


def _byte_alphabet() -> frozenset[str]:
    from tokenizers import pre_tokenizers

    return frozenset(pre_tokenizers.ByteLevel.alphabet())
