"""CORE, the mean of 22 centered accuracies that Time-to-GPT-2 is won by (Li et al., 2024, DCLM, arXiv:2406.11794)."""

from marin.data.core_tasks import CORE_TASKS, CoreTask, centered
from marin.evaluation.core.bundle import Bundle, BundledTask, MissingTask
from marin.evaluation.core.evaluate import check_core, evaluate_core
from marin.evaluation.core.result import CoreResult, TaskResult

__all__ = [
    "CORE_TASKS",
    "Bundle",
    "BundledTask",
    "CoreResult",
    "CoreTask",
    "MissingTask",
    "TaskResult",
    "centered",
    "check_core",
    "evaluate_core",
]
