"""Hashes of words and of word n-grams for many texts at once: what near-duplicates and overlaps are found by.

A word is a run of letters, digits and underscores of the lower-cased text; a character of a script that is written
without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) is a word of its own. Everything else only separates. So
two texts that differ in case, spacing or punctuation have the same words.

Python needs 200 microseconds to split a text of 2 KB into words and to hash them one by one; here a block of texts is
one array, and a word's hash is a difference of two prefix sums: with characters c and an odd P, the sum of
c[i] P^i over the word, times P^-start, modulo 2^64. The classes of characters are fixed ranges, not the Unicode data of
the Python that runs, so hashes are the same everywhere.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

# Blocks of this many characters stay in a processor's cache with their arrays (8 bytes a character each).
BLOCK_CHARS = 1 << 18
# A longer text is hashed in pieces, so that memory does not grow by 40 bytes for each of its characters.
_PIECE_CHARS = 4 * BLOCK_CHARS

_SEPARATOR, _JOINS, _ALONE = 0, 1, 2
# First and last code point. ASCII and Latin-1 by character; beyond them whole blocks of symbols and punctuation.
_SEPARATORS = (
    (0x00, 0x2F), (0x3A, 0x40), (0x5B, 0x5E), (0x60, 0x60), (0x7B, 0xA9), (0xAB, 0xB1), (0xB4, 0xB4), (0xB6, 0xB8),
    (0xBB, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7), (0x2000, 0x206F), (0x20A0, 0x20CF), (0x2100, 0x2BFF), (0x2E00, 0x2E7F),
    (0x3000, 0x3004), (0x3008, 0x3020), (0x3030, 0x3030), (0x303D, 0x303F), (0xD800, 0xF8FF), (0xFE10, 0xFE1F),
    (0xFE30, 0xFE6F), (0xFF00, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40), (0xFF5B, 0xFF65), (0xFFE0, 0xFFFF),
    (0x1F000, 0x1FAFF),
)  # fmt: skip
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x302F),
    (0x3031, 0x303C), (0x3040, 0x312F), (0x31A0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip

_P = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64
_Q = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Words:
    """The words of a block of texts, end to end; text i has `hashes[starts[i] : starts[i + 1]]`."""

    hashes: UInt64[np.ndarray, " W"]
    starts: Int64[np.ndarray, " T+1"]

    def ngrams(self, size: int) -> "Words":
        """The hashes of every `size` consecutive words of each text, in order.

        A text of fewer words, but at least one, has one hash, that of all its words.
        """
        counts = np.diff(self.starts)
        hashes = mixed(ngram_hashes(self.hashes, size))
        # Windows that reach into the next text go; a short text keeps a window that is made for it below.
        num_windows = np.maximum(counts - size + 1, np.minimum(counts, 1))
        starts = np.concatenate([[0], np.cumsum(num_windows)])
        first = np.repeat(self.starts[:-1] - starts[:-1], num_windows)
        positions = np.arange(starts[-1]) + first
        result = (
            hashes[np.minimum(positions, max(len(hashes) - 1, 0))]
            if len(hashes)
            else np.zeros(len(positions), np.uint64)
        )
        for text in np.flatnonzero((counts > 0) & (counts < size)).tolist():
            words = self.hashes[self.starts[text] : self.starts[text + 1]]
            result[starts[text]] = mixed(ngram_hashes(words, len(words)))[0]
        return Words(result, starts)


def ngram_hashes(hashes: UInt64[np.ndarray, " W"], size: int) -> UInt64[np.ndarray, " n"]:
    """Polynomial hashes of every `size` consecutive words; longer ones can be made from them, see `longer`."""
    if len(hashes) < size:
        return np.zeros(0, np.uint64)
    total = hashes[: len(hashes) - size + 1].copy()
    for offset in range(1, size):
        total *= _Q
        total += hashes[offset : len(hashes) - size + 1 + offset]
    return total


def words_of(texts: Sequence[str]) -> Words:
    """The words of each text."""
    if any(len(text) > _PIECE_CHARS for text in texts):
        parts = [_words_of_long(text) if len(text) > _PIECE_CHARS else words_of([text]).hashes for text in texts]
        return Words(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))
    lowered = [text.lower() for text in texts]
    joined = "\0".join(lowered) + "\0"
    if joined.isascii():
        codes: np.ndarray = np.frombuffer(joined.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    text_ends = np.cumsum(np.fromiter((len(text) + 1 for text in lowered), np.int64, len(lowered)))
    kinds = _classes()[codes]
    starts, ends = _word_bounds(kinds)
    forward, backward = _powers(len(codes))
    sums = np.empty(len(codes) + 1, np.uint64)
    sums[0] = 0
    np.cumsum(_letters()[codes] * forward[: len(codes)], out=sums[1:])
    hashes = mixed((sums[ends] - sums[starts]) * backward[starts])
    return Words(hashes, np.concatenate([[0], np.searchsorted(starts, text_ends)]))


def words_between(text: str, start: int, stop: int) -> str:
    """The text from word `start` to the end of word `stop - 1`, in lower case, as messages show it."""
    lowered = text.lower() + "\0"
    codes = np.frombuffer(lowered.encode("utf-32-le", "surrogatepass"), np.uint32)
    starts, ends = _word_bounds(_classes()[codes])
    return lowered[starts[start] : ends[stop - 1]]


def mixed(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """A bijection of 64-bit integers that spreads every bit over all (the finalizer of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _words_of_long(text: str) -> UInt64[np.ndarray, " W"]:
    """The words of a text that is taken in pieces cut at spaces; where there is none, a word is cut in two."""
    parts: list[np.ndarray] = []
    start = 0
    while start < len(text):
        stop = start + _PIECE_CHARS
        if stop < len(text):
            stop = text.rfind(" ", start + 1, stop) if " " in text[start + 1 : stop] else stop
        parts.append(words_of([text[start:stop]]).hashes)
        start = stop
    return np.concatenate(parts)


def _word_bounds(kinds: UInt8[np.ndarray, " C"]) -> tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]:
    """Where words start and end, in order. The last character is a separator."""
    before = np.concatenate([np.zeros(1, np.uint8), kinds[:-1]])
    alone = kinds == _ALONE
    starts = np.flatnonzero(alone | ((kinds == _JOINS) & (before != _JOINS)))
    ends = np.flatnonzero((before == _ALONE) | ((before == _JOINS) & (kinds != _JOINS)))
    return starts, ends


@functools.cache
def _classes() -> UInt8[np.ndarray, " 1114112"]:
    classes = np.full(0x110000, _JOINS, np.uint8)
    for ranges, value in ((_SEPARATORS, _SEPARATOR), (_WITHOUT_SPACES, _ALONE)):
        for first, last in ranges:
            classes[first : last + 1] = value
    return classes


@functools.cache
def _letters() -> UInt64[np.ndarray, " 1114112"]:
    """A fixed random number for each code point."""
    return mixed(np.arange(1, 0x110001, dtype=np.uint64) * np.uint64(_P))


_POWERS: list[np.ndarray] = [np.ones(0, np.uint64), np.ones(0, np.uint64)]


def _powers(size: int) -> tuple[UInt64[np.ndarray, " n"], UInt64[np.ndarray, " n"]]:
    """P^i and P^-i for i < n, n at least `size`; kept, as every block needs them."""
    if len(_POWERS[0]) < size:
        length = max(size, 2 * BLOCK_CHARS)
        for index, base in enumerate((_P, pow(_P, -1, 1 << 64))):
            powers = np.full(length, base, np.uint64)
            powers[0] = 1
            _POWERS[index] = np.cumprod(powers, dtype=np.uint64)
    return _POWERS[0], _POWERS[1]
