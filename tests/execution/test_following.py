"""Processes that help the executor: they take part in a step that their process 0 runs, and in nothing that another program does."""

import dataclasses
import shutil
import threading
from typing import ClassVar

import pytest

from marin.errors import PreviousStepFailedError, StepFailedError
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, following, this_output_path
from marin.execution.flags import parse_flags
from marin.run import together

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


@dataclasses.dataclass(frozen=True)
class Use:
    trained: str | ExecutorStep
    output_path: str = this_output_path()


def use(config: Use) -> None:
    """A step of process 0 alone."""


@pytest.mark.parametrize("why", ["run_only", "not needed", "failed before"])
def test_a_helper_does_not_wait_for_a_step_that_process_0_leaves_out(why, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL", 0.01)
    trained = ExecutorStep("trained", work, Together())
    used = ExecutorStep("used", use, Use(trained))
    flags = {"run_only": ("other",)} if why == "run_only" else {"force_run_failed": why != "failed before"}
    steps = [used, ExecutorStep("other", use, Use("x"))]
    if why == "not needed":
        Executor(ExecutorMainConfig(prefix=str(tmp_path))).run(steps)
        shutil.rmtree(next(tmp_path.glob("trained-*")))
    if why == "failed before":
        monkeypatch.setitem(globals(), "while_it_runs", lambda: 1 / 0)
        with pytest.raises(StepFailedError):
            Executor(ExecutorMainConfig(prefix=str(tmp_path))).run(steps)
    ran_by.clear()
    helper = threading.Thread(
        target=following.follow, args=(steps, str(tmp_path), 1, lambda: True), kwargs=flags, daemon=True
    )
    helper.start()
    helper.join(30)
    assert not helper.is_alive() and ran_by == []


def test_experiment_on_several_processes_tells_the_others_what_process_0_leaves_out(monkeypatch, tmp_path):
    """As where `torchrun ... --run_only other` is typed: every process reads the same flags."""
    monkeypatch.setattr(following, "_POLL", 0.01)
    steps = [ExecutorStep("trained", work, Together()), ExecutorStep("other", use, Use("x"))]
    flags = parse_flags(["--run_only", "other"])
    helper = threading.Thread(target=together._follow, args=(steps, str(tmp_path), flags, 1, None), daemon=True)
    helper.start()
    helper.join(30)
    assert not helper.is_alive()


def fail(config: Use) -> None:
    raise ValueError("bad data")


def stop() -> None:
    raise KeyboardInterrupt


@dataclasses.dataclass(frozen=True)
class UseTogether(Use):
    marin_together: ClassVar[bool] = True


@pytest.mark.parametrize("how", ["what it needs fails", "it fails", "it fails again", "it is stopped"])
def test_a_helper_ends_where_process_0_does_before_they_train(how, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "_POLL", 0.01)
    monkeypatch.setitem(globals(), "while_it_runs", stop if how == "it is stopped" else lambda: 1 / 0)
    needed = ExecutorStep("needed", fail if how == "what it needs fails" else use, Use("x"))
    steps = [ExecutorStep("trained", work, UseTogether(needed))]

    def process_0() -> None:
        with pytest.raises((StepFailedError, KeyboardInterrupt)):
            Executor(ExecutorMainConfig(prefix=str(tmp_path))).run(steps)

    if how == "it fails again":
        process_0()
    looked, decide, said = threading.Event(), following.decide, []

    def noted(*step, **flags):
        looked.set()
        return decide(*step, **flags)

    def help_it() -> None:
        try:
            following.follow(steps, str(tmp_path), 1, lambda: False)
        except PreviousStepFailedError as error:
            said.append(str(error))

    monkeypatch.setattr(following, "decide", noted)
    helper = threading.Thread(target=help_it, daemon=True)
    helper.start()
    assert looked.wait(30)
    helper.join(0.5)
    assert helper.is_alive()  # what an earlier program left is no reason to end
    process_0()
    helper.join(30)
    assert len(said) == 1 and "process 0 has ended step `trained`" in said[0]
