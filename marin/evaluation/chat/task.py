"""What a chat task is, what one measured, and ChatCORE over several.

    centered = (accuracy - baseline) / (1 - baseline)
    ChatCORE = the mean of `centered` over the tasks

where the baseline is what guessing gets: 1 / choices for multiple choice, 0 for answers in words, or for made questions how
often the one answer is right that is the most common. ChatCORE is a name for all of `CHATCORE_TASKS` together, with all of
their questions; over fewer it is partial, and says so.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin.errors import ConfigError
from marin.evaluation.proportion import wilson

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHATCORE_TASKS = {"ARC-Easy": 2376, "ARC-Challenge": 1172, "MMLU": 14042, "GSM8K": 1319, "HumanEval": 164}
"""Name of a task -> the questions of its public split, which all have to be there."""


@dataclasses.dataclass(frozen=True)
class Question:
    """One question.

    Args:
        prompt: the messages before the answer, the last of them a user's.
        answer: what is right: a letter, a number, or whatever the task's `grade` compares with.
        letters: what can be chosen; empty for a task whose answers are generated.
        extra: what else grading needs.
    """

    prompt: Sequence[Mapping[str, Any]]
    answer: str
    letters: Sequence[str] = ()
    extra: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ChatTask:
    """Questions of one kind.

    Args:
        baseline: the accuracy of guessing.
        grade: whether a reply is right; None where a letter is chosen by its logit.
        guess: the answer that guessing always gives, where it is one; else "".
    """

    name: str
    baseline: float
    questions: Sequence[Question]
    grade: Callable[[Question, str], bool] | None = None
    guess: str = ""

    @staticmethod
    def with_guess(
        name: str, questions: Sequence[Question], grade: Callable[[Question, str], bool], guess: str
    ) -> "ChatTask":
        """The task whose baseline is how often `guess` is right."""
        return ChatTask(name, _share(questions, guess), questions, grade, guess)

    def first(self, limit: int | None) -> "ChatTask":
        """The task with its first `limit` questions; None or -1 for all. A guess is held against the questions that are asked."""
        if limit in (None, -1):
            return self
        asked = self.questions[:limit]
        baseline = _share(asked, self.guess) if self.guess else self.baseline
        return dataclasses.replace(self, questions=asked, baseline=baseline)


def _share(questions: Sequence[Question], answer: str) -> float:
    return sum(question.answer == answer for question in questions) / len(questions)


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """What a task measured.

    Args:
        records: for each question the reply and whether it is right.
        beyond_context: questions that are longer than the sequences that the model was trained with, answers not counted.
    """

    name: str
    correct: int
    total: int
    baseline: float
    records: Sequence[Mapping[str, Any]] = dataclasses.field(default=(), repr=False)
    beyond_context: int = 0

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The accuracy's 95 % interval."""
        return wilson(self.correct, self.total)

    @property
    def centered(self) -> float:
        """0 where guessing is always right, as of a single question, and so nothing can be above it."""
        return (self.accuracy - self.baseline) / (1.0 - self.baseline) if self.baseline < 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        """All but the records."""
        low, high = self.interval
        figures = {"accuracy": self.accuracy, "low": low, "high": high, "centered": self.centered}
        counts = {"correct": self.correct, "total": self.total, "beyond_context": self.beyond_context}
        return {**counts, "baseline": self.baseline, **figures}


@dataclasses.dataclass(frozen=True)
class ChatCore:
    """The mean over tasks; `missing` names those of `CHATCORE_TASKS` that it lacks, `short` those of which it lacks questions."""

    value: float
    tasks: tuple[str, ...]
    missing: tuple[str, ...]
    short: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.short

    @property
    def name(self) -> str:
        """ "ChatCORE", or what to call it where tasks or questions are missing."""
        if self.missing:
            return f"partial ChatCORE ({len(self.tasks)} of {len(CHATCORE_TASKS)} tasks)"
        return f"partial ChatCORE (not all questions of {', '.join(self.short)})" if self.short else "ChatCORE"


def chat_core(scores: Sequence[TaskScore], limit: int = -1) -> ChatCore | None:
    """ChatCORE of those scores that belong to it; None if none does.

    Args:
        limit: how many questions of a task were asked at most, for who says so beside the figure; -1 for all.
    """
    counted = [score for score in scores if score.name in CHATCORE_TASKS]
    if not counted:
        return None
    names = tuple(score.name for score in counted)
    missing = tuple(name for name in CHATCORE_TASKS if name not in names)
    wanted = {name: number if limit == -1 else min(limit, number) for name, number in CHATCORE_TASKS.items()}
    short = tuple(score.name for score in counted if score.total < wanted[score.name])
    return ChatCore(sum(score.centered for score in counted) / len(counted), names, missing, short)


def choice_question(question: str, choices: Sequence[str], answer: int, letters: Sequence[str] = LETTERS) -> Question:
    """A question with choices, of which one is to be named by its letter.

    A letter stands behind its choice and an equals sign, with no space, so that it is the same token as in the answer.

    Raises:
        ConfigError: the answer is none of the choices.
    """
    letters = tuple(letters[: len(choices)])
    if not 0 <= answer < len(choices) or len(letters) < len(choices):
        raise ConfigError(f"the question {question!r:.60} has {len(choices)} choices and the answer {answer}")
    lines = "".join(f"- {choice}={letter}\n" for choice, letter in zip(choices, letters, strict=True))
    text = f"Multiple Choice question: {question}\n{lines}\nRespond only with the letter of the correct answer."
    return Question([{"role": "user", "content": text}], letters[answer], letters)


def with_answer(question: Question) -> dict[str, Any]:
    """The conversation to train on."""
    return {"messages": [*question.prompt, {"role": "assistant", "content": question.answer}]}
