"""Experiment files as people run them: flags, exit statuses, kills and races, each in real processes."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from marin.errors import ConfigError
from marin.execution.attempts import ledger_directory
from marin.execution.flags import ExecutorMainConfig, parse_flags
from marin.storage.lease import read_state

EXPERIMENT = """
import dataclasses, os, pathlib, sys, time
from typing import ClassVar
from marin.execution import ExecutorStep, executor_main, this_output_path

@dataclasses.dataclass(frozen=True)
class Config:
    source: str = ""
    output_path: str = this_output_path()

@dataclasses.dataclass(frozen=True)
class SlowConfig(Config):
    marin_resumable: ClassVar[bool] = True

def make(config):
    with open(os.environ["RAN"], "a") as log:
        log.write("make\\n")
    while "MAKE_UNTIL" in os.environ and not os.path.exists(os.environ["MAKE_UNTIL"]):
        time.sleep(0.02)
    print("made")
    pathlib.Path(config.output_path, "data").write_text("whole")

def slow(config):
    done = pathlib.Path(config.output_path, "done")
    start = len(done.read_text()) if done.exists() else 0
    assert pathlib.Path(config.source).read_text() == "whole"
    with open(os.environ["RAN"], "a") as log:
        log.write(f"slow from {start}\\n")
    for index in range(start, 10):
        with open(done, "a") as stream:
            stream.write(str(index))
        print(index, "\u2260")
        time.sleep(float(os.environ.get("SLOW_SECONDS", "0")))
        while str(index) == os.environ.get("SLOW_STAYS_AT"):
            time.sleep(0.02)

