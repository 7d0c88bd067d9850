"""An index of the word n-grams of named evaluation sets, in which the words of documents are looked up.

An evaluation set is files of items: lines of `.txt` files, rows of `.jsonl` and `.json` files (also of the CORE bundle).
An item's texts are its strings, and those that belong together in one: question and right answer, context and
continuation. Texts are compared by their words (`marin.data.words`): case, spacing and punctuation do not matter.

Of a text of at least `size` words every n-gram of that size is indexed; one of fewer words, but at least `shortest`, is
indexed whole; shorter ones say too little and are left out. An n-gram that stands in more than `max_items` items of its
set is an instruction or a format, and no content, so it is left out too; the counts of both are in the report.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt64

from marin.data.batches import in_batches
from marin.data.formats import BadRow, json_line_rows, json_rows, text_rows
from marin.data.inputs import find_inputs, opened_unchanged
from marin.data.words import Words, mixed, ngram_hashes, words_of
from marin.errors import ConfigError, DataError

_TABLE_BITS = 24
_CHARS_AT_ONCE = 1 << 20  # of items, as hashing one by one is slow


@dataclass(frozen=True)
class OverlapSettings:
    """Args:
    size: words in an n-gram; Brown et al. 2020 (GPT-3, appendix C) use 8 to 13.
    shortest: texts of evaluation items with fewer words are not looked for.
    max_items: n-grams that more items of one set share are taken for instructions.
    """

    size: int = 13
    shortest: int = 8
    max_items: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.size <= 64 or self.max_items < 1:
            raise ConfigError(
                f"config fields `shortest` = {self.shortest}, `size` = {self.size}, `max_items` = {self.max_items}: "
                f"expected 1 <= shortest <= size <= 64 and max_items >= 1, such as 8, 13 and 10"
            )


@dataclass(frozen=True)
class IndexedSet:
    """What is in the index of one evaluation set.

    Args:
        num_items: lines or rows.
        num_indexed: items with at least one n-gram in the index.
        num_instructions: n-grams that were left out, as too many items share them.
    """

    name: str
    num_items: int
    num_indexed: int
    num_instructions: int


class NgramIndex:
    """N-grams of all sets. Item k of all sets counted together is item `k - first_items[s]` of set s."""

    def __init__(self, paths: Mapping[str, Sequence[str]], settings: OverlapSettings):
        """Reads the files.

        Args:
            paths: of each set's files.
        Raises:
            DataError: a file cannot be read, or no set has an item that is long enough.
        """
        self.sets: list[IndexedSet] = []
        hashes: list[np.ndarray] = []
        items: list[np.ndarray] = []
        sizes: set[int] = set()
        first_items = [0]
        for name, files_of_set in paths.items():
            found = _set_ngrams(files_of_set, settings)
            unique, num_sharing = np.unique(found.hashes, return_counts=True)
            instructions = unique[num_sharing > settings.max_items]
            kept = ~np.isin(found.hashes, instructions)
            hashes.append(found.hashes[kept])
            items.append(found.items[kept] + first_items[-1])
            sizes |= set(found.sizes[kept].tolist())
            self.sets.append(IndexedSet(name, found.num_items, len(np.unique(found.items[kept])), len(instructions)))
            first_items.append(first_items[-1] + found.num_items)
        self.first_items: Int64[np.ndarray, " S+1"] = np.array(first_items)
        self.sizes = sorted(sizes)
        joined = np.concatenate(hashes)
        if not len(joined):
            raise DataError(
                f"the evaluation sets {', '.join(paths)} have no item with a text of {settings.shortest} words of its "
                f"own: check the files, or lower `shortest`"
            )
        order = np.argsort(joined, kind="stable")
        self._hashes, self._items = joined[order], np.concatenate(items)[order]

    @functools.cached_property
    def _may_hold(self) -> np.ndarray:
        """Whether some n-gram's hash begins with these 24 bits: answers for nearly all n-grams of a document."""
        table = np.zeros(1 << _TABLE_BITS, bool)
        table[self._hashes >> np.uint64(64 - _TABLE_BITS)] = True
        return table

    def matches(self, words: Words) -> Iterator[tuple[int, int, int]]:
        """`(text, start, size)` of every n-gram in the index: its text, its first word there, and its number of words."""
        for size in self.sizes:
            grams = _hashed(words.hashes, size)
            candidates = np.flatnonzero(self._may_hold[grams >> np.uint64(64 - _TABLE_BITS)])
            found = np.searchsorted(self._hashes, grams[candidates])
            is_in = self._hashes[np.minimum(found, len(self._hashes) - 1)] == grams[candidates]
            positions = candidates[is_in]
            texts = np.searchsorted(words.starts, positions, side="right") - 1
            whole = positions + size <= words.starts[texts + 1]
            for position, text in zip(positions[whole].tolist(), texts[whole].tolist(), strict=True):
                yield text, position - int(words.starts[text]), size

    def items_with(self, words: UInt64[np.ndarray, " size"]) -> Int64[np.ndarray, " n"]:
        """The items, in order, that hold this n-gram."""
        gram = _hashed(words, len(words))[0]
        first, last = np.searchsorted(self._hashes, gram, "left"), np.searchsorted(self._hashes, gram, "right")
        return np.unique(self._items[first:last])

    def set_of(self, item: int) -> int:
        """The number of the set that an item belongs to."""
        return int(np.searchsorted(self.first_items, item, side="right")) - 1


