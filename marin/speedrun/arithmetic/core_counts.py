"""Whether CORE follows from the counts of its tasks: the arithmetic rung for it.

Tasks, their sizes and their baselines are those of our own table, so that a mean over fewer tasks or items, or one that was centered on
other baselines, is told from CORE.
"""

import math

from marin.data.core_tasks import CORE_TASKS, centered
from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.results import Core, RunInfo
from marin.speedrun.verdict import Finding

VERSIONS = ("v1", "v2")
_EXACT = 1e-9


def check(info: RunInfo) -> list[Finding]:
    """What is wrong with a run's CORE, or was not counted; nothing where none is stated."""
    if info.core_metric is None:
        return (
            [] if info.core is None else [arithmetic.error("core_metric", "counts of CORE's tasks without the metric")]
        )
    if not -1 <= info.core_metric <= 1:
        return [
            arithmetic.error(
                "core_metric", f"core_metric is {info.core_metric:g}, which no mean of centered accuracies is"
            )
        ]
    if info.core_version not in VERSIONS:
        message = f"core_version is {str(info.core_version)[:20]!r}: say which baselines accuracies were centered with, v1 or v2"
        return [arithmetic.error("core_version", message)]
    if info.core is None:
        return [arithmetic.unchecked("core_metric", "CORE is not recomputable: the counts of its tasks are not stated")]
    found = _check_tasks(info.core)
    if found:
        return found
    value = core_of(info.core, info.core_version)
    if not math.isclose(info.core_metric, value, rel_tol=0, abs_tol=_EXACT):
        message = (
            f"core_metric is {info.core_metric:.6f}, the counts of its tasks give {value:.6f} by {info.core_version}"
        )
        found.append(arithmetic.error("core_metric", message, value))
    return found


def core_of(core: Core, version: str) -> float:
    """CORE by the counts of all its tasks.

    Args:
        version: one of `VERSIONS`.
    """
    shares = []
    for label, task in CORE_TASKS.items():
        counts = core.tasks[label]
        baseline = task.baseline if version == "v1" else task.baseline_v2
        shares.append(centered(counts.num_correct / counts.num_items, baseline))
    return math.fsum(shares) / len(shares)


def same_scores(run: RunInfo, other: RunInfo, source: str) -> list[Finding]:
    """That a run's scores of every item of a task are another's, which no two models' are: records hold losses with all digits."""
    for label, counts in (run.core.tasks if run.core else {}).items():
        theirs = other.core.tasks.get(label) if other.core else None
        if theirs is not None and counts.records is not None and counts.records == theirs.records:
            message = (
                f"the scores of each item of {label} are those of {source}, to the last digit: one model counts once"
            )
            return [arithmetic.error(f"core.tasks.{label}.records", message)]
    return []


def _check_tasks(core: Core) -> list[Finding]:
    found = []
    for label in sorted(CORE_TASKS.keys() - core.tasks.keys()):
        found.append(
            arithmetic.error(
                f"core.tasks.{label}", f"CORE is the mean of {len(CORE_TASKS)} tasks, and {label} is missing"
            )
        )
    for label in sorted(core.tasks.keys() - CORE_TASKS.keys()):
        found.append(arithmetic.error("core.tasks", f"{label[:60]!r} is no task of CORE"))
    for label, counts in core.tasks.items():
        if label not in CORE_TASKS:
            continue
        expected = CORE_TASKS[label].num_items
        if counts.num_items != expected:
            message = (
                f"{label} has {expected:,} items, {counts.num_items:,} were evaluated: that is an estimate, not CORE"
            )
            found.append(arithmetic.error(f"core.tasks.{label}.num_items", message))
        elif not 0 <= counts.num_correct <= counts.num_items:
            message = f"{counts.num_correct:,} of {counts.num_items:,} items of {label} are said to be right"
            found.append(arithmetic.error(f"core.tasks.{label}.num_correct", message))
    return found
