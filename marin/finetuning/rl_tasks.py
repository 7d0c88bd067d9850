"""What reinforcement learning asks: GSM8K, or made questions, whose answers can be checked."""

from collections.abc import Callable
from pathlib import Path

from marin.errors import ConfigError
from marin.evaluation.chat import ChatTask, Question
from marin.evaluation.chat.datasets import GSM8K_TRAIN, read_source
from marin.evaluation.chat.grading import says_marked_number, says_text
from marin.evaluation.chat.tasks import gsm8k_question, public_task
from marin.finetuning.made import make
from marin.finetuning.made.tasks import made_task

# name: (the kind that is made, how a reply is graded, the held-out task)
_MADE: dict[str, tuple[str, Callable[[Question, str], bool], str]] = {
    "arithmetic": ("arithmetic", says_marked_number, "Arithmetic"),
    "counting": ("counting", says_marked_number, "SpellingBee"),
    "spelling": ("spelling", says_text, "Spelling"),
}
RL_TASKS = ("gsm8k", *_MADE)


def rl_task(name: str, task_data: Path, *, num_questions: int, seed: int) -> tuple[ChatTask, ChatTask]:
    """Questions to learn from, and held-out ones.

    Args:
        num_questions: to learn from, where they are made; GSM8K has 7,473.
    Raises:
        ConfigError: there is no such task.
        DataError: its data is not there.
    """
    if name == "gsm8k":
        learned = [gsm8k_question(row) for row in read_source(GSM8K_TRAIN, task_data)]
        return ChatTask("GSM8K", 0.0, learned, says_marked_number), public_task("GSM8K", task_data)
    if name not in _MADE:
        raise ConfigError(f"`--task` is {name!r}: use {', '.join(RL_TASKS)}")
    kind, grade, held_out = _MADE[name]
    made = [make(kind, "train", number, seed=seed + 1) for number in range(num_questions)]
    learned = [Question(each.conversation["messages"][:-1], each.answer) for each in made]
    return ChatTask(held_out, 0.0, learned, grade), made_task(held_out, 512)