@dataclass(frozen=True)
class _Ngrams:
    """The n-grams of a set: hash, item and number of words of each, every pair of hash and item once."""

    hashes: UInt64[np.ndarray, " n"]
    items: Int64[np.ndarray, " n"]
    sizes: Int64[np.ndarray, " n"]
    num_items: int


def _set_ngrams(paths: Sequence[str], settings: OverlapSettings) -> _Ngrams:
    hashes: list[np.ndarray] = [np.zeros(0, np.uint64)]
    items: list[np.ndarray] = [np.zeros(0, np.int64)]
    sizes: list[np.ndarray] = [np.zeros(0, np.int64)]
    num_items = 0
    for block in in_batches(_items(paths), lambda texts: sum(map(len, texts)), _CHARS_AT_ONCE):
        words = words_of([text for texts in block for text in texts])
        item_of_text = np.array([num_items + item for item, texts in enumerate(block) for _ in texts])
        counts = np.diff(words.starts)
        for size in range(settings.shortest, settings.size + 1):
            chosen = np.flatnonzero(counts >= size if size == settings.size else counts == size)
            num_windows = counts[chosen] - size + 1
            ends = np.cumsum(num_windows)
            if not len(chosen):
                continue
            positions = np.arange(ends[-1]) + np.repeat(words.starts[chosen] - ends + num_windows, num_windows)
            hashes.append(_hashed(words.hashes, size)[positions])
            items.append(np.repeat(item_of_text[chosen], num_windows))
            sizes.append(np.full(len(positions), size))
        num_items += len(block)
    joined, joined_items = np.concatenate(hashes), np.concatenate(items)
    order = np.lexsort((joined, joined_items))
    joined, joined_items = joined[order], joined_items[order]
    is_new = np.append(True, (joined[1:] != joined[:-1]) | (joined_items[1:] != joined_items[:-1]))[: len(joined)]
    return _Ngrams(joined[is_new], joined_items[is_new], np.concatenate(sizes)[order][is_new], num_items)


def _hashed(words: UInt64[np.ndarray, " W"], size: int) -> UInt64[np.ndarray, " n"]:
    """The n-grams of this size; n-grams of different sizes are different."""
    return mixed(ngram_hashes(words, size) + np.uint64(size))


def _items(paths: Sequence[str]) -> Iterator[list[str]]:
    """The texts of each item."""
    for file in find_inputs(paths).files:
        if file.format not in ("text", "jsonl", "json"):
            raise DataError(f"{file.path}: evaluation sets are .txt, .jsonl or .json files: write it as one of them")
        with opened_unchanged(file.path) as stream:
            if file.format == "text":
                for row in text_rows(file, stream):
                    if isinstance(row, BadRow):
                        raise DataError(f"{file.path}:{row.number}: {row.detail}")
                    yield from ([line] for line in row.fields["text"].splitlines() if line.strip())
                continue
            for row in (json_line_rows if file.format == "jsonl" else json_rows)(file, stream):
                if isinstance(row, BadRow):
                    raise DataError(f"{file.path}:{row.number}: {row.reason}: {row.detail}")
                yield texts_of_item(row.fields)


def texts_of_item(fields: Mapping[str, Any]) -> list[str]:
    """The texts of one row: its strings at any depth, and those of the CORE bundle's formats that form one text."""
    texts = list(_strings(list(fields.values())))
    gold, choices = fields.get("gold"), fields.get("choices")
    contexts = fields.get("context_options")
    context = fields.get("context")
    if isinstance(contexts, list) and isinstance(gold, int) and 0 <= gold < len(contexts):
        context = contexts[gold]
    if isinstance(context, str) and isinstance(fields.get("continuation"), str):
        texts.append(f"{context} {fields['continuation']}")
    if isinstance(choices, list) and isinstance(gold, int) and 0 <= gold < len(choices) and "query" in fields:
        texts.append(f"{fields['query']} {choices[gold]}")
    return texts


def _strings(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, list | Mapping):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _strings(value)
