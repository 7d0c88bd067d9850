"""The executor in one process: what runs, what is skipped, and what is refused."""

import asyncio
import json
import pathlib
import shutil
from typing import Any

import pytest
from labelled_steps import CALLS, FAILURES, Config, ResumableConfig, diamond, kinds, step

from marin.errors import (
    ConfigError,
    ExecutionError,
    FingerprintCollisionError,
    PreviousStepFailedError,
    StepFailedError,
    Terminated,
)
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, attempts
from marin.execution.graph import Graph
from marin.execution.plan import Action
from marin.execution.status import ERROR_NAME, INFO_NAME, STATUS_NAME, Status, read_status, write_status
from marin.storage import lease as lease_module


def test_run_runs_each_step_once_in_order_and_a_second_time_none(executor: Any, capsys: Any) -> None:
    assert kinds(executor().run([diamond()])) == dict.fromkeys("abcd", "ran")
    assert CALLS == ["a", "b", "c", "d"]
    capsys.readouterr()
    assert kinds(executor().run([diamond()])) == dict.fromkeys("abcd", "skipped")
    assert len(CALLS) == 4
    assert "nothing to do: all 4 steps are done" in capsys.readouterr().out


def test_run_of_a_changed_config_makes_a_new_output(executor: Any) -> None:
    paths = {node.output_path for rate in (0.1, 0.2, 0.1) for node in executor().run([step("a", rate=rate)])}
    assert len(paths) == 2
    assert CALLS == ["a", "a"]


def test_run_does_not_run_what_only_finished_steps_use(executor: Any) -> None:
    first, *_ = executor().run([diamond()])
    (pathlib.Path(first.output_path) / STATUS_NAME).unlink()
    assert kinds(executor().run([diamond()])) == dict.fromkeys("abcd", "skipped")


def test_failure_stops_dependents_only_and_a_second_run_continues(executor: Any, capsys: Any) -> None:
    FAILURES["b"] = ZeroDivisionError("by zero")
    with pytest.raises(StepFailedError, match=r"2 of 4 steps are not done; step `steps/b`: ZeroDivisionError: by zero"):
        executor().run([diamond()])
    assert CALLS == ["a", "b", "c"]
    statuses = {node.name[-1]: read_status(node.output_path) for node in executor().dry_run([diamond()])}
    assert statuses == {"a": Status.SUCCESS, "b": Status.FAILED, "c": Status.SUCCESS, "d": Status.DEP_FAILED}
    error_file = pathlib.Path(executor().output_path(step("b", step("a"))), ERROR_NAME)
    assert "Traceback" in error_file.read_text()
    assert str(error_file) in capsys.readouterr().out
    FAILURES.clear()
    assert kinds(executor().run([diamond()])) == {"a": "skipped", "b": "ran", "c": "skipped", "d": "ran"}
    assert not error_file.exists()


def test_failed_step_is_not_run_again_when_told_so(executor: Any) -> None:
    FAILURES["b"] = SystemExit("gave up")
    with pytest.raises(StepFailedError):
        executor().run([diamond()])
    FAILURES.clear()
    decisions = executor(force_run_failed=False).dry_run([diamond()])
    assert [decision.action for decision in decisions.values()] == [
        Action.SKIP, Action.BLOCKED, Action.SKIP, Action.BLOCKED
    ]  # fmt: skip
    with pytest.raises(PreviousStepFailedError, match=r"--force_run_failed true"):
        executor(force_run_failed=False).run([diamond()])
    assert CALLS.count("b") == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), Terminated()])
@pytest.mark.parametrize("kind", [Config, ResumableConfig])
def test_interrupted_step_continues_only_when_it_is_resumable(
    executor: Any, interruption: BaseException, kind: type[Config]
) -> None:
    FAILURES["a"] = interruption
    with pytest.raises(type(interruption)):
        executor().run([step("a", kind=kind)])
    (decision,) = executor().dry_run([step("a", kind=kind)]).values()
    assert decision.action is Action.RUN
    assert decision.reason.startswith("interrupted")
    FAILURES.clear()
    (node,) = executor().run([step("a", kind=kind)])
    attempts = pathlib.Path(node.output_path, "log.txt").read_text().splitlines()
    assert attempts == ["a", "a"] if kind is ResumableConfig else ["a"]


@pytest.mark.parametrize("lives", [False, True])
def test_step_that_goes_on_copies_files_only_where_their_writer_may_still_live(
    executor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, lives: bool
) -> None:
    """They may be hundreds of gigabytes, in shards of 32 MB."""
    FAILURES["a"] = KeyboardInterrupt()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if lives:  # whoever was overtaken has not let go
            patch.setattr(lease_module.Lease, "release", lambda lease: lease._end_heartbeat())
            patch.setattr(lease_module, "machine", lambda: "another")
        executor().run([step("a", kind=ResumableConfig)])
    FAILURES.clear()
    (written,) = tmp_path.glob("store/steps/a-*/log.txt")
    inode = written.stat().st_ino
    with written.open("a"):  # so that no other file gets its number
        monkeypatch.setattr(lease_module, "STALE_AFTER", 0.05)
        monkeypatch.setattr(lease_module, "POLL", 0.01)
        (node,) = executor().run([step("a", kind=ResumableConfig)])
    assert (pathlib.Path(node.output_path, "log.txt").stat().st_ino == inode) is not lives
    assert pathlib.Path(node.output_path, "log.txt").read_text() == "a\na\n"


