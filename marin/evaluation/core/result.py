"""What an evaluation found: accuracies with their uncertainty, centered by both sets of baselines, and CORE or a partial mean.

`core_metric` is a number only if all items of all 22 tasks' data were there; a mean over fewer is `partial_core_metric`, which
can be compared with no published figure. Limiting the items of each task (`max_per_task`) gives an estimate of CORE, as
training does at intervals.
"""

import dataclasses
import math
from typing import Any

from marin.data.core_tasks import CORE_TASKS, centered
from marin.evaluation.core.bundle import MissingTask
from marin.evaluation.proportion import wilson


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """A task's outcome.

    Args:
        num_available: items in the data file; `num_items` of them were evaluated.
        num_undefined: items of which a choice has no token of its own.
        baseline: percent that guessing gets right, as the bundle says (v1).
        reused: whether the records of an earlier evaluation were taken.
        records: the file with a line for each item; None where none was kept.
        data_digest, records_digest: SHA-256 of the data file and of those lines.
    """

    label: str
    num_items: int
    num_correct: int
    num_available: int
    num_undefined: int
    baseline: float
    seconds: float
    reused: bool = False
    records: str | None = None
    data_digest: str | None = None
    records_digest: str | None = None

    @property
    def accuracy(self) -> float:
        return self.num_correct / self.num_items

    @property
    def interval(self) -> tuple[float, float]:
        """Within which the accuracy over more items of the kind lies, at 95 % (Wilson, 1927)."""
        return wilson(self.num_correct, self.num_items)

    @property
    def centered_v1(self) -> float:
        return centered(self.accuracy, self.baseline)

    @property
    def centered_v2(self) -> float:
        return centered(self.accuracy, CORE_TASKS[self.label].baseline_v2)

    @property
    def is_whole(self) -> bool:
        """Whether the data file has as many items as CORE's."""
        return self.num_available == CORE_TASKS[self.label].num_items

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "accuracy": self.accuracy,
            "interval_95": [low, high],
            "centered_v1": self.centered_v1,
            "centered_v2": self.centered_v2,
            "baseline_v1": self.baseline,
            "baseline_v2": CORE_TASKS[self.label].baseline_v2,
            "num_items": self.num_items,
            "num_correct": self.num_correct,
            "num_available": self.num_available,
            "num_undefined": self.num_undefined,
            "seconds": self.seconds,
            "reused": self.reused,
            "records": self.records,
            "data_sha256": self.data_digest,
            "records_sha256": self.records_digest,
        }


@dataclasses.dataclass(frozen=True)
class CoreResult:
    """Of all tasks that could be evaluated, at least one, and of those that could not."""

    tasks: tuple[TaskResult, ...]
    missing: tuple[MissingTask, ...]
    max_per_task: int = -1

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Why this is not CORE, a line for each task that is missing or not whole."""
        cut = (
            f"{task.label}: its data file has {task.num_available:,} items, CORE's has {CORE_TASKS[task.label].num_items:,};"
            f" its source is {CORE_TASKS[task.label].source}"
            for task in self.tasks
            if not task.is_whole
        )
        return (*map(str, self.missing), *cut)

    @property
    def core_metric(self) -> float | None:
        """CORE by v1, as all published Time-to-GPT-2 figures are; None where data is missing."""
        return None if self.incomplete else self.partial_core_metric

    @property
    def core_metric_v2(self) -> float | None:
        return None if self.incomplete else self.partial_core_metric_v2

    @property
    def partial_core_metric(self) -> float:
        """The mean of v1-centered accuracies over the tasks that were there."""
        return sum(task.centered_v1 for task in self.tasks) / len(self.tasks)

    @property
    def partial_core_metric_v2(self) -> float:
        return sum(task.centered_v2 for task in self.tasks) / len(self.tasks)

    @property
    def interval(self) -> tuple[float, float]:
        """Within which the v1 mean would lie with other items of the same tasks, at 95 %; items are taken as independent.

        It says nothing of other seeds of training, which move CORE by more.
        """
        half_widths = []
        for task in self.tasks:
            low, high = task.interval
            half_widths.append((high - low) / 2 / (1 - 0.01 * task.baseline))
        half = math.sqrt(sum(width**2 for width in half_widths)) / len(self.tasks)
        return self.partial_core_metric - half, self.partial_core_metric + half

    @property
    def name(self) -> str:
        """What the mean may be called."""
        kind = (
            f"partial CORE ({len(self.tasks)} of {len(CORE_TASKS)} tasks)"
            if self.missing
            else ("partial CORE (data not whole)" if self.incomplete else "CORE")
        )
        return kind if self.max_per_task <= 0 else f"{kind}, at most {self.max_per_task:,} items a task"

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "core_metric": self.core_metric,
            "core_metric_v2": self.core_metric_v2,
            "partial_core_metric": self.partial_core_metric,
            "partial_core_metric_v2": self.partial_core_metric_v2,
            "interval_95": [low, high],
            "name": self.name,
            "max_per_task": self.max_per_task,
            "tasks": {task.label: task.to_json() for task in self.tasks},
            "missing": {task.label: {"expected": str(task.expected), "source": task.source} for task in self.missing},
            "incomplete": list(self.incomplete),
        }

    def to_csv(self) -> str:
        """Columns `Task`, `Accuracy` and `Centered` (v1) as nanochat writes them; the last row is CORE, or a partial mean by name."""
        rows = [("Task", "Accuracy", "Centered")]
        rows += [(task.label, f"{task.accuracy:.6f}", f"{task.centered_v1:.6f}") for task in self.tasks]
        rows += [(self.name.replace(",", ";"), "", f"{self.partial_core_metric:.6f}")]
        return "".join(f"{name:<35}, {accuracy:<10}, {centered_by:<10}\n" for name, accuracy, centered_by in rows)

    def to_text(self) -> str:
        """A table for people."""
        lines = [f"{'task':<32} {'items':>6} {'accuracy':>8} {'95 % interval':>13} {'v1':>7} {'v2':>7}"]
        for task in self.tasks:
            low, high = task.interval
            lines.append(
                f"{task.label:<32} {task.num_items:>6,} {task.accuracy:>8.4f} {f'{low:.4f}-{high:.4f}':>13}"
                f" {task.centered_v1:>7.4f} {task.centered_v2:>7.4f}"
            )
        low, high = self.interval
        lines.append(
            f"{self.name}: {self.partial_core_metric:.4f} by v1 baselines ({low:.4f} to {high:.4f} at 95 %),"
            f" {self.partial_core_metric_v2:.4f} by v2"
        )
        if self.incomplete:
            lines.append("this is not CORE, and cannot be compared with it. What is missing:")
            lines += [f"  {line}" for line in self.incomplete]
        return "\n".join(lines)
