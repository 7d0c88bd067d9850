"""Choosing letters and grading replies, against plain ways to do the same."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.evaluation.chat import ChatTask, Question, choice_question, reply_text, score_choices, score_replies, scoring
from marin.evaluation.chat.grading import says_marked_number
from marin.evaluation.chat.scoring import prompt_of
from marin.inference.options import SamplingOptions
from marin.nn.precision import Precision


def test_score_choices_is_the_best_letter_logit_one_question_at_a_time(chat_model, chat_tokenizer):
    questions = [
        choice_question("What? " * (1 + number % 4), [f"{number}", "a b", "c"][: 2 + number % 2], number % 2)
        for number in range(11)
    ]
    task = ChatTask("MMLU", 0.25, questions)
    seen = []
    found = score_choices(
        task,
        [prompt_of(question, chat_tokenizer) for question in questions],
        chat_model,
        chat_tokenizer,
        precision=Precision("f32"),
        batch_size=4,
        progress=lambda *state: seen.append(state),
    )
    plain = jax.jit(lambda tokens_BT: chat_model.activations(tokens_BT, None) @ chat_model.lm_head_DV)
    for question, record in zip(questions, found.records, strict=True):
        prompt = prompt_of(question, chat_tokenizer)
        # What follows a token does not change what the model thinks there.
        padded = prompt + [0] * (200 - len(prompt))
        logits = np.asarray(plain(jnp.asarray([padded], jnp.int32)))[0, len(prompt) - 1]
        ids = [chat_tokenizer.encode(letter)[0] for letter in question.letters]
        assert record["reply"] == question.letters[int(np.argmax(logits[ids]))]
        assert record["right"] == (record["reply"] == question.answer)
    assert found.correct == sum(record["right"] for record in found.records) == seen[-1][2]
    assert seen[-1][:2] == (11, 11)


class Parrot:
    """Replies that are given, as an engine would return them."""

    def __init__(self, tokenizer, replies):
        self.tokenizer, self.replies, self.prompts, self.seeds = tokenizer, iter(replies), [], []

    def generate(self, prompts, options, *, num_samples=1):
        self.prompts += prompts
        self.seeds += [own.seed for own in options]
        return [
            [SimpleNamespace(tokens=tuple(self.tokenizer.encode(reply))) for reply in next(self.replies)]
            for _ in prompts
        ]


def test_score_replies_counts_a_question_where_one_sample_is_right(chat_tokenizer):
    questions = [Question([{"role": "user", "content": f"{n}?"}], str(n)) for n in range(3)]
    engine = Parrot(chat_tokenizer, [["#### 1", "#### 0"], ["no", "#### 2"], ["#### 2", "x"]])
    task = ChatTask("GSM8K", 0.0, questions, says_marked_number)
    found = score_replies(task, engine, chat_tokenizer, SamplingOptions(9), num_samples=2)
    assert [record["right"] for record in found.records] == [True, False, True]
    assert found.records[0]["reply"] == "#### 0"
    assert engine.prompts[1] == prompt_of(questions[1], chat_tokenizer)
    assert found.as_json()["accuracy"] == pytest.approx(2 / 3)


def test_each_question_is_sampled_by_a_seed_of_its_own_however_they_are_grouped(chat_tokenizer, monkeypatch):
    task = ChatTask("GSM8K", 0.0, [Question([{"role": "user", "content": "n?"}], "1")] * 5, says_marked_number)
    seeds = []
    for at_once in (32, 2):
        monkeypatch.setattr(scoring, "_QUESTIONS_AT_ONCE", at_once)
        engine = Parrot(chat_tokenizer, [["x"]] * 5)
        score_replies(task, engine, chat_tokenizer, SamplingOptions(9, seed=7))
        seeds.append(engine.seeds)
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 5


def test_reply_text_leaves_out_calls_and_what_they_gave(chat_tokenizer):
    special = chat_tokenizer.special_tokens
    tokens = [
        *chat_tokenizer.encode("so "),
        special["<|python_start|>"],
        *chat_tokenizer.encode("1+1"),
        special["<|python_end|>"],
        special["<|output_start|>"],
        *chat_tokenizer.encode("2"),
        special["<|output_end|>"],
        *chat_tokenizer.encode("#### 2"),
        special["<|assistant_end|>"],
    ]
    assert reply_text(tokens, chat_tokenizer) == "so #### 2"
