"""A model's scores on chat tasks: public ones whose data is there, and made ones."""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError
from marin.evaluation.chat import (
    PUBLIC_TASKS,
    ChatTask,
    TaskScore,
    public_task,
    score_choices,
    score_replies,
    source_of,
    stop_tokens,
)
from marin.evaluation.chat.scoring import Progress, prompt_of
from marin.evaluation.records import RecordFolder
from marin.finetuning.made.tasks import MADE_TASKS, made_task
from marin.inference.context import note_long_answers, note_long_choices
from marin.inference.engine import Engine
from marin.inference.options import SamplingOptions
from marin.nn.precision import Precision
from marin.optim.config import check_range

_VERSION = 2  # part of what replies are made from: raise it when they would be others


@dataclasses.dataclass(frozen=True)
class ChatEvalOptions:
    """How tasks are asked.

    Args:
        max_choices, max_replies: questions of a task with letters, and of one whose answers are generated; -1 for all.
        max_new_tokens: of an answer.
        num_samples: answers to a question, of which one must be right.
        batch_size: questions with letters, and answers, at once.
    """

    max_choices: int = -1
    max_replies: int = -1
    max_new_tokens: int = 512
    temperature: float = 0.0
    top_k: int | None = 50
    num_samples: int = 1
    batch_size: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_choices", "max_replies"):
            if getattr(self, name) < 1 and getattr(self, name) != -1:
                raise ConfigError(f"`{name}` is {getattr(self, name)}: use at least 1, or -1 for all questions")
        for name in ("max_new_tokens", "num_samples", "batch_size"):
            check_range(name, getattr(self, name), at_least=1, whole=True)
        if self.num_samples > 1 and (self.temperature == 0 or self.top_k == 1):
            raise ConfigError(
                f"`num_samples` is {self.num_samples}, but at `temperature` {self.temperature:g} and `top_k` {self.top_k} all samples"
                " are the same: use a `temperature` above 0, such as 0.8, and a `top_k` above 1, or one sample"
            )
        _ = self.sampling  # what it refuses is refused before a model is loaded

    @property
    def sampling(self) -> SamplingOptions:
        """How answers are generated, but for the tokens that end one."""
        return SamplingOptions(self.max_new_tokens, temperature=self.temperature, top_k=self.top_k, seed=self.seed)


def available_tasks(task_data: Path) -> list[str]:
    """The public tasks whose data is there, and all made ones."""
    return [name for name in PUBLIC_TASKS if source_of(name).is_there(task_data)] + list(MADE_TASKS)


def open_task(name: str, task_data: Path) -> ChatTask:
    """A task by its name, in any case.

    Raises:
        ConfigError: there is no such task.
        DataError: its data is not there.
    """
    known = {known.lower(): known for known in (*PUBLIC_TASKS, *MADE_TASKS)}
    if name.lower() not in known:
        raise ConfigError(f"there is no chat task {name!r}: use {', '.join(known.values())}, joined by |")
    found = known[name.lower()]
    return public_task(found, task_data) if found in PUBLIC_TASKS else made_task(found)


@dataclasses.dataclass(frozen=True)
class AskedModel:
    """A model that answers.

    Args:
        context: tokens of the sequences that it was trained with.
    """

    model: Any
    tokenizer: Tokenizer
    precision: Precision
    context: int


def chat_scores(
    asked: AskedModel,
    tasks: Sequence[ChatTask],
    options: ChatEvalOptions,
    *,
    report: Callable[[str], Progress] | None = None,
    records: RecordFolder | None = None,
    shorter: str = "`--max-new-tokens {}`",
) -> list[TaskScore]:
    """The score of each task. Questions and answers beyond the model's context are asked as others are, with a note.

    Args:
        report: makes for a task's name what is told how far it is; see `marin.evaluation.chat.scoring`.
        records: where each reply is kept as soon as its task is done, and where a task is found that was done before with the
            same model, questions and options.
        shorter: what a note on answers beyond the context says asks for shorter ones; see `note_long_answers`.
    """
    tokenizer, precision = asked.tokenizer, asked.precision
    model = on_one_device(asked.model)
    tasks = [task.first(options.max_choices if task.grade is None else options.max_replies) for task in tasks]
    prompts = [[prompt_of(question, tokenizer) for question in task.questions] for task in tasks]
    lengths = [(task.grade is None, len(prompt)) for task, own in zip(tasks, prompts, strict=True) for prompt in own]
    note_long_choices([length for by_letter, length in lengths if by_letter], asked.context)
    longest = max((length for by_letter, length in lengths if not by_letter), default=0)
    sampling = dataclasses.replace(options.sampling, stop_tokens=stop_tokens(tokenizer))

    @functools.cache
    def engine() -> Engine:
        note_long_answers(longest, options.max_new_tokens, asked.context, shorter)
        # As long as the longest of all tasks asks for, so that replies do not depend on which of them are left to ask.
        length, rows = longest + options.max_new_tokens, max(options.batch_size, options.num_samples)
        return Engine(model, tokenizer, max_length=length, max_rows=rows, precision=precision)

    def ask(task: ChatTask, own: Sequence[Sequence[int]], progress: Progress | None) -> TaskScore:
        if task.grade is not None:
            return score_replies(
                task, engine(), tokenizer, sampling, num_samples=options.num_samples, progress=progress
            )
        return score_choices(
            task, own, model, tokenizer, precision=precision, batch_size=options.batch_size, progress=progress
        )

    scores = []
    for task, own in zip(tasks, prompts, strict=True):
        progress = report(task.name) if report else None
        made_from = _made_from(task, asked, options)
        score = _kept_score(task, records, made_from, progress)
        if score is None:
            started = time.monotonic()
            score = ask(task, own, progress)
            if records is not None:
                replies = [dict(record) for record in score.records]
                records.write(task.name, replies, made_from, time.monotonic() - started)
        beyond = sum(len(prompt) > asked.context for prompt in own)
        scores.append(dataclasses.replace(score, beyond_context=beyond))
    return scores


def _kept_score(
    task: ChatTask, records: RecordFolder | None, made_from: dict[str, Any], progress: Progress | None
) -> TaskScore | None:
    """The score of a task that was done before."""
    found = records.read(task.name, made_from) if records else None
    if found is None:
        return None
    replies = found[0]
    right = sum(bool(reply["right"]) for reply in replies)
    if progress:
        progress(len(replies), len(replies), right)
    return TaskScore(task.name, right, len(replies), task.baseline, replies)


def _made_from(task: ChatTask, asked: AskedModel, options: ChatEvalOptions) -> dict[str, Any]:
    """All that a task's replies and verdicts follow from, beside the model."""
    questions = json.dumps([dataclasses.astuple(question) for question in task.questions]).encode()
    return {
        "version": _VERSION,
        "task": task.name,
        "questions": hashlib.sha256(questions).hexdigest(),
        "tokenizer": asked.tokenizer.digest,
        "options": dataclasses.asdict(options),
        "precision": asked.precision.compute,
    }


def on_one_device(model: Any) -> Any:
    """The model's arrays on this process's first device, which generates.

    Raises:
        ConfigError: other processes hold parts of it.
    """
    arrays, static = eqx.partition(model, eqx.is_array)
    if not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(arrays)):
        raise ConfigError("several processes hold the model: ask it questions with `scripts.chat_eval` in one process")
    return eqx.combine(jax.device_put(arrays, jax.local_devices()[0]), static)
