"""`marin init`: the file that it makes, where its values come from, and what it refuses."""

import ast
import pathlib
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marin as package
from marin.cli import starter
from marin.errors import ConfigError

Marin = Callable[..., subprocess.CompletedProcess[str]]
TEMPLATE = pathlib.Path(__file__).with_name("starter_template.txt").read_text()


def _evaluated(path: pathlib.Path) -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
    return namespace


def test_init_fills_the_author_from_git_and_says_what_is_left(marin: Marin, clone: pathlib.Path) -> None:
    done = marin("init", "my_idea", "--affiliation", "Analytical Society")
    assert (done.returncode, done.stderr) == (0, "")
    made = clone / "experiments" / "speedrun" / "my_idea"
    assert sorted(path.name for path in made.iterdir()) == ["__init__.py", "main.py"]
    namespace = _evaluated(made / "main.py")
    assert namespace["AUTHOR"] == {
        "name": "Ada Lovelace",
        "affiliation": "Analytical Society",
        "url": "https://github.com/ada",
    }
    assert namespace["__doc__"] == "Run it with `python -m experiments.speedrun.my_idea.main`."
    line = (made / "main.py").read_text().splitlines().index('DESCRIPTION = f"__SUBMISSION_DESCRIPTION__ ({size})"') + 1
    assert f"line {line}" in done.stdout and "left for you to fill" in done.stdout
    assert "python -m experiments.speedrun.my_idea.main --dry_run true --prefix local_store" in done.stdout
    assert "marin submit experiments/speedrun/my_idea --prefix local_store" in done.stdout


def test_init_with_every_flag_leaves_nothing_open(marin: Marin, clone: pathlib.Path) -> None:
    name = 'Sinéad "O\'Brien" \\ {size} # __SUBMISSION_BRANCH__'
    flags = (
        "--author-name",
        name,
        "--affiliation",
        "A",
        "--url",
        "https://example.org/a?b=c",
        "--description",
        "{1/0}'\"",
    )
    assert marin("init", "idea", *flags).returncode == 0
    namespace = _evaluated(clone / "experiments" / "speedrun" / "idea" / "main.py")
    assert namespace["AUTHOR"] == {"name": name, "affiliation": "A", "url": "https://example.org/a?b=c"}
    assert namespace["DESCRIPTION"] == "{1/0}'\" (130m)"


def test_init_without_git_identity_writes_none_as_url_and_keeps_the_name_open(
    marin: Marin, clone: pathlib.Path, environment: dict[str, str]
) -> None:
    (pathlib.Path(environment["HOME"]) / ".gitconfig").unlink()
    done = marin("init", "idea")
    author = _evaluated(clone / "experiments" / "speedrun" / "idea" / "main.py")["AUTHOR"]
    assert author == {"name": "__SUBMISSION_AUTHOR_NAME__", "affiliation": "Independent", "url": None}
    assert done.stdout.count("left for you to fill") == 2


def test_init_turns_dashes_into_underscores_and_says_so(marin: Marin, clone: pathlib.Path) -> None:
    done = marin("init", "my-idea")
    assert "my_idea" in done.stderr and (clone / "experiments" / "speedrun" / "my_idea" / "main.py").exists()


@pytest.mark.parametrize("name", ["1st", "a b", "../evil", "a.b", "class", "", "_", "é", "x" * 65])
def test_init_with_a_name_that_python_cannot_import_is_refused(name: str, marin: Marin, clone: pathlib.Path) -> None:
    done = marin("init", name)
    assert done.returncode == 2 and done.stderr.startswith("error: NAME") and "Traceback" not in done.stderr
    assert not any((clone / "experiments" / "speedrun").iterdir())


@pytest.mark.parametrize(
    "flags",
    [("--url", "javascript:alert(1)"), ("--url", "me"), ("--author-name", " "), ("--author-name", "__SUBMISSION_AUTHOR_NAME__"),
     ("--template", "absent.py"), ("--author-name", "\udcff")],
)  # fmt: skip
def test_init_with_a_value_that_cannot_work_says_which(
    flags: tuple[str, str], marin: Marin, clone: pathlib.Path
) -> None:
    done = marin("init", "idea", *flags)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert flags[0] in done.stderr
    assert not any((clone / "experiments" / "speedrun").iterdir())


