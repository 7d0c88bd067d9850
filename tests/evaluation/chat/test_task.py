"""Centering, ChatCORE, intervals, prompts and grading, against worked examples."""

import pytest

from marin.errors import ConfigError
from marin.evaluation.chat import CHATCORE_TASKS, Question, TaskScore, chat_core, choice_question
from marin.evaluation.chat.grading import code_in, human_eval_program, says_marked_number, says_text
from marin.evaluation.proportion import wilson


def test_chat_core_of_all_tasks_is_the_worked_example():
    # 0.4, 0.3 and 0.35 of four choices center to 0.2, 1/15 and 2/15; answers in words are their accuracy.
    figures = [("ARC-Easy", 40, 100, 0.25), ("ARC-Challenge", 30, 100, 0.25), ("MMLU", 35, 100, 0.25)]
    figures += [("GSM8K", 1, 10, 0.0), ("HumanEval", 3, 20, 0.0)]
    scores = [TaskScore(*row) for row in figures]
    assert [score.centered for score in scores] == pytest.approx([0.2, 1 / 15, 2 / 15, 0.1, 0.15])
    found = chat_core(scores, limit=10)
    assert found.value == pytest.approx((0.2 + 1 / 15 + 2 / 15 + 0.1 + 0.15) / 5)
    assert (found.name, found.missing) == ("ChatCORE", ())


def test_chat_core_of_some_tasks_says_that_it_is_partial():
    found = chat_core([TaskScore("GSM8K", 1, 2, 0.0), TaskScore("Spelling", 2, 2, 0.0)])
    assert found.value == 0.5  # Spelling is no part of it
    assert found.name == "partial ChatCORE (1 of 5 tasks)" and set(found.missing) == set(CHATCORE_TASKS) - {"GSM8K"}
    assert chat_core([TaskScore("Spelling", 2, 2, 0.0)]) is None


def test_chat_core_of_a_part_of_a_tasks_questions_says_which_task_lacks_some():
    scores = [TaskScore(name, number // 2, number, 0.25) for name, number in CHATCORE_TASKS.items()]
    assert chat_core(scores).name == "ChatCORE" and chat_core(scores).is_whole
    cut = [TaskScore(score.name, 1, score.total - (score.name == "MMLU"), 0.25) for score in scores]
    assert chat_core(cut).name == "partial ChatCORE (not all questions of MMLU)" and not chat_core(cut).is_whole
    few = [TaskScore(score.name, 1, min(score.total, 200), 0.25) for score in scores]
    assert chat_core(few, limit=200).is_whole  # who asks for few questions says so beside the figure
    assert chat_core(few).short == ("ARC-Easy", "ARC-Challenge", "MMLU", "GSM8K")


def test_wilson_interval_is_the_published_one():
    # Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    published = {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }
    for counts, interval in published.items():
        assert wilson(*counts) == pytest.approx(interval, abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_choice_question_puts_the_letter_behind_the_choice():
    found = choice_question("Which is a colour?", ["red", "seven"], 0)
    text = "Multiple Choice question: Which is a colour?\n- red=A\n- seven=B\n\nRespond only with the letter of the correct answer."
    assert found == Question([{"role": "user", "content": text}], "A", ("A", "B"))
    with pytest.raises(ConfigError, match="answer 2"):
        choice_question("?", ["a", "b"], 2)


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("so 2+3 is 5\n#### 5", True),
        ("#### 1,005", False),
        ("#### 5.0", True),
        ("It is 5.", False),
        ("#### 6, not 5", False),
        ("#### 1.2.3", False),
        ("five", False),
        ("", False),
    ],
)
def test_grading_of_numbers(reply, right):
    assert says_marked_number(Question([], "5"), reply) == right


def test_grading_of_large_and_negative_numbers():
    assert says_marked_number(Question([], "1005"), "#### 1,005")
    assert says_marked_number(Question([], "-3"), "####-3")
    assert says_text(Question([], "c a t"), " c a t\n") and not says_text(Question([], "c a t"), "c at")


HUMAN_EVAL = Question(
    [],
    "",
    extra={
        "prompt": 'from math import sqrt\n\ndef root(x):\n    """The root."""\n',
        "test": "def check(candidate):\n    assert candidate(9) == 3",
        "entry_point": "root",
    },
)


@pytest.mark.parametrize(
    ("reply", "passes"),
    [
        ("def root(x):\n    return sqrt(x)", True),
        ("Here:\n```python\ndef root(x):\n    return sqrt(x)\n```\nIt works.", True),
        ("```\ndef root(x):\n    return x\n```", False),
        ("I do not know", False),
    ],
)
def test_human_eval_reply_is_run_against_its_tests(reply, passes):
    from marin.evaluation.chat.grading import passes_tests

    assert passes_tests(HUMAN_EVAL, reply) == passes


def test_human_eval_program_has_imports_code_tests_and_call_in_this_order():
    program = human_eval_program(HUMAN_EVAL, "def root(x): ...")
    places = [program.index(part) for part in ("from math", "def root", "def check", "check(root)")]
    assert places == sorted(places)
    assert code_in("```python\na\n```\n```python\nb\n```") == "a"