def test_dry_run_writes_nothing_and_tells_what_and_why(executor: Any, tmp_path: pathlib.Path, capsys: Any) -> None:
    decisions = executor().dry_run([diamond()])
    assert not (tmp_path / "store").exists()
    printed = capsys.readouterr().out
    assert printed.startswith("info of c\n")
    for node in decisions:
        assert f"would run     {node.name}: never ran\n              {node.output_path}\n" in printed
    assert "4 would run" in printed.splitlines()[-1]
    executor().run([step("a")])
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    executor().dry_run([diamond()])
    assert sorted(tmp_path.rglob("*")) == before
    assert "would skip    steps/a: already done, succeeded on " in capsys.readouterr().out


def test_run_only_runs_matches_and_what_they_depend_on(executor: Any) -> None:
    assert kinds(executor(run_only=("b$",)).run([diamond()])) == {"a": "ran", "b": "ran"}
    with pytest.raises(ConfigError, match="matches no step: the steps are steps/a"):
        executor(run_only=("zzz",)).run([diamond()])


def test_record_of_another_fingerprint_at_a_hashed_path_is_a_collision(executor: Any) -> None:
    (node,) = executor().run([step("a")])
    info_path = pathlib.Path(node.output_path, INFO_NAME)
    info = json.loads(info_path.read_text())
    info["fingerprint"] = info["fingerprint"][:8] + "0" * 56
    info_path.write_text(json.dumps(info))
    with pytest.raises(FingerprintCollisionError, match="rename the step"):
        executor().run([step("a")])


def test_overridden_path_with_another_config_is_never_served(executor: Any) -> None:
    executor().run([step("a", override_output_path="fixed")])
    assert kinds(executor().run([step("a", override_output_path="fixed")])) == {"a": "skipped"}
    with pytest.raises(ExecutionError, match=r"`config.rate` was 0.1 and is 0.2.*choose another"):
        executor().run([step("a", override_output_path="fixed", rate=0.2)])
    assert CALLS == ["a"]


def test_leftovers_of_another_unfinished_config_are_cleared(executor: Any) -> None:
    FAILURES["a"] = ValueError()
    with pytest.raises(StepFailedError):
        executor().run([step("a", kind=ResumableConfig, override_output_path="fixed")])
    FAILURES.clear()
    (node,) = executor().run([step("a", kind=ResumableConfig, override_output_path="fixed", rate=0.2)])
    assert pathlib.Path(node.output_path, "log.txt").read_text() == "a\n"


