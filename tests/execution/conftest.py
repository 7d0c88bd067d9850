"""An executor below the test's own folder, for the steps of `labelled_steps`."""

import pathlib
from collections.abc import Callable

import pytest
from labelled_steps import CALLS, FAILURES

from marin.execution import Executor, ExecutorMainConfig


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAILURES.clear()


@pytest.fixture
def executor(tmp_path: pathlib.Path) -> Callable[..., Executor]:
    return lambda **options: Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"), **options), "a test")
