"""From an item to the token sequences that a model is asked about: prompts, examples shown before it, and what is scored.

A prompt is the solved examples and the item, a blank line between each. By kind of task:

    multiple choice      one prompt for each choice; scored is what follows the tokens that all of them begin with
    schema               one prompt for each context; scored are the tokens that all of them end with
    language modeling    one prompt; scored is what follows the tokens of the prompt without its continuation

The rules, the seeds and where text is stripped are those of nanochat's CORE, so that figures can be compared with its.
"""

import dataclasses
import hashlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int32

from marin.data.core_tasks import LANGUAGE_MODELING, MULTIPLE_CHOICE, SCHEMA
from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError, DataError
from marin.evaluation.core.bundle import BundledTask, Item
from marin.evaluation.likelihood import Group, num_shared

_ORDER_SEED, _SHOTS_SEED = 1337, 1234
_CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Question:
    """An item as it is put to a model.

    Args:
        number: its place among the items in the order of evaluation, from 0.
        digest: of the prompts' text, in hex; the same for every tokenizer.
        gold: which sequence is the right one; None where greedy continuation decides.
    """

    number: int
    group: Group
    gold: int | None
    digest: str


def items_in_order(task: BundledTask, max_items: int) -> list[Item]:
    """The items in the order of evaluation, the first `max_items` of them (-1 for all).

    Raises:
        ConfigError: too few are left to show examples from.
    """
    items = list(task.items)
    random.Random(_ORDER_SEED).shuffle(items)
    if max_items > 0:
        items = items[:max_items]
    if len(items) <= task.num_shots:
        raise ConfigError(
            f"`{task.label}` shows {task.num_shots} other items before each, and there are {len(items)} in all: evaluate at least"
            f" {task.num_shots + 1} items of a task, or all (-1)"
        )
    return items


def shots_of(number: int, num_items: int, num_shots: int) -> list[int]:
    """Which items are shown before item `number`, in their order; never the item itself."""
    drawn = random.Random(_SHOTS_SEED + number).sample(range(num_items - 1), num_shots) if num_shots else []
    return [other + (other >= number) for other in drawn]


def questions(
    task: BundledTask, tokenizer: Tokenizer, *, max_items: int = -1, max_tokens: int | None = None
) -> Iterator[Question]:
    """The questions of a task, in order.

    Args:
        max_tokens: longer sequences lose their beginning; None keeps them whole.
    Raises:
        DataError: the tokens of an item cannot be scored, such as those of an empty continuation.
    """
    items = items_in_order(task, max_items)
    for first in range(0, len(items), _CHUNK):
        numbers = range(first, min(first + _CHUNK, len(items)))
        texts = [prompts(task, items[n], [items[i] for i in shots_of(n, len(items), task.num_shots)]) for n in numbers]
        encoded = iter(tokenizer.encode_arrays([text for group in texts for text in group]))
        bos = np.array([tokenizer.bos_id], np.int32)
        for n, group in zip(numbers, texts, strict=True):
            sequences = [np.concatenate([bos, next(encoded)]) for _ in group]
            where = f"{task.path}: item {n} of `{task.label}` in the order of evaluation"
            yield Question(
                number=n,
                group=_group(task.kind, sequences, max_tokens, where),
                gold=None if task.kind == LANGUAGE_MODELING else int(items[n]["gold"]),
                digest=hashlib.sha256("\0".join(group).encode()).hexdigest()[:16],
            )


def prompts(task: BundledTask, item: Item, shots: Sequence[Item]) -> list[str]:
    """The texts of an item's sequences. Of language modeling: the prompt without its continuation, and with it."""
    before = "".join(_solved(task, shot) + "\n\n" for shot in shots)
    if task.kind == MULTIPLE_CHOICE:
        return [before + item["query"] + task.delimiter + choice for choice in item["choices"]]
    if task.kind == SCHEMA:
        return [before + context + task.delimiter + item["continuation"] for context in item["context_options"]]
    # Without the strip the delimiter's space would become part of the continuation's first token in one text only.
    without = before + item["context"].strip() + task.delimiter
    return [without.strip(), without + item["continuation"]]


def _solved(task: BundledTask, shot: Item) -> str:
    if task.kind == MULTIPLE_CHOICE:
        return str(shot["query"] + task.delimiter + shot["choices"][shot["gold"]])
    if task.kind == SCHEMA:
        return str(shot["context_options"][shot["gold"]] + task.delimiter + shot["continuation"])
    return str(shot["context"].strip() + task.delimiter + shot["continuation"])


def _group(kind: str, sequences: list[Int32[np.ndarray, " t"]], max_tokens: int | None, where: str) -> Group:
    if kind == LANGUAGE_MODELING:
        without, whole = sequences
        if not np.array_equal(whole[: len(without)], without):
            raise DataError(
                f"{where}: the tokens of the prompt are not the first ones of the prompt with its continuation, so that what to"
                " score is not defined: use a tokenizer that splits text at spaces, as byte-level BPE does"
            )
        sequences, starts = [whole], [len(without)]
    elif kind == SCHEMA:
        shared = num_shared([sequence[::-1] for sequence in sequences])
        starts = [len(sequence) - shared for sequence in sequences]
    else:
        starts = [num_shared(sequences)] * len(sequences)
    if max_tokens is not None:
        cut = [max(0, len(sequence) - max_tokens) for sequence in sequences]
        sequences = [sequence[n:] for sequence, n in zip(sequences, cut, strict=True)]
        starts = [start - n for start, n in zip(starts, cut, strict=True)]
    for sequence, start in zip(sequences, starts, strict=True):
        # A choice with which all others begin has no token of its own: see `verdict`.
        if start < 1 or (start == len(sequence) and kind == LANGUAGE_MODELING):
            limit = "" if max_tokens is None else f" within {max_tokens:,} tokens"
            raise DataError(
                f"{where}: {len(sequence) - start} of {len(sequence)} tokens are to be scored{limit}, expected at least one and a token"
                " before it: the item is malformed, or the limit too low"
            )
    return Group.of(sequences, starts)