MAKE = ExecutorStep("make", make, Config())
SLOW = ExecutorStep("slow", slow, SlowConfig(MAKE / "data"))
if __name__ == "__main__":
    executor_main(steps=[SLOW])
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Experiment:
    """The experiment file in a directory of its own."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.store = directory / "store"
        self.log = directory / "ran"
        self.log.touch()
        (directory / "main.py").write_text(EXPERIMENT)

    def start(self, *flags: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "main.py", "--prefix", "store", *flags],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(pathlib.Path.cwd()), "RAN": str(self.log), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *flags: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*flags, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.log.read_text())

    def only(self, pattern: str) -> pathlib.Path:
        (path,) = self.store.glob(pattern)
        return path


@pytest.fixture
def experiment(tmp_path: pathlib.Path) -> Experiment:
    return Experiment(tmp_path)


def test_dry_run_writes_nothing_and_imports_nothing_heavy(experiment: Experiment) -> None:
    code, out, err = experiment.run("--dry_run", "true", PYTHONVERBOSE="1")
    assert code == 0
    assert out.count("would run") == 3
    assert sorted(os.listdir(experiment.directory)) == ["main.py", "ran"]
    imported = {line.split()[1].strip("'") for line in err.splitlines() if line.startswith("import ")}
    assert "marin.execution.executor" in imported
    assert not imported & {"jax", "numpy", "rich", "fsspec"}


def test_dry_run_whose_reader_leaves_ends_in_silence(experiment: Experiment) -> None:
    with experiment.start("--dry_run", "true") as process:
        process.stdout.close()  # as `| head` does
        assert process.stderr.read() == "" and process.wait(60) == 0


@pytest.mark.parametrize("concurrent", ["1", "2"])
def test_run_whose_reader_leaves_goes_on_to_its_end(experiment: Experiment, concurrent: str) -> None:
    with experiment.start("--max_concurrent", concurrent, SLOW_SECONDS="0.02") as process:
        process.stdout.close()  # as `| tee` does when it is killed
        assert process.stderr.read() == "" and process.wait(60) == 0
    output = experiment.only("slow-*")
    assert (output / ".executor_status").read_text() == "SUCCESS\n"
    assert (output / ".executor_log.txt").read_text().count("\u2260") == 10


def test_run_on_a_terminal_of_few_characters_prints_the_others_as_escapes(experiment: Experiment) -> None:
    code, out, err = experiment.run(PYTHONIOENCODING="ascii")
    assert code == 0, err
    assert "9 \\u2260" in out
    assert "9 \u2260" in (experiment.only("slow-*") / ".executor_log.txt").read_text()


def test_run_killed_in_a_step_continues_where_it_was(experiment: Experiment) -> None:
    process = experiment.start(SLOW_STAYS_AT="2")
    experiment.wait_for("slow from 0")
    done = experiment.only("slow-*/") / "done"
    wait_until(lambda: done.exists() and len(done.read_text()) == 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (done.parent / ".executor_status").read_text() == "RUNNING\n"
    code, out, err = experiment.run()
    assert (code, err) == (0, "")
    assert "interrupted; continues" in out
    assert experiment.log.read_text().splitlines() == ["make", "slow from 0", "slow from 3"]
    assert done.read_text() == "0123456789"


def test_run_killed_before_a_step_is_whole_makes_it_again(experiment: Experiment) -> None:
    process = experiment.start(MAKE_UNTIL="never")
    experiment.wait_for("make")
    (experiment.only("make-*/") / "data").write_text("ha")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, _, _ = experiment.run()
    assert code == 0
    assert experiment.log.read_text().splitlines() == ["make", "make", "slow from 0"]
    assert (experiment.only("make-*/") / "data").read_text() == "whole"


@pytest.mark.parametrize(("signal_number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_interrupted_exits_cleanly_and_releases_its_lease(
    experiment: Experiment, signal_number: int, expected: int
) -> None:
    process = experiment.start(SLOW_STAYS_AT="0")
    experiment.wait_for("slow from 0")
    process.send_signal(signal_number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == expected
    assert "run the same command again to continue" in err
    assert "Traceback" not in err
    state = read_state(ledger_directory(str(experiment.only("slow-*"))))
    assert state is not None
    assert state.kind == "release"
    assert experiment.run()[0] == 0


def test_two_processes_on_one_prefix_run_each_step_once(experiment: Experiment) -> None:
    first = experiment.start(MAKE_UNTIL="now")
    experiment.wait_for("make")
    second = experiment.start(MAKE_UNTIL="now")
    assert second.stdout is not None
    for line in second.stdout:
        if "waiting for" in line:
            break
    (experiment.directory / "now").touch()
    printed = [process.communicate(timeout=60) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), printed
    assert experiment.log.read_text().splitlines() == ["make", "slow from 0"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dry_run", "maybe"], "'maybe' is neither true nor false"),
        (["--no_such_flag"], "--no_such_flag"),
        (["--max_concurrent", "0"], "at least 1"),
        (["--max_concurrent", "two"], "'two' is no whole number"),
        (["--run_only", "["], "no regular expression"),
        (["--run_only", ""], "is blank"),
        (["--run_only", "[train]"], r"""write '\["train"\]'"""),  # as a regular expression it is nearly every name
        (["--run_only", "['train/b', 'c']"], r"""write '\["train/b", "c"\]'"""),
        (["--prefix"], "expected one argument"),
    ],
)
def test_flags_that_are_wrong_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_flags(flags)


def test_flags_in_every_spelling_are_read() -> None:
    assert parse_flags([]) == ExecutorMainConfig(force_run_failed=True)
    assert parse_flags(["--dry-run", "--force-run-failed", "NO", "--run_only", '["a", "b"]']) == ExecutorMainConfig(
        dry_run=True, force_run_failed=False, run_only=("a", "b")
    )
    assert parse_flags(["--run_only", "[ab]", "--max-concurrent=3"]).run_only == ("[ab]",)
    assert parse_flags(["--run_only", "[0-9]"]).run_only == ("[0-9]",)
    assert parse_flags(["--executor_info_base_path", "x"]).executor_info_base_path == "x"


def test_main_with_a_wrong_flag_exits_2_with_one_line(experiment: Experiment) -> None:
    code, out, err = experiment.run("--nope")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_main_with_a_prefix_that_cannot_be_written_exits_2_with_the_next_step(experiment: Experiment) -> None:
    code, _, err = experiment.run("--prefix", "main.py/store")
    assert code == 2
    assert "choose another --prefix" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("settings", [{}, {"diff.noprefix": "true", "color.ui": "always", "diff.external": "false"}])
def test_recorded_diff_restores_the_tree_whatever_the_changed_files_hold(
    experiment: Experiment, settings: dict[str, str]
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "core.autocrlf=false"]
        subprocess.run(["git", *identity, *arguments], cwd=experiment.directory, check=True, capture_output=True)

    before = {
        "latin.txt": b"caf\xe9\n",
        "crlf.txt": b"one\r\ntwo\r\n",
        "blank.txt": b"one\ntwo\n\n\n\n",
        "weights": b"\0\1\2",
    }
    after = {
        "latin.txt": b"cr\xe8me\n",
        "crlf.txt": b"one\r\nTWO\r\n",
        "blank.txt": b"ONE\ntwo\n\n\n\n",
        "weights": b"\0\1\3",
    }
    for name, content in before.items():
        (experiment.directory / name).write_bytes(content)
    git("init", "--quiet")
    for setting, value in settings.items():
        git("config", setting, value)
    git("add", *before)
    git("commit", "--quiet", "--message", "begin")
    for name, content in after.items():
        (experiment.directory / name).write_bytes(content)
    code, _, err = experiment.run()
    assert code == 0, err
    git("checkout", "--quiet", ".")
    git("apply", str(experiment.only("make-*/.executor_diff.patch")))
    assert {name: (experiment.directory / name).read_bytes() for name in after} == after


def test_main_writes_its_record_where_it_is_told(experiment: Experiment) -> None:
    assert experiment.run("--executor_info_base_path", str(experiment.directory / "records"))[0] == 0
    (record,) = (experiment.directory / "records").glob("main-*.json")
    assert [step["name"] for step in json.loads(record.read_text())["steps"]] == ["make", "slow"]


def test_main_writes_its_record_below_the_home_directory_and_says_which_flag_was_wrong(
    experiment: Experiment, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves `--flag=~/x` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert experiment.run("--executor_info_base_path=~/records")[0] == 0
    assert len(list((tmp_path / "home" / "records").glob("main-*.json"))) == 1
    assert not (experiment.directory / "~").exists()
    (tmp_path / "file").touch()
    code, _, err = experiment.run("--prefix", str(tmp_path / "other"), f"--executor_info_base_path={tmp_path / 'file'}")
    assert code == 2 and "choose another --executor_info_base_path" in err


@pytest.mark.parametrize("typed", [["-m", "ideas.mine.main"], ["ideas/mine/main.py"]])
def test_help_names_the_command_as_it_was_typed(tmp_path: pathlib.Path, typed: list[str]) -> None:
    (tmp_path / "ideas" / "mine").mkdir(parents=True)
    (tmp_path / "ideas" / "mine" / "main.py").write_text(EXPERIMENT)
    done = subprocess.run(
        [sys.executable, *typed, "--help"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(pathlib.Path.cwd())}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: python {' '.join(typed)} [FLAGS]\n\n")
