"""Steps with identities: what must run, why, and what came of it."""

from marin.execution.executor import (
    Executor,
    ExecutorMainConfig,
    ExecutorStep,
    InputName,
    OutputName,
    VersionedValue,
    added_later,
    executor_main,
    output_path_of,
    placement,
    this_output_path,
    versioned,
)

__all__ = [
    "Executor",
    "ExecutorMainConfig",
    "ExecutorStep",
    "InputName",
    "OutputName",
    "VersionedValue",
    "added_later",
    "executor_main",
    "output_path_of",
    "placement",
    "this_output_path",
    "versioned",
]
