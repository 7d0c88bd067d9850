"""Steps whose outputs lie on a store without renames, and steps that make links to their own files."""

import dataclasses
import os
import pathlib
from typing import Any, ClassVar

import pytest

from marin.errors import ExecutionError
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, attempts, this_output_path
from marin.storage import files

CALLS: list[str] = []
FAILURES: dict[str, BaseException] = {}


@dataclasses.dataclass(frozen=True)
class RemoteConfig:
    source: Any = None
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class ResumableRemoteConfig(RemoteConfig):
    marin_resumable: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()
    FAILURES.clear()


def write_remotely(config: RemoteConfig) -> None:
    content = files.read_bytes(config.source) * 2 if config.source else b"first"
    files.write_bytes(files.join(config.output_path, "data"), content)


def test_run_on_a_memory_store_commits_and_is_read_where_it_lies(tmp_path: pathlib.Path) -> None:
    executor = Executor(ExecutorMainConfig(prefix=f"memory://{tmp_path}"))
    first = ExecutorStep("first", write_remotely, RemoteConfig())
    second = ExecutorStep("second", write_remotely, RemoteConfig(first / "data"))
    assert [result.kind for result in executor.run([second]).values()] == ["ran", "ran"]
    assert [result.kind for result in executor.run([second]).values()] == ["skipped", "skipped"]
    place = attempts.location(executor.output_path(second))
    assert files.read_bytes(files.join(place, "data")) == b"firstfirst"


def test_step_that_was_renamed_is_served_from_its_earlier_path_where_that_is_given(tmp_path: pathlib.Path) -> None:
    executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))
    (earlier,) = executor.run([ExecutorStep("old", write_remotely, RemoteConfig())])
    renamed = ExecutorStep("new", write_remotely, RemoteConfig(), override_output_path=earlier.output_path)
    assert [result.kind for result in executor.run([renamed]).values()] == ["skipped"]


def test_output_removed_by_hand_from_a_memory_store_is_made_again(tmp_path: pathlib.Path) -> None:
    executor = Executor(ExecutorMainConfig(prefix=f"memory://{tmp_path}"))
    one = ExecutorStep("one", write_remotely_until_stopped, RemoteConfig())
    for times in (1, 2, 3):
        assert [(result.kind, result.reason) for result in executor.run([one]).values()] == [("ran", "never ran")]
        assert len(set(CALLS)) == times
        assert [result.kind for result in executor.run([one]).values()] == ["skipped"]
        assert attempts.location(executor.output_path(one)) == CALLS[-1]
        files.remove_tree(executor.output_path(one))


def test_overridden_path_on_a_memory_store_takes_another_config_once_it_is_removed(tmp_path: pathlib.Path) -> None:
    executor = Executor(ExecutorMainConfig(prefix=f"memory://{tmp_path}"))
    files.write_bytes(f"memory://{tmp_path}/source", b"other")
    first, second = (
        ExecutorStep("one", write_remotely, RemoteConfig(source), override_output_path="fixed")
        for source in (None, f"memory://{tmp_path}/source")
    )
    executor.run([first])
    with pytest.raises(ExecutionError, match="remove that directory to make it again"):
        executor.run([second])
    files.remove_tree(executor.output_path(second))
    assert [result.kind for result in executor.run([second]).values()] == ["ran"]
    place = attempts.location(executor.output_path(second))
    assert files.read_bytes(files.join(place, "data")) == b"otherother"


@pytest.mark.parametrize("done", ["nothing", "info", "commit"])
def test_kill_while_an_output_is_made_known_on_a_memory_store_loses_no_commit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, done: str
) -> None:
    executor = Executor(ExecutorMainConfig(prefix=f"memory://{tmp_path}"))
    one = ExecutorStep("one", write_remotely_until_stopped, RemoteConfig())

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    if done == "commit":
        monkeypatch.setattr(attempts, "write_status", die)
    else:
        monkeypatch.setattr(attempts, "files", _Without("write_bytes" if done == "nothing" else "write_json", die))
    with pytest.raises(KeyboardInterrupt):
        executor.run([one])
    monkeypatch.undo()
    executor.run([one])
    assert len(CALLS) == 1
    assert attempts.location(executor.output_path(one)) == CALLS[0]


class _Without:
    """`files`, but for one of its functions."""

    def __init__(self, name: str, function: Any) -> None:
        self._name, self._function = name, function

    def __getattr__(self, name: str) -> Any:
        return self._function if name == self._name else getattr(files, name)


def write_remotely_until_stopped(config: RemoteConfig) -> None:
    CALLS.append(config.output_path)
    assert not files.exists(files.join(config.output_path, "data"))
    write_remotely(config)
    if FAILURES:
        raise FAILURES["remote"]


def test_interrupted_step_on_a_memory_store_starts_over_says_so_and_leaves_one_attempt(
    tmp_path: pathlib.Path, capsys: Any
) -> None:
    """Objects cannot be renamed, so a resumable step does not go on there."""
    executor = Executor(ExecutorMainConfig(prefix=f"memory://{tmp_path}"))
    one = ExecutorStep("one", write_remotely_until_stopped, ResumableRemoteConfig())
    FAILURES["remote"] = KeyboardInterrupt()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            executor.run([one])
    FAILURES.clear()
    assert [result.reason for result in executor.run([one]).values()] == ["interrupted; starts over"]
    assert "continues" not in capsys.readouterr().out
    first, second, last = CALLS
    assert attempts.location(executor.output_path(one)) == last
    assert files.files_below(first) == files.files_below(second) == []
    assert files.exists(files.join(last, "data"))


def link_to_own_places(config: RemoteConfig) -> None:
    own = pathlib.Path(config.output_path)
    if (own / "weights").is_symlink():
        assert (own / "weights").read_text() == "w"
        return
    (own / "checkpoints" / "100").mkdir(parents=True)
    (own / "checkpoints" / "100" / "weights").write_text("w")
    (own / "checkpoints" / "latest").symlink_to(own / "checkpoints" / "100")
    (own / "weights").symlink_to(own / "checkpoints" / "latest" / "weights")
    (own / "resolved").symlink_to(own.resolve() / "checkpoints")
    (own / "elsewhere").symlink_to("/etc/hostname")
    if FAILURES:
        raise FAILURES["linking"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_links_of_a_step_to_its_own_files_lead_there_when_it_is_committed(
    tmp_path: pathlib.Path, interrupted: bool
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to("disk")
    executor = Executor(ExecutorMainConfig(prefix=str(tmp_path / "store")))
    linking = ExecutorStep("linking", link_to_own_places, ResumableRemoteConfig())
    if interrupted:
        FAILURES["linking"] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            executor.run([linking])
        FAILURES.clear()
    executor.run([linking])
    output = pathlib.Path(executor.output_path(linking))
    assert (output / "resolved" / "100" / "weights").read_text() == "w"
    assert not output.is_symlink()
    assert (output / "weights").read_text() == (output / "checkpoints" / "latest" / "weights").read_text() == "w"
    assert os.readlink(output / "elsewhere") == "/etc/hostname"
