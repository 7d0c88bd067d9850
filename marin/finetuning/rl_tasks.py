"""What reinforcement learning asks: GSM8K, or made questions, whose answers can be checked."""

from pathlib import Path

from marin.errors import ConfigError
from marin.evaluation.chat import ChatTask
from marin.evaluation.chat.datasets import GSM8K_TRAIN, read_source
from marin.evaluation.chat.grading import says_marked_number
from marin.evaluation.chat.tasks import gsm8k_question, public_task
from marin.finetuning.made import make
from marin.finetuning.made.tasks import GRADES, asked_of, made_task

# name: the task of made questions, of which those that are asked at the end are held out
_MADE = {"arithmetic": "Arithmetic", "counting": "SpellingBee", "spelling": "Spelling"}
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
    kind, grade = GRADES[_MADE[name]]
    learned = [asked_of(make(kind, "train", number, seed=seed + 1)) for number in range(num_questions)]
    return ChatTask(_MADE[name], 0.0, learned, grade), made_task(_MADE[name], 512)
