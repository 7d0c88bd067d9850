"""What a made conversation is: a question, the answer to learn, and what counts as right."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Made:
    """A conversation of one question.

    Args:
        kind: which generator made it.
        conversation: as `marin.data.conversation` takes it, the answer included.
        answer: what a right reply says: a number, or the whole text.
    """

    kind: str
    conversation: dict[str, Any]
    answer: str


def conversation(question: str, content: str | list[dict[str, str]]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": content}]}


def call(expression: str, output: str) -> list[dict[str, str]]:
    """A call of the tool, and what it gives back."""
    return [{"type": "python", "text": expression}, {"type": "python_output", "text": output}]
