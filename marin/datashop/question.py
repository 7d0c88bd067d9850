"""One request to a language model, and what becomes of it.

A question is known by the digest of its body, so the same document under the same prompt, model and parameters is the same
question in every run and in every sample. Its worst case in tokens is known before it is sent: a tokenizer over bytes makes
at most one token of each byte, and an answer has at most `max_tokens`.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marin.data.documents import text_bytes
from marin.data.tokenizer import Tokenizer
from marin.datashop.annotate_config import EXAMPLE, AnnotateConfig, check_prompt
from marin.datashop.ask_config import AskConfig
from marin.datashop.grading import Grade, grade
from marin.errors import DataError, StorageError
from marin.storage import files

# What chat templates put around one message: role headers, a date, a default system message.
_TEMPLATE_TOKENS = 128


@dataclass(frozen=True)
class Question:
    """Args:
    body: JSON, as it is sent.
    digest: SHA-256 of the body, in hex.
    most_input_tokens, most_output_tokens: upper bounds.
    """

    body: bytes
    digest: str
    most_input_tokens: int
    most_output_tokens: int


@dataclass(frozen=True)
class Answer:
    """Args:
    was_cut_off: it ended because it was as long as it may be.
    is_estimated: the endpoint did not say how many tokens it took; they are the question's upper bounds.
    """

    text: str
    was_cut_off: bool
    input_tokens: int
    output_tokens: int
    is_estimated: bool


@dataclass(frozen=True)
class Busy:
    """The endpoint has too much to do, or is not there: no fault of the question.

    Args:
        wait: seconds that the endpoint asks to wait; None if it does not say.
        is_there: whether it was reached.
    """

    problem: str
    wait: float | None
    is_there: bool = True


@dataclass(frozen=True)
class Failed:
    """A fault that may pass.

    Args:
        may_be_paid: whether the endpoint may have answered, and charged for it.
        is_whole: whether it came as a whole response; an endpoint that honours idempotency keys would give it again.
        wait: as for `Busy`.
    """

    problem: str
    may_be_paid: bool
    is_whole: bool
    wait: float | None = None


@dataclass(frozen=True)
class Refused:
    """The question will never be answered."""

    problem: str


Outcome = Answer | Busy | Failed | Refused


def read_prompt(config: AnnotateConfig) -> str:
    """The prompt of a config, from itself or from a file.

    Raises:
        ConfigError: there is no place for a document in it.
        DataError: the file cannot be read.
    """
    if config.prompt is not None:
        return config.prompt
    path = str(config.prompt_path)
    try:
        prompt = files.read_bytes(path).decode()
    except (StorageError, UnicodeDecodeError) as error:
        raise DataError(f"the prompt {path} cannot be read ({error}): run the step that writes it again") from None
    check_prompt(prompt, where=path)
    return prompt


def shown_example(config: AnnotateConfig, text: str) -> str:
    """What the model sees of a document."""
    shown = text[: config.max_example_chars]
    if config.max_example_tokens is None:
        return shown
    tokenizer = _tokenizer(str(config.tokenizer))
    ids = tokenizer.encode(shown)
    if len(ids) <= config.max_example_tokens:
        return shown
    return tokenizer.decode(ids[: config.max_example_tokens]).rstrip("\ufffd")  # of a character that was cut


@functools.lru_cache(maxsize=2)
def _tokenizer(path: str) -> Tokenizer:
    return Tokenizer.load(path)


def grading_question(config: AnnotateConfig, prompt: str, text: str) -> Question:
    """What is asked of a document."""
    return question(config, prompt.replace(EXAMPLE, shown_example(config, text)))


def graded(config: AnnotateConfig, question: Question, answer: Answer | None, unanswered: Mapping[str, str]) -> Grade:
    """The label that an answer gives.

    Args:
        unanswered: what became of the questions without an answer, by their digests.
    """
    if answer is None:
        return Grade(None, f"no answer: {unanswered[question.digest]}")
    return grade(config.processor_type, answer.text, was_cut_off=answer.was_cut_off)


def question(config: AskConfig, message: str) -> Question:
    """What is asked by one message of a user."""
    message_fields = {"messages": [{"role": "user", "content": message}]}
    body = {"model": config.model, **message_fields, **request_fields(config)}
    encoded = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return Question(
        body=encoded,
        digest=hashlib.sha256(encoded).hexdigest(),
        most_input_tokens=text_bytes(message) + _TEMPLATE_TOKENS,
        most_output_tokens=config.most_answer_tokens,
    )


def request_fields(config: AskConfig) -> dict[str, Any]:
    """The fields of a request beside the model and the message."""
    fields = {"temperature": config.temperature, "max_tokens": config.max_tokens, **dict(config.request)}
    return {name: value for name, value in fields.items() if value is not None}


def family(config: AskConfig, purpose: str) -> dict[str, Any]:
    """What all questions of one purpose share, for a folder of answers to be found by and to say what it holds.

    Args:
        purpose: the prompt, or another text that says what is asked.
    """
    return {"model": config.model, "purpose": purpose, **request_fields(config)}
