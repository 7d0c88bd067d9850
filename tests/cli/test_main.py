"""The `marin` command itself: help, version, unknown commands, and how fast it starts."""

import importlib
import os
import pathlib
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

import pytest

import marin as package
from marin.cli.main import COMMANDS

Marin = Callable[..., subprocess.CompletedProcess[str]]


def test_help_lists_every_command_with_its_line(marin: Marin) -> None:
    done = marin("--help", COLUMNS="120")
    assert done.returncode == 0
    for name, line in COMMANDS.items():
        assert any(row.split()[:1] == [name] and row.endswith(line) for row in done.stdout.splitlines())
    assert marin(COLUMNS="120").stdout == done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_command_in_the_table_has_the_three_parts_and_its_own_help(name: str, marin: Marin) -> None:
    module = importlib.import_module(f"marin.cli.{name}")
    assert module.HELP and callable(module.add_arguments) and callable(module.run)
    done = marin(name, "--help")
    assert done.returncode == 0 and f"marin {name}" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80  # what the environment of these tests has for COLUMNS


def test_version_is_the_package_version(marin: Marin) -> None:
    assert marin("--version").stdout.strip() == f"marin {package.__version__}"


@pytest.mark.parametrize("module", ["marin", "marin.cli.main"])
def test_the_command_is_run_under_each_of_its_modules_names(module: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", module, "serve", "no-such-run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: "), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("docter", "marin doctor"), ("initialise", "marin init"), ("xyzzy", "doctor")]
)
def test_unknown_command_names_the_closest_and_exits_2(typed: str, meant: str, marin: Marin) -> None:
    done = marin(typed)
    assert done.returncode == 2
    assert meant in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["power"], ["models", "list", "--nope"], ["experiment", "new"]])
def test_wrong_flags_end_in_one_line(arguments: list[str], marin: Marin) -> None:
    done = marin(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.endswith("; --help lists the flags\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("leaderboard --resultsdir runs --output site", "no flag `--resultsdir`, but there is `--results-dir`"),
        ("leaderboard --xyzzy=1", "no flag `--xyzzy`;"),
        ("models publish DIR a/b --dryrun", "no flag `--dryrun`, but there is `--dry-run`"),
        ("datashop --prot 1", "no flag `--prot`, but there is `--port`"),
        ("leaderboard biuld --output site", "invalid choice: 'biuld'"),
        ("datashop run --help-me", "the following arguments are required"),  # flags after `run` are the experiment's
    ],
)
def test_misspelt_flag_is_named_with_the_closest_one_and_not_what_follows_it(
    typed: str, said: str, marin: Marin
) -> None:
    assert said in marin(*typed.split()).stderr


@pytest.mark.parametrize("statement", ["import marin", "import marin.cli.main as m; m.dispatch(['--help'])"])
def test_start_imports_no_heavy_package_and_takes_under_300_ms(statement: str) -> None:
    heavy = (
        "jax",
        "numpy",
        "rich",
        "pydantic",
        "fsspec",
        "marin.cli.init",
        "marin.cli.doctor",
        "marin.cli.leaderboard",
    )
    wrapped = f"import sys\ntry:\n    exec({statement!r})\nexcept SystemExit:\n    pass\n"
    code = f"{wrapped}print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Processor time: it is what the wall time is on a machine with nothing else to do.
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert done.stderr.strip() == "[]"
    assert statistics.median(seconds) < 0.3


@pytest.mark.parametrize("arguments", [["--help"], ["init", "idea"]])
def test_output_to_a_reader_that_has_stopped_ends_quietly(
    arguments: list[str], clone: pathlib.Path, environment: dict[str, str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "marin", *arguments],
        cwd=clone, env=environment, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.stderr == ""