def test_init_of_an_existing_name_is_refused_and_force_keeps_the_old_file(marin: Marin, clone: pathlib.Path) -> None:
    marin("init", "idea")
    made = clone / "experiments" / "speedrun" / "idea"
    made.joinpath("main.py").write_text("mine = 1\n")
    refused = marin("init", "idea")
    assert refused.returncode == 2 and "--force" in refused.stderr
    assert made.joinpath("main.py").read_text() == "mine = 1\n"
    assert marin("init", "idea", "--force").returncode == 0
    assert made.joinpath("main.py.bak").read_text() == "mine = 1\n"
    assert "Ada Lovelace" in made.joinpath("main.py").read_text()


def test_init_in_a_directory_made_by_hand_fills_it(marin: Marin, clone: pathlib.Path) -> None:
    (clone / "experiments" / "speedrun" / "idea").mkdir()
    assert marin("init", "idea").returncode == 0


def test_init_below_the_root_finds_the_clone(marin: Marin, clone: pathlib.Path) -> None:
    assert marin("init", "idea", cwd=clone / "experiments" / "speedrun").returncode == 0
    assert (clone / "experiments" / "speedrun" / "idea" / "main.py").exists()


def test_init_outside_any_clone_says_what_to_do(tmp_path: pathlib.Path, environment: dict[str, str]) -> None:
    copied = tmp_path / "site-packages" / "marin"
    shutil.copytree(pathlib.Path(package.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", "from marin.cli.main import main; main()", "init", "idea"], stdin=subprocess.DEVNULL,
        cwd=environment["HOME"], env={**environment, "PYTHONPATH": str(copied.parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "git clone" in done.stderr


def test_init_where_nothing_can_be_written_says_so(marin: Marin, clone: pathlib.Path) -> None:
    (clone / "experiments" / "speedrun").rmdir()
    (clone / "experiments" / "speedrun").write_text("a file is in the way")
    done = marin("init", "idea")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "choose another clone" in done.stderr and "--prefix" not in done.stderr


def test_init_with_a_template_that_needs_no_filling_copies_it(marin: Marin, clone: pathlib.Path) -> None:
    (clone / "plain.py").write_text("x = 1\n")
    marin("init", "idea", "--template", "plain.py")
    made = clone / "experiments" / "speedrun" / "idea" / "main.py"
    assert made.read_text() == "x = 1\n"
    assert stat.S_IMODE(made.stat().st_mode) & stat.S_IRUSR


_FIELDS = st.sampled_from([starter.AUTHOR_NAME, starter.AFFILIATION, starter.DESCRIPTION])


@settings(max_examples=60)
@given(st.dictionaries(_FIELDS, st.text(st.characters(codec="utf-8"), max_size=40)))
def test_fill_template_with_any_text_yields_exactly_that_text(values: dict[str, str]) -> None:
    namespace: dict[str, object] = {}
    exec(starter.fill_template(TEMPLATE, {starter.URL: None, **values}, "template"), namespace)
    assert namespace["AUTHOR"] == {
        "name": values.get(starter.AUTHOR_NAME, starter.AUTHOR_NAME),
        "affiliation": values.get(starter.AFFILIATION, starter.AFFILIATION),
        "url": None,
    }
    assert namespace["DESCRIPTION"] == values.get(starter.DESCRIPTION, starter.DESCRIPTION) + " (130m)"


@pytest.mark.parametrize("source", ["x = __SUBMISSION_AUTHOR_NAME__", 'x = r"__SUBMISSION_AUTHOR_NAME__"', "x = ("])
def test_fill_template_where_text_could_become_code_refuses(source: str) -> None:
    with pytest.raises(ConfigError, match="template"):
        starter.fill_template(source, {starter.AUTHOR_NAME: '"; import os; "\\'}, "t.py")


def test_fill_template_in_single_quotes_escapes_them() -> None:
    filled = starter.fill_template("x = '__SUBMISSION_AUTHOR_NAME__'", {starter.AUTHOR_NAME: 'O\'Brien "A"'}, "t.py")
    assert ast.literal_eval(filled.removeprefix("x = ")) == 'O\'Brien "A"'
