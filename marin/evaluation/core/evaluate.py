"""Evaluating a model on CORE, task by task.

    result = evaluate_core(model, tokenizer, "eval_bundle", max_per_task=500, progress=print)
    print(result.to_text())

A task that the bundle does not hold is not evaluated, and is named in the result.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marin.data.tokenizer import Tokenizer
from marin.errors import ConfigError
from marin.evaluation.core.bundle import Bundle, BundledTask
from marin.evaluation.core.prompts import items_in_order, questions
from marin.evaluation.core.result import CoreResult, TaskResult
from marin.evaluation.core.verdicts import is_undefined, verdict
from marin.evaluation.likelihood import LikelihoodScorer
from marin.evaluation.records import Record, RecordFolder, lines_of
from marin.tracking.console import duration

Progress = Callable[[str], None]

# Part of what records are made from: raise it when questions or verdicts change.
_VERSION = 1
_SECONDS_BETWEEN_LINES = 5.0


def evaluate_core(
    scorer_or_model: Any,
    tokenizer: Tokenizer,
    bundle: str | Path | Bundle,
    *,
    max_per_task: int = -1,
    max_tokens: int | None = None,
    records: RecordFolder | None = None,
    progress: Progress | None = None,
) -> CoreResult:
    """Evaluates every task that the bundle has.

    Args:
        scorer_or_model: a `LikelihoodScorer`, or an `LmModel`, which is then scored in float32.
        max_per_task: evaluate so many items of each task, drawn once for all models, and show only these as examples; -1 for
            all. An estimate from some items differs from CORE by its `interval` and by its prompts.
        max_tokens: prompts that are longer lose their beginning; None keeps them whole, also beyond the context that the model
            was trained with, as published figures do.
        records: where each item's record is kept, and where a task is found that an interrupted evaluation finished.
        progress: called with lines for people.
    Raises:
        ConfigError: `max_per_task` leaves fewer items than a prompt shows, or a limit is 0.
        DataError: the bundle, an item or the model's losses cannot be used.
    """
    if max_tokens is not None and max_tokens < 2:
        raise ConfigError(f"`max_tokens` is {max_tokens}: use at least 2, or None for no limit")
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    _check_limit(opened, max_per_task)
    scorer = scorer_or_model if isinstance(scorer_or_model, LikelihoodScorer) else LikelihoodScorer(scorer_or_model)
    results = []
    for task in opened.tasks:
        run = _Run(task, tokenizer, max_per_task, max_tokens, progress or _silent)
        results.append(run.result(scorer, records))
    return CoreResult(tuple(results), opened.missing, max_per_task)


def check_core(bundle: str | Path, max_per_task: int) -> None:
    """Reads all that an evaluation would, so that what is wrong with it is known before a long training, not in its middle.

    Raises:
        ConfigError: `max_per_task` leaves fewer items than a prompt shows.
        DataError: the bundle or an item cannot be used.
    """
    opened = Bundle.open(bundle)
    _check_limit(opened, max_per_task)
    for task in opened.tasks:
        items_in_order(task, max_per_task)


def _check_limit(bundle: Bundle, max_per_task: int) -> None:
    if max_per_task < 1 and max_per_task != -1:
        raise ConfigError(f"`max_per_task` is {max_per_task}: use at least 1, or -1 for no limit")
    shown = max(bundle.tasks, key=lambda task: task.num_shots)
    if 0 < max_per_task <= shown.num_shots:
        raise ConfigError(
            f"`max_per_task` is {max_per_task}, and `{shown.label}` shows {shown.num_shots} other items before each: use at least"
            f" {shown.num_shots + 1}, or -1 for all"
        )


class _Run:
    """The evaluation of one task."""

    def __init__(
        self, task: BundledTask, tokenizer: Tokenizer, max_per_task: int, max_tokens: int | None, progress: Progress
    ):
        self._task, self._tokenizer, self._progress = task, tokenizer, progress
        self._max_per_task, self._max_tokens = max_per_task, max_tokens

    def result(self, scorer: LikelihoodScorer, folder: RecordFolder | None) -> TaskResult:
        label, made_from = self._task.label, self._made_from(scorer)
        found = None if folder is None else folder.read(label, made_from)
        if found is not None:
            records, seconds = found
        else:
            start = time.perf_counter()
            records = self._evaluate(scorer)
            seconds = time.perf_counter() - start
            if folder is not None:
                folder.write(label, records, made_from, seconds)
        result = TaskResult(
            label=label,
            num_items=len(records),
            num_correct=sum(record["correct"] for record in records),
            num_available=len(self._task.items),
            num_undefined=sum(map(is_undefined, records)),
            baseline=self._task.baseline,
            seconds=seconds,
            reused=found is not None,
            records=None if folder is None else str(folder.file(label)),
            data_digest=self._task.digest,
            records_digest=hashlib.sha256(lines_of(records)).hexdigest(),
        )
        how = "as found before" if result.reused else f"{len(records) / max(seconds, 1e-9):.1f} items/s"
        low, high = result.interval
        self._progress(
            f"{label}: accuracy {result.accuracy:.4f} ({low:.4f} to {high:.4f}), centered {result.centered_v1:.4f},"
            f" {len(records):,} items, {how}"
        )
        return result

    def _evaluate(self, scorer: LikelihoodScorer) -> list[Record]:
        asked = list(questions(self._task, self._tokenizer, max_items=self._max_per_task, max_tokens=self._max_tokens))
        records: dict[int, Record] = {}
        start = last_line = time.perf_counter()
        for number, scored in scorer.score([question.group for question in asked]):
            records[number] = verdict(asked[number], scored)
            now = time.perf_counter()
            if now - last_line >= _SECONDS_BETWEEN_LINES:
                last_line = now
                self._progress(_so_far(self._task.label, len(records), len(asked), now - start))
        return [records[number] for number in range(len(asked))]

    def _made_from(self, scorer: LikelihoodScorer) -> dict[str, Any]:
        task = self._task
        return {
            "version": _VERSION,
            "data": task.digest,
            "kind": task.kind,
            "num_shots": task.num_shots,
            "delimiter": task.delimiter,
            "tokenizer": self._tokenizer.digest,
            "precision": scorer.precision.compute,
            "max_per_task": self._max_per_task,
            "max_tokens": self._max_tokens,
        }


def _so_far(label: str, done: int, total: int, seconds: float) -> str:
    rate = done / seconds
    # The longest come first, so that the rate grows.
    return f"{label}: {done:,} of {total:,} items, {rate:.1f} items/s, at most {duration((total - done) / rate)} left"


def _silent(line: str) -> None:
    pass
