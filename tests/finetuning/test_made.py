"""Made conversations: right, reproducible, and nothing held out is ever trained on."""

import collections
import random
import re

import pytest

from marin.errors import ConfigError
from marin.evaluation.chat.task import TaskScore
from marin.finetuning.made import MAKERS, make, questions, training_conversations
from marin.finetuning.made.spelling import spelled
from marin.finetuning.made.tasks import MADE_TASKS, made_task
from marin.finetuning.made.words import draw_word, english_words, is_held_out


def asked(made):
    return made.conversation["messages"][0]["content"]


def parts(made):
    return {part["type"]: part["text"] for part in made.conversation["messages"][1]["content"]}


@pytest.mark.parametrize("kind", MAKERS)
def test_made_conversation_is_a_function_of_its_number(kind):
    assert make(kind, "train", 7) == make(kind, "train", 7)
    assert len({asked(make(kind, "train", number)) for number in range(50)}) > 20


@pytest.mark.parametrize("number", range(50))
def test_arithmetic_call_output_and_answer_agree(number):
    found = parts(made := make("arithmetic", "train", number))
    a, op, b = re.fullmatch(r"(\d+)([-+*])(\d+)", found["python"]).groups()
    assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[op] == int(made.answer)
    assert found["python_output"] == made.answer and found["text"].endswith(made.answer)
    assert set(re.findall(r"\d+", asked(made))) == {a, b}


@pytest.mark.parametrize("number", range(50))
def test_counting_answer_counts_the_letter(number):
    made = make("counting", "test", number)
    word, letter = re.fullmatch(r"'([a-z]+)'\.count\('([a-z])'\)", parts(made)["python"]).groups()
    assert list(word).count(letter) == int(made.answer)
    assert (
        word in asked(made).split()
        or f"{word}?" in asked(made)
        or f"{word}," in asked(made)
        or f"{word}." in asked(made)
    )
    assert made.conversation["messages"][1]["content"][0]["text"] == spelled(word) + "\n"


def test_held_out_words_are_a_tenth_and_never_drawn_for_training():
    rng = random.Random(0)
    assert not any(is_held_out(draw_word(rng, "train")) for _ in range(500))
    assert all(is_held_out(draw_word(rng, "test")) for _ in range(50))
    share = sum(map(is_held_out, english_words())) / len(english_words())
    assert 0.08 < share < 0.12
    assert all(word.isascii() and word.islower() and word.isalpha() for word in english_words())


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        ("carry", "carry carries carried carrying"), ("bake", "bake bakes baked baking"), ("play", "play plays played playing"),
        ("watch", "watch watches watched watching"), ("happy", "happy happily happiness"), ("gentle", "gentle gently gentleness"),
        ("dull", "dull dully dullness"), ("potato", "potato potatoes"), ("city", "city cities"), ("glass", "glass glasses"),
    ],
)  # fmt: skip
def test_words_take_the_endings_of_english(stem, words):
    assert set(words.split()) <= set(english_words())
    wrong = {stem + ending for ending in ("s", "es", "ed", "ing", "ly", "ness")} - set(words.split())
    assert not wrong & set(english_words())


def test_training_conversations_ask_no_held_out_question():
    trained = {
        message["content"]
        for c in training_conversations(3000)
        for message in c["messages"]
        if message["role"] == "user"
    }
    for kind in MAKERS:
        assert not trained & {asked(made) for made in questions(kind, 100)}


def test_arithmetic_held_out_is_so_in_either_order():
    subjects = {"train": set(), "test": set()}
    for split, found in subjects.items():
        for number in range(1500):
            a, op, b = re.fullmatch(r"(\d+)([-+*])(\d+)", parts(make("arithmetic", split, number))["python"]).groups()
            found.add((op, *((a, b) if op == "-" else sorted((a, b)))))
    assert not subjects["train"] & subjects["test"]


def test_questions_are_different_and_no_answer_is_common():
    for kind, most in (("spelling", 1 / 200), ("arithmetic", 0.1)):
        found = questions(kind, 200)
        assert len({asked(made) for made in found}) == 200
        assert collections.Counter(made.answer for made in found).most_common(1)[0][1] <= most * 200


def test_unknown_kind_or_split_is_refused():
    with pytest.raises(ConfigError, match="spelling"):
        make("poetry", "train", 0)
    with pytest.raises(ConfigError, match="'train'"):
        make("spelling", "dev", 0)


@pytest.mark.parametrize("limit", [1, 5, 16, 100, -1])
@pytest.mark.parametrize("name", MADE_TASKS)
def test_model_that_always_gives_the_most_common_answer_is_not_better_than_that(name, limit):
    every = made_task(name)
    (answer, count), *_ = collections.Counter(question.answer for question in every.questions).most_common(1)
    task = every.first(limit)
    right = sum(question.answer == answer for question in task.questions)
    score = TaskScore(name, right, len(task.questions), task.baseline)
    assert score.interval[0] <= score.baseline and score.centered == 0
    assert every.baseline == count / len(every.questions)
