"""Spelling a word, and counting a letter in it: spelled out first, then counted by the tool."""

import random

from marin.finetuning.made.question import Made, call, conversation
from marin.finetuning.made.words import Split, draw_word

_SPELL = (
    "Spell the word {word}.",
    "Spell {word}.",
    "How do you spell {word}?",
    "How is {word} spelled?",
    "Please spell {word} for me.",
    "What are the letters of {word}?",
    "Can you spell the word {word}?",
    "Write {word} letter by letter.",
)
_COUNT = (
    "How many {letter} are in {word}?",
    "How many {letter} are there in the word {word}?",
    "How often does {letter} appear in {word}?",
    "Count the letter {letter} in {word}.",
    "How many times does the letter {letter} occur in {word}?",
    "In the word {word}, how many {letter} are there?",
)


def spelling(rng: random.Random, split: Split) -> Made:
    """A word, letter by letter."""
    word = draw_word(rng, split)
    question = rng.choice(_SPELL).format(word=word)
    return Made("spelling", conversation(question, spelled(word)), spelled(word))


def counting(rng: random.Random, split: Split) -> Made:
    """How often a letter is in a word; one letter in five is drawn from the whole alphabet, and so mostly is not."""
    word = draw_word(rng, split)
    letter = rng.choice(word) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    count = word.count(letter)
    question = rng.choice(_COUNT).format(word=word, letter=letter)
    parts = [
        {"type": "text", "text": spelled(word) + "\n"},
        *call(f"'{word}'.count('{letter}')", str(count)),
        {"type": "text", "text": f"#### {count}"},
    ]
    return Made("counting", conversation(question, parts), str(count))


def spelled(word: str) -> str:
    """ "cat" as "c a t"."""
    return " ".join(word)
