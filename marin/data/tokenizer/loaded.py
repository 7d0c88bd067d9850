"""An opened `tokenizer.json`: text to ids and back.

Text is never taken for a special token: a document that contains the characters `<|bos|>` is encoded as those
characters. Where the file can be expressed in tiktoken, which gives the same ids several times faster, it encodes;
otherwise the `tokenizers` library does, and `encoder_reason` says why.

`token_bytes` says how many bytes of text each token stands for. It is exact only when the tokenizer encodes the text's
own bytes, so it is refused for one that normalizes, adds a prefix space, or is not byte-level.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Int32

from marin.data.batches import in_batches
from marin.data.tokenizer.byte_bpe import ByteBpe, NotExpressible, byte_bpe, byte_of_symbol, encode, stages_of
from marin.errors import DataError, StorageError
from marin.storage import files

TOKENIZER_FILE = "tokenizer.json"
# What stands between documents, in the order in which it is looked for: first ours, then those of others.
_BOS_TOKENS = ("<|bos|>", "<|begin_of_text|>", "<s>", "<|endoftext|>")
# What published tokenizers end a document with: Llama 2's and Mistral's, Llama 3's, GPT-2's and Qwen's.
_EOS_TOKENS = ("</s>", "<|end_of_text|>", "<|endoftext|>")
# A token for one byte, as tokenizers like Llama 2's have for characters without a token.
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_NO_TEXT = "\ufffd"
BATCH_CHARS = 4_000_000
_GROUP_CHARS = 100_000
# tiktoken's pattern engine keeps a note for each character of a run of spaces, and gives up at some hundred thousand.
# A run of twice so many characters fills at least one of the blocks that a text is cut into.
_BLOCK_OF_SPACES = 25_000


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

    def first_token_unlike(self, other: "Tokenizer") -> str | None:
        """The token of the least id that has another one in `other`, or none; None where all have the same."""
        if self.digest == other.digest:
            return None
        unlike = [(place, token) for token, place in self._vocab.items() if other._vocab.get(token) != place]
        return min(unlike)[1] if unlike else None

    @staticmethod
    def load(path: str) -> "Tokenizer":
        """Opens a `tokenizer.json`, or the one in the directory `path`.

        Raises:
            DataError: there is none, or it cannot be read.
        """
        where = path if path.endswith(".json") else files.join(path, TOKENIZER_FILE)
        if where != path and files.is_local(path) and files.local_path(path).is_file():
            raise DataError(f"no tokenizer: {path} is a file: give a {TOKENIZER_FILE}, or the directory that holds one")
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
            if token in self.special_tokens:
                return self.special_tokens[token]
        raise DataError(
            f"{self._where} has no token that begins a document (looked for {', '.join(_BOS_TOKENS)}): "
            f"add one of them as a special token"
        )

    @functools.cached_property
    def document_ends(self) -> frozenset[int]:
        """The ids with which a model says that a document has ended: the one that begins the next, and one of its own for it."""
        ends = (self.special_tokens[token] for token in _EOS_TOKENS if token in self.special_tokens)
        return frozenset((self.bos_id, *ends))

    @functools.cached_property
    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that no text is encoded as."""
        return {token["content"]: token["id"] for token in self._spec.get("added_tokens") or [] if token.get("special")}

    @property
    def encoder_reason(self) -> str | None:
        """Why tiktoken does not encode; None if it does."""
        return self._encoder if isinstance(self._encoder, str) else None

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without special tokens.

        Raises:
            DataError: `text` holds a lone surrogate, so it has no bytes.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str], num_threads: int = 0) -> list[Int32[np.ndarray, " n"]]:
        """`encode` of each text as an array.

        Args:
            num_threads: 0 is one a processor. The `tokenizers` library uses its own number.
        Raises:
            DataError: as for `encode`.
        """
        num_bytes = _count_bytes(texts)
        if isinstance(self._encoder, str):
            return self._encode_with_tokenizers(texts)
        num_threads = min(num_threads or os.cpu_count() or 1, 1 + sum(map(len, texts)) // _GROUP_CHARS)
        if num_threads == 1:
            arrays = [self._encode_one(self._encoder, text) for text in texts]
        else:
            with ThreadPoolExecutor(num_threads) as pool:
                arrays = [ids for group in pool.map(self._encode_group, _groups(texts)) for ids in group]
        # A pattern that does not match all text drops what it does not match, where `tokenizers` keeps it.
        if arrays and int(self._encoder.sizes[np.concatenate(arrays)].sum()) != num_bytes:
            return self._encode_with_tokenizers(texts)
        return arrays

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out; bytes that are not UTF-8 become U+FFFD."""
        return str(self._hf.decode([int(i) for i in ids], skip_special_tokens=True))

    def text_of(self, token_id: int) -> str:
        """What a token writes within a text: with its space, which tokenizers like Llama 2's leave out where a text begins with it."""
        alone, twice = self.decode([token_id]), self.decode([token_id, token_id])
        # Twice the bytes of part of a character may be other signs than that many.
        return twice[len(alone) :] if twice.startswith(alone) and _NO_TEXT not in alone else alone

    def bytes_of(self, token_id: int) -> bytes | None:
        """The bytes of text that a token stands for, which may begin or end inside a character; None where they are not known."""
        text = self.text_of(token_id)
        if _NO_TEXT not in text:
            return text.encode()
        symbols, byte_of = self._hf.id_to_token(token_id), byte_of_symbol()
        if symbols is not None and (byte := _BYTE_TOKEN.fullmatch(symbols)):
            return bytes([int(byte[1], 16)])
        if symbols is None or not self._byte_level_stages or not byte_of.keys() >= set(symbols):
            return None
        return bytes(byte_of[symbol] for symbol in symbols)

    @functools.cached_property
    def token_bytes(self) -> Int32[np.ndarray, " V"]:
        """The number of bytes of text that each token stands for; 0 for special tokens and for ids without a token.

        Raises:
            DataError: the tokenizer does not encode the bytes of the text as they are.
        """
        sizes = np.array([len(text) for text in self.token_texts], np.int32)
        sizes.setflags(write=False)
        return sizes

    @functools.cached_property
    def token_texts(self) -> tuple[bytes, ...]:
        """The bytes that each token stands for, by its id; none for special tokens and for ids without a token.

        That a text's tokens stand for the text is not said by this: where a vocabulary lacks bytes, others stand in their place.

        Raises:
            DataError: the tokenizer does not encode the bytes of the text as they are.
        """
        self._require_exact_bytes()
        byte_of = byte_of_symbol()
        added = {entry["content"] for entry in self._spec.get("added_tokens") or []}
        found = [b""] * self.vocab_size
        for token, token_id in self._vocab.items():
            if token in self.special_tokens:
                continue
            if token in added:
                found[token_id] = token.encode()
            elif byte_of.keys() >= set(token):
                found[token_id] = bytes(byte_of[symbol] for symbol in token)
            else:
                raise DataError(
                    f"{self._where}: token {token_id} ({token!r}) is not made of byte symbols: bytes per token are "
                    f"known only for byte-level BPE"
                )
        return tuple(found)

    @functools.cached_property
    def _encoder(self) -> ByteBpe | str:
        try:
            return byte_bpe(self._spec, self._hf)
        except NotExpressible as reason:
            return str(reason)

    def _encode_group(self, texts: list[str]) -> list[Int32[np.ndarray, " n"]]:
        assert isinstance(self._encoder, ByteBpe)
        return [self._encode_one(self._encoder, text) for text in texts]

    def _encode_one(self, encoder: ByteBpe, text: str) -> Int32[np.ndarray, " n"]:
        if _has_long_run_of_spaces(text):
            return self._encode_with_tokenizers([text])[0]
        return encode(encoder, text)

    def _encode_with_tokenizers(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        encodings = self._hf.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    @property
    def _byte_level_stages(self) -> list[dict[str, Any]]:
        return [stage for stage in stages_of(self._spec.get("pre_tokenizer")) if stage.get("type") == "ByteLevel"]

    def _require_exact_bytes(self) -> None:
        problem = None
        if not self._byte_level_stages:
            problem = "is not byte-level"
        elif any(stage.get("add_prefix_space") for stage in self._byte_level_stages):
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


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """What one thread takes at a time: enough that handing it over costs nothing."""
    return in_batches(texts, len, _GROUP_CHARS)


def _has_long_run_of_spaces(text: str) -> bool:
    """Looks at few characters where there is no such run; a regular expression would take the square of a run's length."""
    starts = range(0, len(text) - _BLOCK_OF_SPACES + 1, _BLOCK_OF_SPACES)
    return any(text[start : start + _BLOCK_OF_SPACES].isspace() for start in starts)


def _count_bytes(texts: Sequence[str]) -> int:
    """The length of all texts in UTF-8.

    Raises:
        DataError: one is no string, or holds a lone surrogate.
    """
    total = 0
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {index} of the batch is a {type(text).__name__}: expected a string")
        try:
            total += len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            raise DataError(
                f"text {index} of the batch cannot be encoded ({error}): replace its lone surrogates, "
                f"for example with text.encode('utf-8', 'replace').decode()"
            ) from None
    return total
