"""Conversations that the project makes: spelling, letter counting, arithmetic with the calculator, facts about itself.

They need no network, and what is right is known. Each is a pure function of (kind, split, seed, number); the splits share
no word, no sum and no wording (see `words.is_held_out`), so the score on "test" is on what was never seen.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from marin.errors import ConfigError
from marin.finetuning.made.arithmetic import arithmetic
from marin.finetuning.made.identity import identity
from marin.finetuning.made.question import Made
from marin.finetuning.made.spelling import counting, spelling
from marin.finetuning.made.words import Split

MAKERS: dict[str, Callable[[random.Random, Split], Made]] = {
    "spelling": spelling,
    "counting": counting,
    "arithmetic": arithmetic,
    "identity": identity,
}
_SHARES = {"spelling": 0.35, "counting": 0.2, "arithmetic": 0.35, "identity": 0.1}
_TWO_QUESTIONS = 0.15


def make(kind: str, split: Split, number: int, *, seed: int = 0) -> Made:
    """Conversation `number` of a kind.

    Raises:
        ConfigError: there is no such kind or split.
    """
    if kind not in MAKERS:
        raise ConfigError(f"there are no made conversations of the kind {kind!r}: use {', '.join(MAKERS)}")
    if split not in ("train", "test"):
        raise ConfigError(f"made conversations have no split {split!r}: use 'train' or 'test'")
    return MAKERS[kind](random.Random(f"{kind}/{split}/{seed}/{number}"), split)


def questions(kind: str, size: int) -> list[Made]:
    """`size` different held-out questions of a kind, or all that there are if they are fewer; no word is to be spelled twice."""
    found: dict[str, Made] = {}
    number = 0
    while len(found) < size and number < 20 * size + 100:
        made = make(kind, "test", number)
        found.setdefault(made.answer if kind == "spelling" else made.conversation["messages"][0]["content"], made)
        number += 1
    return list(found.values())


def training_conversations(size: int, *, seed: int = 0, split: Split = "train") -> Iterator[dict[str, Any]]:
    """`size` conversations, the kinds mixed; some ask two questions, one after the other.

    Args:
        split: "test" for conversations to measure a loss on, made of what is held out.
    """
    for number in range(size):
        rng = random.Random(f"mixture/{split}/{seed}/{number}")
        drawn = rng.choices(list(_SHARES), list(_SHARES.values()), k=2)
        asked = 2 if rng.random() < _TWO_QUESTIONS else 1
        parts = [make(kind, split, 2 * number + index, seed=seed) for index, kind in enumerate(drawn[:asked])]
        yield {"messages": [message for part in parts for message in part.conversation["messages"]]}


__all__ = ["MAKERS", "Made", "make", "questions", "training_conversations"]
