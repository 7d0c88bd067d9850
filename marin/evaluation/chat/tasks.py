"""The public tasks, as questions to ask and as conversations to train on: ARC, MMLU, GSM8K, HumanEval, and chats.

The readers take rows as the Hugging Face hub has them.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from marin.data.conversation import turns
from marin.data.documents import is_unicode
from marin.errors import DataError
from marin.evaluation.chat import datasets
from marin.evaluation.chat.datasets import PlacedRow, Source
from marin.evaluation.chat.grading import final_number, passes_tests, says_marked_number
from marin.evaluation.chat.task import ChatTask, Question, choice_question, with_answer

_CALL = re.compile(r"<<([^<>]+)>>")


def arc_question(row: PlacedRow) -> Question:
    """`choices` has `text` and `label`, which is a letter or a number; letters are asked for as they stand there."""
    choices = row.fields.get("choices")
    if not isinstance(choices, dict):
        raise row.error(f"field `choices` is {choices!r:.60}, expected `text` and `label`")
    inner = dataclasses.replace(row, fields=choices)
    texts, labels, key = inner.texts("text"), inner.texts("label"), row.text("answerKey")
    if key not in labels or len(labels) != len(texts):
        raise row.error(f"the answer {key!r} is none of the labels {labels}")
    return choice_question(row.text("question"), texts, labels.index(key), labels)


def mmlu_question(row: PlacedRow) -> Question:
    """`answer` is the number of the right one of four `choices`, from 0."""
    fields = row.fields.get("train", row.fields)  # the training split on the hub holds its rows inside this field
    inner = dataclasses.replace(row, fields=fields) if isinstance(fields, dict) else row
    answer, choices = inner.fields.get("answer"), inner.texts("choices")
    if not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise row.error(f"field `answer` is {answer!r}, expected the number of one of {len(choices)} choices")
    return choice_question(inner.text("question"), choices, answer)


def gsm8k_question(row: PlacedRow) -> Question:
    """A question whose answer ends in `#### n`."""
    number = final_number(row.text("answer"))
    if number is None:
        raise row.error("the answer has no `#### n`")
    return Question([{"role": "user", "content": row.text("question")}], number)


def gsm8k_conversation(row: PlacedRow) -> dict[str, Any]:
    """With the calculations that the answer marks as `<<48/2=24>>` as calls of the calculator, which says nothing to one without `=`."""
    gsm8k_question(row)
    parts = []
    for index, piece in enumerate(_CALL.split(row.text("answer"))):
        if index % 2 == 0:
            parts += [{"type": "text", "text": piece}] if piece else []
            continue
        expression, result = piece.rsplit("=", 1) if "=" in piece else (piece, "")
        parts += [{"type": "python", "text": expression}, {"type": "python_output", "text": result}]
    return {"messages": [{"role": "user", "content": row.text("question")}, {"role": "assistant", "content": parts}]}


def human_eval_question(row: PlacedRow) -> Question:
    """A function to complete, and the tests that it must pass."""
    extra = {name: row.text(name) for name in ("prompt", "test", "entry_point")}
    return Question([{"role": "user", "content": extra["prompt"]}], row.text("canonical_solution"), extra=extra)


def chat_conversation(row: PlacedRow) -> dict[str, Any]:
    """A row with `messages`, whose turns are as `marin.data.conversation` has them."""
    messages = row.fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise row.error(f"field `messages` is {messages!r:.60}, expected a list of at least one message")
    return checked({"messages": messages}, row)


def checked(conversation: dict[str, Any], row: PlacedRow) -> dict[str, Any]:
    """The conversation that a row became.

    Raises:
        DataError: it is none, or a text is no Unicode; the message has the row's place.
    """
    try:
        found = turns(conversation)
    except DataError as error:
        raise DataError(f"{row.where}: {error}: mend the row") from None
    if not all(is_unicode(turn.text) for turn in found):
        raise DataError(
            f"{row.where}: a text holds a lone surrogate (\\ud800 to \\udfff), which is no text: mend the row"
        )
    return conversation


# name: (where its questions are, how a row becomes one, the accuracy of guessing, how a reply is graded)
_TASKS: dict[str, tuple[Source, Callable[[PlacedRow], Question], float, Any]] = {
    "ARC-Easy": (datasets.ARC_EASY, arc_question, 0.25, None),
    "ARC-Challenge": (datasets.ARC_CHALLENGE, arc_question, 0.25, None),
    "MMLU": (datasets.MMLU_TEST, mmlu_question, 0.25, None),
    "GSM8K": (datasets.GSM8K_TEST, gsm8k_question, 0.0, says_marked_number),
    "HumanEval": (datasets.HUMAN_EVAL, human_eval_question, 0.0, passes_tests),
}
PUBLIC_TASKS = tuple(_TASKS)


def source_of(name: str) -> Source:
    """Where the questions of a public task are."""
    return _TASKS[name][0]


def public_task(name: str, task_data: Path) -> ChatTask:
    """One of `PUBLIC_TASKS`, with all of its questions.

    Raises:
        DataError: its data is not there, or not what the task's is.
    """
    source, read, baseline, grade = _TASKS[name]
    return ChatTask(name, baseline, [read(row) for row in datasets.read_source(source, task_data)], grade)


def mmlu_conversations(rows: Iterable[PlacedRow]) -> Iterator[dict[str, Any]]:
    """MMLU's questions with their letters, to train on."""
    return (with_answer(mmlu_question(row)) for row in rows)