def test_files_that_no_step_recorded_are_never_removed(executor: Any, tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    with pytest.raises(ExecutionError, match=r"holds files that no step has recorded \(such as 'thesis.txt'\)"):
        executor().run([step("a", override_output_path=str(mine))])
    assert (mine / "thesis.txt").read_text() == "years"


def test_owner_that_was_overtaken_cannot_commit_and_what_stands_is_the_others(
    executor: Any, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(StepFailedError, match="somebody else took the step over"):
        executor().run([ExecutorStep("overtaken", overtake, Config("x"))])
    (output,) = (tmp_path / "store").glob("overtaken-*")
    assert output.is_symlink()
    assert (output / "made_by").read_text() == "the other"
    assert read_status(str(output)) is Status.RUNNING


def overtake(config: Config) -> None:
    """Does what another machine does that has watched us stand still: claims the next number and begins its attempt."""
    own = pathlib.Path(config.output_path)
    ledger = own.parents[1] / "ledger"
    (ledger / "00000002.json").write_text('{"kind": "claim", "worker_id": "the other"}')
    begun = pathlib.Path(attempts.begin(attempts.usual_path(config.output_path), 2))
    (begun / "made_by").write_text("the other")
    write_status(str(begun), Status.RUNNING)
    own.mkdir(parents=True, exist_ok=True)
    (own / "made_by").write_text("us, late")


def test_commit_without_its_move_is_completed_by_the_next_run_which_runs_nothing(
    executor: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    a = step("a")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attempts, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        executor().run([a])
    monkeypatch.undo()
    CALLS.clear()
    assert executor().dry_run([a]).popitem()[1].reason.startswith("committed by an earlier run")
    capsys.readouterr()
    ((node, result),) = executor().run([a]).items()
    assert (result.kind, CALLS) == ("skipped", [])
    assert "an earlier run committed it" in capsys.readouterr().out
    output = pathlib.Path(node.output_path)
    assert not output.is_symlink()
    assert ((output / "log.txt").read_text(), read_status(str(output))) == ("a\n", Status.SUCCESS)


def test_output_removed_by_hand_is_made_again(executor: Any) -> None:
    (node,) = executor().run([step("a")])
    shutil.rmtree(node.output_path)
    ((node, result),) = executor().run([step("a")]).items()
    assert (result.kind, CALLS) == ("ran", ["a", "a"])
    assert pathlib.Path(node.output_path, "log.txt").read_text() == "a\n"


def test_interrupted_output_of_the_older_layout_is_continued(executor: Any, tmp_path: pathlib.Path) -> None:
    a = step("a", kind=ResumableConfig)
    output = pathlib.Path(executor().output_path(a))
    output.mkdir(parents=True)
    (output / "log.txt").write_text("before\n")
    fingerprint = Graph([a], str(tmp_path / "store")).node(a).fingerprint
    (output / INFO_NAME).write_text(json.dumps({"name": "steps/a", "fingerprint": fingerprint}))
    write_status(str(output), Status.RUNNING)
    assert kinds(executor().run([a])) == {"a": "ran"}
    assert (output / "log.txt").read_text() == "before\na\n"


def test_store_can_be_moved_while_a_step_is_unfinished(executor: Any, tmp_path: pathlib.Path) -> None:
    a = step("a", kind=ResumableConfig)
    FAILURES["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        executor().run([a])
    (tmp_path / "store").rename(tmp_path / "moved")
    FAILURES.clear()
    (node,) = Executor(ExecutorMainConfig(prefix=str(tmp_path / "moved"))).run([a])
    assert pathlib.Path(node.output_path, "log.txt").read_text() == "a\na\n"


def test_check_of_a_step_that_makes_the_same_bytes_says_so_and_leaves_nothing(executor: Any, capsys: Any) -> None:
    (node,) = executor().run([step("a")])
    before = sorted(str(path) for path in pathlib.Path(node.output_path).parents[1].rglob("*"))
    (checked,) = executor().check([step("a")])
    assert checked.difference is None
    assert "same steps/a: a second run made the same bytes" in capsys.readouterr().out
    assert sorted(str(path) for path in pathlib.Path(node.output_path).parents[1].rglob("*")) == before


def test_check_of_a_step_that_makes_other_bytes_names_the_first(executor: Any, capsys: Any) -> None:
    (node,) = executor().run([step("a")])
    file = pathlib.Path(node.output_path, "log.txt")
    file.write_text("b\n")
    with pytest.raises(StepFailedError, match="1 of 1 steps made other bytes"):
        executor().check([step("a")])
    shown = capsys.readouterr().out
    assert "log.txt differs from byte 0 on: 62 0a first, 61 0a now" in shown
    assert file.read_text() == "b\n"


def test_check_of_a_step_that_fails_the_second_time_says_so_and_keeps_the_first_output(executor: Any) -> None:
    (node,) = executor().run([step("a")])
    FAILURES["a"] = ValueError("no luck")
    with pytest.raises(StepFailedError, match=r"failed when it ran again \(ValueError: no luck\)"):
        executor().check([step("a")])
    assert pathlib.Path(node.output_path, "log.txt").read_text() == "a\n"


def test_check_of_an_overridden_path_with_the_output_of_another_config_is_refused(executor: Any) -> None:
    executor().run([step("a", override_output_path="fixed")])
    CALLS.clear()
    with pytest.raises(ExecutionError, match=r"made with another config \(`config.rate` was 0.1 and is 0.2"):
        executor().check([step("a", rate=0.2, override_output_path="fixed")])
    assert CALLS == []


def test_check_of_a_step_that_is_not_done_is_refused(executor: Any) -> None:
    with pytest.raises(ConfigError, match="is not done, so there is nothing to check"):
        executor().check([step("a")])


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), UnspeakableError(), SystemExit(0)])
def test_error_of_any_kind_fails_its_step_only(executor: Any, tmp_path: pathlib.Path, error: BaseException) -> None:
    FAILURES["a"] = error
    with pytest.raises(StepFailedError, match=f"step `steps/a`: {type(error).__name__}"):
        executor().run([step("a"), step("b")])
    assert CALLS == ["a", "b"]
    assert read_status(str(next(tmp_path.glob("store/steps/a-*")))) is Status.FAILED


def test_a_failure_is_told_by_its_error_not_by_what_a_library_adds_to_it(executor: Any, tmp_path: pathlib.Path) -> None:
    FAILURES["b"] = ValueError("shapes (3, 4) and (5, 6) do not fit")
    FAILURES["b"].add_note("a library's footer, which says nothing of the error")
    with pytest.raises(StepFailedError, match=r"ValueError: shapes \(3, 4\) and \(5, 6\) do not fit \(traceback in"):
        executor().run([diamond()])
    assert "a library's footer" in next(tmp_path.rglob(ERROR_NAME)).read_text()
