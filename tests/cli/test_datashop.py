"""`marin datashop`: the page's flags are not taken silently where a config is run."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import pytest

from marin.cli import datashop
from marin.cli.main import dispatch
from marin.errors import ConfigError
from marin.execution import provenance


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (["--prefix", "store"], "put it after CONFIG, as in `marin datashop run wish.py --prefix store`"),
        (["--prefix", ""], "put it after CONFIG"),
        (["--port", str(datashop.DEFAULT_PORT)], "`--port` and `--data` are the page's"),
        (["--data", "texts"], "`--port` and `--data` are the page's"),
    ],
)
def test_flags_of_the_page_before_run_are_refused(before: list[str], message: str) -> None:
    parser = argparse.ArgumentParser(prog="marin datashop")
    datashop.add_arguments(parser)
    with pytest.raises(ConfigError) as refused:
        datashop.run(parser.parse_args([*before, "run", "wish.py", "--dry_run"]))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "command"),
    [(["wish.py"], "run wish.py"), (["experiments.datashop.graph_docs"], "run experiments.datashop.graph_docs"),
     (["--port", "0", "./my wish.py", "--dry_run"], "run './my wish.py' --dry_run")],
)  # fmt: skip
def test_config_without_run_is_answered_with_the_command_that_runs_it(typed: list[str], command: str) -> None:
    with pytest.raises(ConfigError) as refused:
        dispatch(["datashop", *typed])
    assert f"use `marin datashop {command}`" in str(refused.value)


def test_flag_that_there_is_not_is_named_before_a_file_behind_it() -> None:
    with pytest.raises(ConfigError, match="there is no flag `--prefx`, but there is `--prefix`"):
        dispatch(["datashop", "--prefx", "my/store", "run", "wish.py"])


def test_run_without_a_config_names_only_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="marin datashop")
    datashop.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["run"])
    assert capsys.readouterr().err.strip().endswith("required: CONFIG")


@pytest.mark.parametrize("name", [".", "..", "experiments/datashop", "no_such_module"])
def test_config_that_is_no_file_and_no_module_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no .py file and no module: give a file"):
        datashop.steps_of(name)


def test_config_with_the_name_of_a_module_of_python_is_refused(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "copy.py"
    config.write_text("raise AssertionError('was run')\n")
    with pytest.raises(ConfigError, match=r"give it another one, such as my_copy\.py"):
        datashop.steps_of(str(config))


def test_config_that_is_no_text_is_refused_by_its_name(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "packed.py"
    config.write_bytes(bytes(9))
    with pytest.raises(ConfigError, match=r"SyntaxError in \S*packed\.py: source code .* null bytes; `python"):
        datashop.steps_of(str(config))


def test_help_behind_a_config_names_the_command_that_was_typed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "my wish.py"
    config.write_text(
        "from marin.execution.step import ExecutorStep\n"
        "def work(config): pass\n"
        "steps = [ExecutorStep('nothing', work, {'seed': 1})]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    with pytest.raises(SystemExit):
        dispatch(["datashop", "run", "my wish.py", "--help"])
    assert capsys.readouterr().out.startswith("usage: marin datashop run 'my wish.py' [FLAGS]\n")
    assert provenance.script.get() is None  # or whatever this process ran next would be recorded as that config's


def test_record_of_a_run_names_its_config_and_the_commit_of_that(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "my_wish.py"
    config.write_text(
        "from marin.execution import ExecutorStep\n"
        "def work(config): pass\n"
        "steps = [ExecutorStep('nothing', work, {'seed': 1})]\n"
    )

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, text=True, capture_output=True
        ).stdout

    git("init", "--quiet")
    git("add", config.name)
    git("commit", "--quiet", "--message", "begin")
    command = [sys.executable, "-m", "marin", "datashop", "run", config.name, "--prefix", "store"]
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path.cwd())}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    (record,) = tmp_path.glob("store/experiments/my_wish-*.json")
    found = json.loads(record.read_text())
    assert (found["caller_path"], found["git_commit"]) == (str(config), git("rev-parse", "HEAD").strip())
