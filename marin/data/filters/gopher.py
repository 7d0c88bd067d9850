"""The quality and repetition rules of Gopher (Rae et al. 2021, arXiv:2112.11446, appendix A.1.1 and table A1).

Words are split at white space. A fraction of characters counts the characters of the words, or of the lines or
paragraphs, without the white space between them. An n-gram that is repeated counts in all its occurrences but the
first, each character once.

All rules together take a second of one processor for 2.3 MB of technical English (30 MB, 2-core virtual machine, n=1).
"""

import functools
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int64

from marin.data.filters.rules import Rule
from marin.data.words import mixed

_SOURCE = "Rae et al. 2021, arXiv:2112.11446, "
_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLETS = ("•", "‣", "▶", "◦", "●", "-", "*")
_PARAGRAPH_ENDS = re.compile(r"\n\s*\n")

TOP_NGRAM_LIMITS = {2: 0.20, 3: 0.18, 4: 0.16}
_LARGEST_NGRAM = 10
REPEATED_NGRAM_LIMITS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def quality_rules(*, min_words: int = 50, max_words: int = 100_000, min_stop_words: int = 2) -> tuple[Rule, ...]:
    """The rules about length, symbols, bullets, letters and stop words, with the published limits.

    Args:
        min_stop_words: how many different ones of the, be, to, of, and, that, have, with are needed. 0 suits languages
            other than English.
    """
    source = _SOURCE + "A.1.1"
    return (
        Rule("Gopher number of words", number_of_words, {"least": min_words, "most": max_words}, source),
        Rule("Gopher mean word length", mean_word_length, {"least": 3, "most": 10}, source),
        Rule("Gopher symbols", symbols, {"most": 0.1}, source),
        Rule("Gopher bullets", bullets, {"most": 0.9}, source),
        Rule("Gopher ellipses", ellipses, {"most": 0.3}, source),
        Rule("Gopher words without letters", words_with_letters, {"least": 0.8}, source),
        Rule("Gopher stop words", stop_words, {"least": min_stop_words}, source),
    )


def repetition_rules() -> tuple[Rule, ...]:
    """The rules about repeated lines, paragraphs and n-grams, with the published limits."""
    source = _SOURCE + "table A1"
    return (
        Rule("Gopher repeated lines", repeated_lines, {"most": 0.3, "most_of_characters": 0.2}, source),
        Rule("Gopher repeated paragraphs", repeated_paragraphs, {"most": 0.3, "most_of_characters": 0.2}, source),
        Rule("Gopher top n-grams", top_ngrams, {"limits": TOP_NGRAM_LIMITS}, source),
        Rule("Gopher repeated n-grams", repeated_ngrams, {"limits": REPEATED_NGRAM_LIMITS}, source),
    )


def number_of_words(text: str, *, least: int, most: int) -> str | None:
    found = len(_words(text))
    return None if least <= found <= most else f"{found} words"


def mean_word_length(text: str, *, least: float, most: float) -> str | None:
    words = _words(text)
    found = sum(map(len, words)) / max(len(words), 1)
    return None if least <= found <= most else f"{found:.2f} characters a word"


def symbols(text: str, *, most: float) -> str | None:
    """Hashes, and ellipses, for each word."""
    num_words = max(len(_words(text)), 1)
    found = max(text.count("#"), text.count("...") + text.count("…")) / num_words
    return f"{found:.2f} symbols a word" if found > most else None


def bullets(text: str, *, most: float) -> str | None:
    return _share_of_lines([line.lstrip().startswith(_BULLETS) for line in _lines(text)], most, "begin with a bullet")


def ellipses(text: str, *, most: float) -> str | None:
    return _share_of_lines([line.rstrip().endswith(("...", "…")) for line in _lines(text)], most, "end in an ellipsis")


def words_with_letters(text: str, *, least: float) -> str | None:
    words = _words(text)
    found = sum(1 for word in words if word[0].isalpha() or any(map(str.isalpha, word))) / max(len(words), 1)
    return f"{found:.1%} of the words have a letter" if found < least else None


def stop_words(text: str, *, least: int) -> str | None:
    found = _STOP_WORDS.intersection(text.lower().split())
    return None if len(found) >= least else f"{len(found)} stop words"


