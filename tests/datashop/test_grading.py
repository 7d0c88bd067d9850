"""Answers as models write them, and what they say of a document."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin.datashop.grading import CUT_OFF, EMPTY, MEDU_WORDS, NO_SCORE, OFF_SCALE, SEVERAL, Grade, grade, scale_of
from marin.errors import ConfigError


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("It is a tutorial.\nFinal Score: 4", 4),
        ("final score:0", 0),
        ("**Final Score:** 3", 3),
        ("**Final score**: **5**.", 5),
        ("Final score: <2>", 2),
        ("Final Score: 3/5", 3),
        ("Final Score: 3 out of 5 points", 3),
        ("Final score: 2/3", 2),  # a rubric of three points
        ("Final score: 3 (out of 5)", 3),
        ("Final score: 3 points of a possible 5", 3),
        ("Final Score：3", 3),  # the colon of Chinese text
        ("Final score: 3 points", 3),
        ("Final score: 3 (of the best kind, 10 lines long)", 3),
        ("Final score: 4.0", 4),
        ("Final\nscore: $\\boxed{3}", None),
        ("Final score: $3$", 3),
        ("Final score: 3. That is, final score: 3", 3),
        ("<think>Final score: 1, or more?</think>Final score: 4", 4),
        ("The template opened it. Final score: 1?</think>Final score: 4", 4),
        ("<think>Final score: 1</think> Final score: 2, or not? </THINK>\nFinal score: 4", 4),
        ("Final score: 3, as 2, 4 and 5 are not met", 3),
        ("Final score: 3 = useful", 3),
        ("Conclude with Final score: <total points>. Final score: 1", 1),
    ],
)
def test_number_in_an_answer_is_found(answer: str, label: float | None) -> None:
    assert grade("finalscore0-5", answer).label == label


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", EMPTY),
        (" \n", EMPTY),
        ("I cannot judge this.", NO_SCORE),
        ("Score: 3", NO_SCORE),
        ("Final score: three", NO_SCORE),
        ("<think>Final score: 3", NO_SCORE),  # it never came to an answer
        ("Final score: 3</think>", NO_SCORE),
        ("Final score: 50", OFF_SCALE),
        ("Final score: 3,5", OFF_SCALE),
        ("Final score: **2,0**", OFF_SCALE),
        ("Final Score: 1 + 1 + 1 = 3", SEVERAL),
        ("**Final Score:** 1+1", SEVERAL),
        ("Final Score: $1 + 1 = **2**$", SEVERAL),
        ("Final Score: (1) + (1) + (0)", SEVERAL),
        ("Final Score: 1 plus 2", SEVERAL),
        ("Final Score: 2/5 + 1/5", SEVERAL),
        ("Final score: 6", OFF_SCALE),
        (f"Final score: {'3' * 400}", OFF_SCALE),  # more than a float can hold
        (f"Final score: 3/{'3' * 400}", OFF_SCALE),
        ("Final score: -1", OFF_SCALE),
        ("Final score: 4.5", OFF_SCALE),
        ("Final score: 4/10", OFF_SCALE),
        ("Final score: 4 (out of 10)", OFF_SCALE),
        ("Final score: 4, out of 10", OFF_SCALE),
        ("Final score: **4** points out of 10", OFF_SCALE),
        ("Final score: 4 points (out of a maximum of 10)", OFF_SCALE),
        ("Final score: 4 of 10", OFF_SCALE),
        ("Final score: 4 stars / 10", OFF_SCALE),
        ("Final score: 5%", OFF_SCALE),
        ("Final score: 5 percent", OFF_SCALE),
        ("Final score: 3½", OFF_SCALE),
        ("Final score: **3** ½", OFF_SCALE),
        ("Final score: 3 1/2", OFF_SCALE),
        ("Final score: 3 and a half", OFF_SCALE),
        ("Final score: 3~4", SEVERAL),
        ("Final score: 3-4", SEVERAL),
        ("Final score: 3 or 4", SEVERAL),
        ("Final score: 3. On second thought, Final score: 4", SEVERAL),
    ],
)
def test_answer_without_one_whole_number_on_the_scale_has_no_label(answer: str, why: str) -> None:
    assert grade("finalscore0-5", answer) == Grade(None, why)


@pytest.mark.parametrize(
    ("answer", "label", "why"),
    [
        *((f"A page.\nFinal Score: {word.title()}", value, None) for word, value in MEDU_WORDS.items()),
        ("**Final Score: GREAT**", 5, None),
        ("Final Score:\n\n`Okay`", 3, None),
        ("Final Score: Great/Good/Okay/Poor/Useless", None, SEVERAL),
        ("Final Score: Good to Great", None, SEVERAL),
        ("Final Score: Good. Final Score: Poor", None, SEVERAL),
        ("Final Score: Not great", None, NO_SCORE),
        ("Final Score: Goodish", None, NO_SCORE),
        ("Final Score: 4", None, NO_SCORE),
    ],
)
def test_word_in_an_answer_is_found_or_not_guessed(answer: str, label: float | None, why: str | None) -> None:
    assert grade("medu", answer) == Grade(label, why)


def test_answer_that_was_cut_off_says_so_unless_its_score_is_there() -> None:
    assert grade("medu", "The document is", was_cut_off=True) == Grade(None, CUT_OFF)
    assert grade("medu", "Final Score: Good. It", was_cut_off=True) == Grade(4.0)


@pytest.mark.parametrize("kind", ["medu", "finalscore0-5"])
@pytest.mark.parametrize("before", ["Final Score: 3", "Final Score", "Final Score: Good"])
def test_answer_that_ends_in_very_many_spaces_is_read_at_once(kind: str, before: str) -> None:
    start = time.process_time()
    grade(kind, before + " \n" * 20_000 + "x")
    assert time.process_time() - start < 1.0  # 2 ms


@given(st.text(), st.sampled_from(["medu", "finalscore0-5"]), st.booleans())
def test_any_text_has_a_label_on_the_scale_or_a_reason(answer: str, kind: str, was_cut_off: bool) -> None:
    found = grade(kind, answer, was_cut_off=was_cut_off)
    assert (found.label is None) != (found.why_null is None)
    low, high = scale_of(kind)
    assert found.label is None or low <= found.label <= high


@given(st.text(alphabet="abc \n.,!*"), st.integers(0, 5), st.text(alphabet="abc \n.,!*"))
def test_one_score_is_found_in_whatever_stands_around_it(before: str, score: int, after: str) -> None:
    assert grade("finalscore0-5", f"{before} Final Score: {score} {after}") == Grade(score)


def test_unknown_kind_of_answer_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"processor_type` is 'stars': use 'finalscore0-5' or 'medu'"):
        grade("stars", "Final score: 3")
