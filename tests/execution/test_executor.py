"""The executor in one process: what runs, what is skipped, what is refused, and what is recorded."""

import asyncio
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import socket
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from marin.errors import (
    ConfigError,
    ExecutionError,
    FingerprintCollisionError,
    PreviousStepFailedError,
    StepFailedError,
    Terminated,
)
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, attempts, this_output_path
from marin.execution.graph import Graph
from marin.execution.plan import Action
from marin.execution.status import ERROR_NAME, INFO_NAME, STATUS_NAME, Status, read_status, write_status
from marin.storage import lease as lease_module

CALLS: list[str] = []
FAILURES: dict[str, BaseException] = {}


@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    inputs: Any = ()
    rate: float = 0.1
    hf_token: str | None = None
    output_path: str = this_output_path()

    def dry_run_info(self) -> str | None:
        return f"info of {self.label}" if self.label == "c" else None


@dataclasses.dataclass(frozen=True)
class ResumableConfig(Config):
    marin_resumable: ClassVar[bool] = True


def work(config: Config) -> None:
    CALLS.append(config.label)
    path = pathlib.Path(config.output_path, "log.txt")
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{config.label}\n")
    if config.label in FAILURES:
        raise FAILURES[config.label]


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAILURES.clear()


@pytest.fixture
def executor(tmp_path: pathlib.Path) -> Callable[..., Executor]:
    return lambda **options: Executor(ExecutorMainConfig(prefix=str(tmp_path / "store"), **options), "a test")


def step(label: str, *inputs: ExecutorStep, kind: type[Config] = Config, **options: Any) -> ExecutorStep:
    rate = options.pop("rate", 0.1)
    return ExecutorStep(f"steps/{label}", work, kind(label, inputs, rate), **options)


def diamond() -> ExecutorStep:
    a = step("a")
    return step("d", step("b", a), step("c", a))


def kinds(results: dict[Any, Any]) -> dict[str, str]:
    return {node.name[-1]: result.kind for node, result in results.items()}


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


def test_record_of_a_finished_step_says_when_where_and_what_came_out(executor: Any) -> None:
    (node,) = executor().run([step("a")])
    output = pathlib.Path(node.output_path)
    info = json.loads((output / INFO_NAME).read_text())
    assert (info["attempt"], info["output_files"], info["output_bytes"]) == (1, 1, 2)
    content = hashlib.sha256(b"a\n").hexdigest()
    assert info["output_digest"] == hashlib.sha256(f"{content}  log.txt\n".encode()).hexdigest()
    assert info["start_date"] <= info["end_date"]
    assert info["seconds"] >= 0
    assert info["host"] == socket.gethostname()
    assert info["config"]["output_path"] == str(output)
    assert len(info["lock_digest"]) == 64


def test_log_holds_what_a_step_printed_without_the_terminals_control_codes(executor: Any, capsys: Any) -> None:
    (node,) = executor().run([ExecutorStep("chatty", chat, Config("x"))])
    info = json.loads(pathlib.Path(node.output_path, INFO_NAME).read_text())
    assert pathlib.Path(info["log_path"]).read_text() == "hello\nred\nand an error\n"
    assert "\x1b[31mred" in capsys.readouterr().out


def chat(config: Config) -> None:
    print("hello")
    print("\x1b[31mred\x1b[0m")
    print("and an error", file=sys.stderr)