def repeated_lines(text: str, *, most: float, most_of_characters: float) -> str | None:
    return _repeated([line.strip() for line in _lines(text)], "lines", most, most_of_characters)


def repeated_paragraphs(text: str, *, most: float, most_of_characters: float) -> str | None:
    paragraphs = [part.strip() for part in _PARAGRAPH_ENDS.split(text) if part.strip()]
    return _repeated(paragraphs, "paragraphs", most, most_of_characters)


def top_ngrams(text: str, *, limits: dict[int, float]) -> str | None:
    """The share of characters in the most frequent n-gram; of those as frequent, the longest."""
    ends = _word_ends(text)
    for size, starts, is_first in _ngrams_that_repeat(text):
        if size not in limits:
            continue
        firsts = np.flatnonzero(is_first)
        times = np.diff(np.append(firsts, len(starts)))
        chars = (ends[starts[firsts] + size] - ends[starts[firsts]])[times == times.max()].max() * times.max()
        if chars > limits[size] * ends[-1]:
            return f"{chars / ends[-1]:.1%} of the characters in one {size}-gram"
    return None


def repeated_ngrams(text: str, *, limits: dict[int, float]) -> str | None:
    """The share of characters in n-grams that stand in the text before."""
    ends = _word_ends(text)
    for size, starts, is_first in _ngrams_that_repeat(text):
        if size not in limits:
            continue
        repeats = starts[~is_first]
        depth = np.zeros(len(ends), np.int64)
        depth[repeats] += 1
        depth[repeats + size] -= 1
        chars = np.diff(ends)[np.cumsum(depth[:-1]) > 0].sum()
        if chars > limits[size] * ends[-1]:
            return f"{chars / ends[-1]:.1%} of the characters in repeated {size}-grams"
    return None


@functools.lru_cache(maxsize=1)
def _ngrams_that_repeat(text: str) -> list[tuple[int, Int64[np.ndarray, " n"], Bool[np.ndarray, " n"]]]:
    """For each size from 2 to 10: where the n-grams start that are not alone, equal ones together, and which come first.

    A longer n-gram can only repeat where a shorter one does, so there is little left to sort after the first size.
    """
    found = []
    code_of = {word: code for code, word in enumerate(dict.fromkeys(_words(text)))}
    words = mixed(np.fromiter(map(code_of.__getitem__, _words(text)), np.uint64, len(_words(text))))
    starts: np.ndarray = np.arange(len(words))
    hashes = words
    for size in range(2, _LARGEST_NGRAM + 1):
        fits = starts + size <= len(words)
        starts, hashes = starts[fits], hashes[fits]
        hashes = mixed(hashes ^ (words[starts + size - 1] * np.uint64(2 * size + 1)))
        order = np.argsort(hashes, kind="stable")
        starts, hashes = starts[order], hashes[order]
        is_first = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
        is_shared = ~is_first | np.append(~is_first[1:], False)[: len(hashes)]
        starts, hashes, is_first = starts[is_shared], hashes[is_shared], is_first[is_shared]
        if not len(starts):
            break
        found.append((size, starts, is_first))
    return found


def _word_ends(text: str) -> Int64[np.ndarray, " W+1"]:
    """Where each word ends, counted in characters of words; the first entry is 0."""
    words = _words(text)
    return np.cumsum(np.fromiter((0, *map(len, words)), np.int64, len(words) + 1))


# Rules look at the same text one after the other.
@functools.lru_cache(maxsize=1)
def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@functools.lru_cache(maxsize=1)
def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _share_of_lines(flags: Sequence[bool], most: float, what: str) -> str | None:
    found = sum(flags) / max(len(flags), 1)
    return f"{found:.1%} of the lines {what}" if found > most else None


def _repeated(parts: list[str], what: str, most: float, most_of_characters: float) -> str | None:
    seen: set[str] = set()
    num_repeated = num_chars = 0
    for part in parts:
        if part in seen:
            num_repeated += 1
            num_chars += len(part)
        seen.add(part)
    if num_repeated > most * len(parts):
        return f"{num_repeated / len(parts):.1%} of the {what} are repeated"
    total = sum(map(len, parts))
    if num_chars > most_of_characters * total:
        return f"{num_chars / total:.1%} of the characters in repeated {what}"
    return None
