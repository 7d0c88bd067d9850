"""The words that made conversations are about: English ones from stems (`stems.py`), and coined ones from syllables.

Coined words ("bravelo") cannot be learned by heart, and there is no end of them: who spells them knows the letters of tokens.
Whether a word is held out is decided by a hash of it alone, so that no training set of any size or seed has it.
"""

import functools
import hashlib
import random
from typing import Literal

from marin.finetuning.made.stems import inflected_words

Split = Literal["train", "test"]
_HELD_OUT_IN = 10
_ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "th",
    "tr",
    "v",
    "w",
]
_VOWELS = ["a", "e", "i", "o", "u", "ea", "oo"]
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "ck"]


def is_held_out(subject: str) -> bool:
    """Whether conversations about this belong to the split "test"; one in ten does."""
    return int.from_bytes(hashlib.sha256(subject.encode()).digest()[:8], "big") % _HELD_OUT_IN == 0


@functools.cache
def english_words() -> tuple[str, ...]:
    """About 1,000 lower-case words of 3 to 10 letters, in the order of the alphabet."""
    return tuple(sorted(word for word in inflected_words() if 3 <= len(word) <= 10))


def draw_word(rng: random.Random, split: Split) -> str:
    """A word of the split; half of them do not exist."""
    while True:
        word = coined_word(rng) if rng.random() < 0.5 else rng.choice(english_words())
        if is_held_out(word) == (split == "test"):
            return word


def coined_word(rng: random.Random) -> str:
    """One to three syllables, such as "thelnoom"."""
    syllables = range(rng.choice((1, 2, 2, 3)))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in syllables)
