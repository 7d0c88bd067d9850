"""Made questions as chat tasks; all of them are held out from training.

SpellingBee is letter counting, as the reference's task of that name: the reply must end in `#### n`.
"""

import collections
from collections.abc import Callable

from marin.errors import ConfigError
from marin.evaluation.chat.grading import says_marked_number, says_text
from marin.evaluation.chat.task import ChatTask, Question
from marin.finetuning.made import Made, questions

GRADES: dict[str, tuple[str, Callable[[Question, str], bool]]] = {
    "Spelling": ("spelling", says_text),
    "SpellingBee": ("counting", says_marked_number),
    "Arithmetic": ("arithmetic", says_marked_number),
    "Identity": ("identity", says_text),
}
"""For each task the kind of made conversations that it asks, and how a reply is graded."""
MADE_TASKS = tuple(GRADES)
_DEFAULT_SIZE = 256


def made_task(name: str, size: int = _DEFAULT_SIZE) -> ChatTask:
    """One of `MADE_TASKS`; its baseline is how often the most common answer is right.

    Raises:
        ConfigError: there is no such task.
    """
    if name not in GRADES:
        raise ConfigError(f"there is no made task {name!r}: use {', '.join(MADE_TASKS)}")
    kind, grade = GRADES[name]
    asked = [asked_of(each) for each in questions(kind, size)]
    most_common = collections.Counter(question.answer for question in asked).most_common(1)[0][0]
    return ChatTask.with_guess(name, asked, grade, most_common)


def asked_of(made: Made) -> Question:
    """A made conversation as a question of a task."""
    return Question(made.conversation["messages"][:-1], made.answer)
