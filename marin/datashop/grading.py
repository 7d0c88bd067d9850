"""What a language model's answer says of a document: a label on a scale, or nothing and why.

    finalscore0-5   "Final Score: 3", also "3/5", "**3**" and "<3>"          -> 0 to 5
    medu            "Final Score: Great", Good, Okay, Poor or Useless        -> 5 to 1

Upper and lower case, and marks around the score, make no difference. What a model thought aloud (`<think>`, also where the
prompt's template has opened it) is no answer. An answer with two different scores, a score between two numbers or in a sum,
one off the scale or of a longer scale ("3 (out of 10)"), with a decimal comma or a fraction or in percent, or the list of all
the words repeated from the prompt has no label: nothing is guessed. (The public pipeline takes the first score that it finds,
and of "Final score: 50" the 5.)
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from marin.errors import ConfigError

ProcessorType = Literal["finalscore0-5", "medu"]
MEDU_WORDS = {"great": 5, "good": 4, "okay": 3, "poor": 2, "useless": 1}

EMPTY = "the answer is empty"
CUT_OFF = "the answer was cut off before a score"
NO_SCORE = "the answer has no score"
SEVERAL = "the answer has different scores"
OFF_SCALE = "the score is off the scale"

_SCALES: dict[str, tuple[float, float]] = {"finalscore0-5": (0.0, 5.0), "medu": (1.0, 5.0)}
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_BEFORE = re.compile(r"\A.*</think>", re.DOTALL | re.IGNORECASE)
_MARKS = r"[\s*_`\"'(<\[{$\\]*"
_LEAD = rf"final\s+score[*_`]*\s*[:：]{_MARKS}"
_ENDS = r"[*_`\"')>\]}$]*"
# "/", "out of", " points out of", " (of a maximum of": what says how much there was to have.
_OF = (
    r"\s*[,(\[]?\s*(?:(?:points?|stars?|marks?)\b)?\s*[,(\[]?\s*"
    r"(?:/|(?:out\s+)?of\b)\s*(?:a\s+(?:possible|maximum|total)\b\s*(?:of\b\s*)?)?"
)
_NUMBER = re.compile(
    rf"{_LEAD}(?P<value>-?\d+(?:\.\d+)?)(?P<decimals>,\d)?{_ENDS}"
    rf"(?P<share>\s*(?:%|percent\b|[¼½¾⅓⅔])|\s+(?:and\s+)?(?:\d+\s*/\s*\d|a\s+half\b))?"
    rf"(?:{_OF}(?P<most>\d+))?{_ENDS}"
    rf"(?P<range>\s*(?:(?:-|–|~|～|to|or)\s*|(?:[+=×]|plus\b){_MARKS})\d)?",
    re.IGNORECASE,
)
_WORD = re.compile(
    rf"{_LEAD}(?P<value>{'|'.join(MEDU_WORDS)})\b{_ENDS}"
    rf"(?P<range>\s*(?:/|\||,|-|–|to|or)\s*(?:{'|'.join(MEDU_WORDS)})\b)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Grade:
    """A label, or the reason why there is none; just one of the two is None."""

    label: float | None
    why_null: str | None = None


def scale_of(processor_type: str) -> tuple[float, float]:
    """The lowest and the highest label that this kind of answer can give.

    Raises:
        ConfigError: there is no such kind.
    """
    if processor_type not in _SCALES:
        raise ConfigError(
            f"config field `processor_type` is {processor_type!r}: use {' or '.join(map(repr, get_args(ProcessorType)))}"
        )
    return _SCALES[processor_type]


def grade(processor_type: str, answer: str, *, was_cut_off: bool = False) -> Grade:
    """The label in an answer of this kind.

    Args:
        was_cut_off: the answer ended because it was as long as it may be, which is then the reason for a missing score.
    Raises:
        ConfigError: there is no such kind.
    """
    low, high = scale_of(processor_type)
    # One space for many: the patterns would try each way to share out a run of them.
    said = " ".join(without_thoughts(answer).split())
    found = _READERS[processor_type](said, high)
    if isinstance(found, str):
        return Grade(None, found)
    if len(found) > 1:
        return Grade(None, SEVERAL)
    if not found:
        return Grade(None, CUT_OFF if was_cut_off else NO_SCORE if answer.strip() else EMPTY)
    label = found.pop()
    return Grade(label) if low <= label <= high else Grade(None, OFF_SCALE)


def without_thoughts(answer: str) -> str:
    """An answer without what the model thought aloud before it."""
    return _THOUGHT_BEFORE.sub("", _THOUGHT.sub("", answer))


def _numbers(said: str, high: float) -> set[float] | str:
    values = set()
    for match in _NUMBER.finditer(said):
        if match["range"]:
            return SEVERAL
        value = float(match["value"])
        if match["decimals"] or match["share"] or not value.is_integer() or float(match["most"] or high) > high:
            return OFF_SCALE
        values.add(value)
    return values


def _words(said: str, high: float) -> set[float] | str:
    values = set()
    for match in _WORD.finditer(said):
        if match["range"]:
            return SEVERAL
        values.add(float(MEDU_WORDS[match["value"].lower()]))
    return values


_READERS: dict[str, Callable[[str, float], set[float] | str]] = {"finalscore0-5": _numbers, "medu": _words}
