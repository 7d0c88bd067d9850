"""Sums, differences and products, answered by the calculator."""

import random

from marin.finetuning.made.question import Made, call, conversation
from marin.finetuning.made.words import Split, is_held_out

_ASK = (
    "What is {a} {op} {b}?",
    "{a} {op} {b} = ?",
    "Calculate {a} {op} {b}.",
    "What is {a} {word} {b}?",
    "How much is {a} {word} {b}?",
    "Please work out {a} {word} {b}.",
)
_STORIES = {
    "+": (
        "I have {a} apples and get {b} more. How many apples do I have?",
        "There are {a} birds on a tree and {b} in the grass. How many birds are there in all?",
    ),
    "-": (
        "I had {a} coins and spent {b} of them. How many coins are left?",
        "A train has {a} seats, {b} are taken. How many are free?",
    ),
    "*": (
        "There are {a} boxes with {b} pens in each. How many pens are there?",
        "A ticket costs {b} dollars. How much do {a} tickets cost?",
    ),
}
_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def arithmetic(rng: random.Random, split: Split) -> Made:
    """Two numbers and what to do with them. What is held out is so in every wording and in either order."""
    while True:
        op = rng.choice("++--*")
        most = 12 if op == "*" else rng.choice((20, 100, 100, 1000))
        a, b = rng.randrange(most), rng.randrange(most)
        if op == "-" and a < b:
            a, b = b, a
        first, second = (a, b) if op == "-" else sorted((a, b))
        if is_held_out(f"{first}{op}{second}") == (split == "test"):
            break
    expression = f"{a}{op}{b}"
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    wording = rng.choice(_STORIES[op]) if rng.random() < 0.25 else rng.choice(_ASK)
    question = wording.format(a=a, b=b, op=op, word=_WORDS[op])
    parts = [*call(expression, str(result)), {"type": "text", "text": f"#### {result}"}]
    return Made("arithmetic", conversation(question, parts), str(result))