def test_records_say_what_ran_and_hide_secrets(executor: Any, tmp_path: pathlib.Path) -> None:
    a = ExecutorStep("a", work, Config("a", hf_token="hf_abc"), "words")
    first, second = executor().run([step("b", a)])
    info = json.loads(pathlib.Path(second.output_path, INFO_NAME).read_text())
    assert info["dependencies"] == [first.output_path]
    assert info["config"]["inputs"] == [first.output_path]
    assert info["fingerprint"] == second.fingerprint
    assert info["version"]["config"]["config.rate"] == "0.1"
    (record_path,) = (tmp_path / "store" / "experiments").iterdir()
    record = json.loads(record_path.read_text())
    assert {"worker_id", "git_commit", "git_dirty", "caller_path", "created_date", "user", "prefix"} <= set(record)
    assert [item["name"] for item in record["steps"]] == ["a", "steps/b"]
    assert not any(b"hf_abc" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_records_hide_secrets_of_the_environment_and_what_looks_like_one(
    executor: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_STORE_PASSWORD", "correct horse")
    inputs = ("https://me:correct horse@host/data", {"header": "Bearer hf_" + "a" * 34}, "https://host/data")
    (node,) = executor().run([step("a", *inputs)])
    info = json.loads(pathlib.Path(node.output_path, INFO_NAME).read_text())
    assert info["config"]["inputs"] == [
        "https://me:<hidden>@host/data",
        {"header": "Bearer <hidden>"},
        "https://host/data",
    ]
    assert info["version"]["config"]["config.inputs[2]"] == "'https://host/data'"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 3 and not any(b"correct horse" in text or b"a" * 34 in text for text in written)


def test_message_on_a_path_of_another_config_shows_no_secret_and_names_what_differs(executor: Any) -> None:
    def made(**fields: Any) -> ExecutorStep:
        return ExecutorStep("a", work, Config("a", **fields), override_output_path="fixed")

    executor().run([made(hf_token="hf_abc")])
    with pytest.raises(ExecutionError, match=r"`config\.rate` was 0\.1 and is 0\.2") as caught:
        executor().run([made(hf_token="hf_abc", rate=0.2)])
    assert "hf_abc" not in str(caught.value)
    with pytest.raises(ExecutionError, match="such as a token") as caught:
        executor().run([made(hf_token="hf_other")])
    assert "hf_other" not in str(caught.value)


def test_text_that_is_no_utf_8_is_recorded_by_its_escape(executor: Any, tmp_path: pathlib.Path) -> None:
    name = os.fsdecode(b"caf\xe9")  # of a file that was named under another encoding
    (result,) = executor().run([ExecutorStep("odd", chat, Config(name))]).values()
    assert result.kind == "ran"
    records = [*tmp_path.glob("store/odd-*/.executor_info"), *tmp_path.glob("store/experiments/*.json")]
    assert all("caf\\udce9" in record.read_text(encoding="utf-8") for record in records) and len(records) == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("SUCCESS", Status.SUCCESS),
        ("DEP_FAILED\n", Status.DEP_FAILED),
        (
            '{"status": "WAITING"}\n{"date": "x", "status": "RUNNING"}\n{"status": "SUCCESS", "message": null}\n',
            Status.SUCCESS,
        ),
        ('{"status": "RUNNING"}\n{"status": "FAILED"}\n', Status.FAILED),
        ('{"status": "WAITING"}\n', None),
        ("", None),
    ],
)
def test_status_is_read_in_both_forms_of_the_reference(tmp_path: pathlib.Path, content: str, expected: Any) -> None:
    (tmp_path / STATUS_NAME).write_text(content)
    assert read_status(str(tmp_path)) is expected


@pytest.mark.parametrize("content", ["SUCCES", "{", '{"a": 1}', '["SUCCESS"]', "\x00"])
def test_status_that_is_none_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / STATUS_NAME).write_text(content)
    with pytest.raises(ExecutionError, match="is no status"):
        read_status(str(tmp_path))


def test_output_of_the_reference_without_fingerprint_is_served(executor: Any, tmp_path: pathlib.Path) -> None:
    output = tmp_path / "store" / "theirs"
    output.mkdir(parents=True)
    (output / "data").write_text("x")
    (output / INFO_NAME).write_text(json.dumps({"name": "theirs", "version": {"config": {}}}))
    write_status(str(output), Status.SUCCESS)
    assert kinds(executor().run([step("a", override_output_path="theirs")])) == {"a": "skipped"}


@pytest.mark.parametrize("empty", [[INFO_NAME], [STATUS_NAME], [INFO_NAME, STATUS_NAME]])
def test_attempt_whose_records_a_power_failure_emptied_starts_over(
    executor: Any, tmp_path: pathlib.Path, empty: list[str]
) -> None:
    """They are not flushed one by one: a rename can reach the disk before the content does."""
    FAILURES["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        executor().run([step("a")])
    FAILURES.clear()
    for name in empty:
        next(tmp_path.glob(f"store/steps/a-*/{name}")).write_bytes(b"")
    assert kinds(executor().run([step("a")])) == {"a": "ran"}
    assert next(tmp_path.glob("store/steps/a-*/log.txt")).read_text() == "a\n"


def test_resumable_attempt_whose_record_cannot_be_read_is_not_removed(executor: Any, tmp_path: pathlib.Path) -> None:
    FAILURES["a"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        executor().run([step("a", kind=ResumableConfig)])
    FAILURES.clear()
    info = next(tmp_path.glob(f"store/steps/a-*/{INFO_NAME}"))
    content = info.read_bytes()
    info.write_bytes(b"")
    with pytest.raises(ExecutionError, match="is not valid JSON"):
        executor().run([step("a", kind=ResumableConfig)])
    info.write_bytes(content)
    assert kinds(executor().run([step("a", kind=ResumableConfig)])) == {"a": "ran"}
    assert next(tmp_path.glob("store/steps/a-*/log.txt")).read_text() == "a\na\n"


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
