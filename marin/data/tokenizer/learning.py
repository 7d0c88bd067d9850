"""Learns the merges of a byte-level BPE from texts, with Hugging Face's trainer.

The trainer sees a text as characters, so each byte must be one. `tokenizers` has a stage for that, `ByteLevel`, which
copies every word of the corpus again and takes a third of the time. So there are two ways, which learn the same:

- By symbols: split the text, then let `ByteLevel` write each byte as the symbol that stands for it in the file.
- By Latin-1, for text that is mostly ASCII: a byte is the character with its code, which ASCII text is already. Text is
  cut at spaces where the pattern cuts too, and only the stretches with other characters are split and rewritten here.
  They reach the trainer as their words with a mark before each, and the pattern is told to take such words whole.

Merges of equal count are ordered by the ids of their parts. So the trainer is given the Latin-1 characters as special
tokens, which get their ids in the order of the symbols; afterwards the characters are replaced by the symbols.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from marin.data.tokenizer.byte_bpe import byte_of_symbol

# The published GPT-4 pattern, with numbers split after two digits instead of three: in a vocabulary of a few thousand
# tokens the thousand three-digit numbers would crowd out words.
# In order: clitics; a word with the one character before it; digits; punctuation and the line ends after it; blank
# lines; spaces, but not the one that belongs to the next word; other spaces.
SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)

# Before a space after a visible ASCII character `SPLIT_PATTERN` always cuts: no alternative takes a space after
# anything but spaces, and what stands before the cut decides nothing about what stands behind it, nor the other way round.
_CUT = re.compile(rb"(?<=[!-~])(?= )")
_CUT_IN_ASCII = re.compile(r"(?<=[!-~])(?= )")
_UNTIL_LAST_CUT = re.compile(rb".*[!-~](?= )", re.DOTALL)
_MARK = "\xff"  # the character of a byte that UTF-8 never has, so it stands in no rewritten text
MARKED_PATTERN = f"(?<={_MARK})[^{_MARK}]++|{_MARK}|{SPLIT_PATTERN}"
# The share of bytes of other characters than ASCII up to which Latin-1 is faster, asked of the first documents.
_MOSTLY_ASCII = 0.02
_NUM_ASKED = 100
_PART = 1_000_000  # characters; the trainer holds about 65 bytes for each character of a text that it splits


def learn(texts: Iterator[str], vocab_size: int, special_tokens: Sequence[str], split_pattern: str) -> Any:
    """A `tokenizers` BPE model, with fewer tokens than `vocab_size` if the texts have no more.

    Args:
        special_tokens: get the first ids.
        split_pattern: must be one that `tokenizers.Regex` accepts.
    """
    first = list(itertools.islice(texts, _NUM_ASKED))
    texts = itertools.chain(first, texts)
    # A special token that could be a symbol or a merge would mean another one in Latin-1.
    has_plain_names = all(re.fullmatch("[!-~]{2,}", token) for token in special_tokens)
    if split_pattern == SPLIT_PATTERN and has_plain_names and _is_mostly_ascii(first):
        return _learn_by_latin_1(texts, vocab_size, special_tokens)
    return _learn_by_symbols(texts, vocab_size, special_tokens, split_pattern)


def _learn_by_symbols(texts: Iterator[str], vocab_size: int, special_tokens: Sequence[str], split_pattern: str) -> Any:
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = [*special_tokens, *sorted(byte_of_symbol())]
    return _trained(texts, pre_tokenizers.Sequence([_split(split_pattern), byte_level]), vocab_size, tokens)


def _learn_by_latin_1(texts: Iterator[str], vocab_size: int, special_tokens: Sequence[str]) -> Any:
    from tokenizers import models

    split = _split(SPLIT_PATTERN)
    parts = itertools.chain.from_iterable(latin_1_parts(text, split) for text in texts)
    characters = [chr(byte) for _, byte in sorted(byte_of_symbol().items())]
    model = _trained(parts, _split(MARKED_PATTERN), vocab_size, [*special_tokens, *characters])
    spec = json.loads(model.__getstate__())
    symbols = {byte: symbol for symbol, byte in byte_of_symbol().items()}
    vocab = {token.translate(symbols): token_id for token, token_id in spec["vocab"].items()}
    merges = [(left.translate(symbols), right.translate(symbols)) for left, right in spec["merges"]]
    return models.BPE(vocab, merges)


def latin_1_parts(text: str, split: Any) -> Iterator[str]:
    """The text in parts, bytes as Latin-1; parts with other characters than ASCII as marked words, found by `split`."""
    if text.isascii():
        yield from ascii_parts(text)
        return
    data = text.encode()
    others = np.flatnonzero(np.frombuffer(data, np.uint8) >= 0x80)
    start = 0
    while (index := np.searchsorted(others, start)) < len(others):
        other = int(others[index])
        last_cut = _UNTIL_LAST_CUT.match(data, start, other)
        left = last_cut.end() if last_cut else start
        next_cut = _CUT.search(data, other)
        right = next_cut.start() if next_cut else len(data)
        yield from ascii_parts(data[start:left].decode())
        words = split.pre_tokenize_str(data[left:right].decode())
        yield "".join(_MARK + word.encode().decode("latin-1") for word, _ in words)
        start = right
    yield from ascii_parts(data[start:].decode())


def ascii_parts(text: str, size: int = _PART) -> Iterator[str]:
    """ASCII text, cut behind each `size` characters at the next place where `SPLIT_PATTERN` cuts too."""
    start = 0
    while (cut := _CUT_IN_ASCII.search(text, start + size)) is not None:
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _split(pattern: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _trained(texts: Iterator[str], pre_tokenizer: Any, vocab_size: int, first_tokens: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(first_tokens),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.model


def _is_mostly_ascii(texts: Sequence[str]) -> bool:
    size = sum(len(text.encode()) for text in texts)
    return size - sum(len(text.encode("ascii", "ignore")) for text in texts) <= _MOSTLY_ASCII * size
