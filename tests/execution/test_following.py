"""Processes that help the executor: they take part in a step that their process 0 runs, and in nothing that another program does."""

import dataclasses
import threading
from typing import ClassVar

import pytest

from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, following, this_output_path

ran_by: list[str] = []


def while_it_runs() -> None:
    """A test puts what it needs in its place."""


@dataclasses.dataclass(frozen=True)
class Together:
    marin_together: ClassVar[bool] = True

    output_path: str = this_output_path()


def work(config: Together) -> None:
    helps = threading.current_thread() is not threading.main_thread()
    ran_by.append("helper" if helps else "executor")
    if not helps:
        while_it_runs()


@pytest.mark.parametrize(("is_ours", "expected"), [(True, ["executor", "helper"]), (False, ["executor"])])
def test_a_helper_joins_its_own_process_0_and_waits_while_an_earlier_program_runs_the_step(
    is_ours, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(following, "_POLL", 0.01)
    step = ExecutorStep("trained", work, Together())
    asked = threading.Semaphore(0)

    def leads() -> bool:
        asked.release()
        return is_ours

    helper = threading.Thread(target=following.follow, args=([step], str(tmp_path), 1, leads))

    def help_it() -> None:
        helper.start()
        for _ in range(1 if is_ours else 3):
            assert asked.acquire(timeout=30)
        if is_ours:
            helper.join(30)

    ran_by.clear()
    monkeypatch.setitem(globals(), "while_it_runs", help_it)
    Executor(ExecutorMainConfig(prefix=str(tmp_path))).run([step])
    helper.join(30)
    assert not helper.is_alive() and ran_by == expected
