"""Scores of chat tasks that are kept: what was asked before is not asked again, unless something of it changed."""

import dataclasses
import json

import pytest

from marin.evaluation.chat import ChatTask, Question, choice_question
from marin.evaluation.chat.scoring import prompt_of
from marin.evaluation.records import RecordFolder
from marin.finetuning import chat_scores as scoring
from marin.finetuning.chat_scores import AskedModel, ChatEvalOptions, chat_scores
from marin.nn.precision import Precision


def _task(name: str, count: int = 5) -> ChatTask:
    return ChatTask(
        name, 0.5, [choice_question(f"{name} {number}?", ["a", "b"], number % 2) for number in range(count)]
    )


def test_tasks_that_were_asked_are_not_asked_again_after_a_kill(chat_model, chat_tokenizer, tmp_path, monkeypatch):
    kept, options = RecordFolder(tmp_path, {"weights": "x"}), ChatEvalOptions()
    tasks = [_task("first"), _task("second")]
    asked = []
    whole = scoring.score_choices

    def ask(task, *arguments, **named):
        asked.append(task.name)
        if asked == ["first", "second"]:
            raise KeyboardInterrupt
        return whole(task, *arguments, **named)

    def scores(tasks=tasks, records=kept, options=options):
        model = AskedModel(chat_model, chat_tokenizer, Precision("f32"), context=64)
        return chat_scores(model, tasks, options, records=records)

    monkeypatch.setattr(scoring, "score_choices", ask)
    with pytest.raises(KeyboardInterrupt):
        scores()
    found = scores()
    assert asked == ["first", "second", "second"]
    assert scores() == found and len(asked) == 3
    assert [json.loads(line) for line in (tmp_path / "first.jsonl").read_text().splitlines()] == found[0].records
    assert found == scores(records=None)
    for change in (
        {"records": RecordFolder(tmp_path, {"weights": "y"})},
        {"tasks": [_task("first", 4), _task("second", 4)]},
        {"options": dataclasses.replace(options, max_choices=3)},
    ):
        before = len(asked)
        scores(**change)
        assert asked[before:] == ["first", "second"]


@pytest.mark.parametrize(("max_new_tokens", "beyond"), [(8, 0), (77, 30)])
def test_answers_beyond_the_trained_context_are_said_once(chat_model, chat_tokenizer, capsys, max_new_tokens, beyond):
    question = Question([{"role": "user", "content": "7"}], "7")
    tasks = [ChatTask(name, 0.0, [question], lambda question, reply: False) for name in ("one", "two")]
    prompt = len(prompt_of(question, chat_tokenizer))
    model = AskedModel(chat_model, chat_tokenizer, Precision("f32"), context=prompt + max_new_tokens - beyond)
    for _ in range(2):
        chat_scores(model, tasks, ChatEvalOptions(max_new_tokens=max_new_tokens))
    said = capsys.readouterr().err
    assert said.count("\n") == bool(beyond)
    assert not beyond or f"{beyond} more than the {prompt + 47} that the model was trained with" in said
    assert not beyond or said.endswith("; `--max-new-tokens 47` keeps all within\n")


def test_questions_with_letters_beyond_the_trained_context_are_said_once_and_counted(
    chat_model, chat_tokenizer, capsys, tmp_path
):
    questions = [choice_question("7 " * number, ["a", "b"], 0) for number in (1, 40, 60)]
    lengths = [len(prompt_of(question, chat_tokenizer)) for question in questions]
    reply = ChatTask("words", 0.0, [questions[0]], lambda question, reply: False)
    tasks, context = [ChatTask("letters", 0.5, questions), reply], lengths[0] + 4
    model = AskedModel(chat_model, chat_tokenizer, Precision("f32"), context)
    kept = RecordFolder(tmp_path, {"weights": "x"})
    for _ in range(2):  # the second time from what is kept
        found = chat_scores(model, tasks, ChatEvalOptions(max_new_tokens=4), records=kept)
        assert [score.as_json()["beyond_context"] for score in found] == [2, 0]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "of 3 multiple-choice questions 2 are beyond the context" in said
    assert f"{lengths[2]} tokens, {lengths[2] - context} more than the {context} that" in said
