"""What `marin submit` says of slips that a person makes before anything is pushed."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
from forgeries.honest import Plan
from submission_place import Place

from marin.cli import slips
from marin.speedrun.results import Author, RunInfo, dump_results, load_results

GIT = shutil.which("git", path=os.defpath)


@pytest.fixture
def git(place: Place, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Git in the place's clone, whose user is Ada."""
    if GIT is None:
        pytest.skip("no git")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "git").symlink_to(GIT)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))

    def run(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=place.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    for key, value in (("user.name", "Ada Example"), ("user.email", "ada@example.org"), ("commit.gpgsign", "false")):
        run("config", key, value)
    run("add", ".")
    run("commit", "--quiet", "-m", "begun")
    return run


def _said(place: Place, info: RunInfo, *run_names: str) -> str:
    return " ".join(slips.slips(place.root, place.directory, [info], run_names))


def _info(place: Place, **changes: object) -> RunInfo:
    (run,) = place.add_runs(Plan())
    return load_results(run / "speedrun_results.json")[0].model_copy(update=changes)


def test_experiment_that_changed_since_its_run_is_named(place: Place, git):
    info = _info(place, git_commit=git("rev-parse", "HEAD"), git_dirty=False)
    assert _said(place, info) == ""
    (place.directory / "main.py").write_text("changed = True\n")
    (place.directory / "model.py").write_text("new = True\n")
    assert f"main.py, model.py are not what the run's commit {info.git_commit[:12]} has" in _said(place, info)
    git("add", ".")
    git("commit", "--quiet", "-m", "changed")
    assert "main.py, model.py are not what" in _said(place, info)
    assert "was made with uncommitted changes" in _said(place, info.model_copy(update={"git_dirty": True}))


def test_commit_that_is_not_pushed_with_the_submission_is_named(place: Place, git):
    git("commit", "--quiet", "--allow-empty", "-m", "lost")
    info = _info(place, git_commit=git("rev-parse", "HEAD"), git_dirty=False)
    git("reset", "--quiet", "--hard", "HEAD~1")
    assert "is not part of this branch" in _said(place, info)
    assert "is not part of this branch" in _said(place, info.model_copy(update={"git_commit": "0" * 40}))


def test_author_of_another_submission_whom_git_does_not_know_is_asked_about(place: Place, git):
    copied = _info(place, git_commit=None, author=Author(name="Grace Other", affiliation=""))
    assert "the author is 'Grace Other', as of other, and git knows you as 'Ada Example'" in _said(place, copied)
    git("config", "user.name", "Grace Other")
    assert _said(place, copied) == ""


@pytest.mark.parametrize("gathered", [True, False])
def test_results_in_the_directory_of_another_experiment_are_noticed(place: Place, capsys, gathered: bool):
    (run,) = place.add_runs(Plan())
    wrong = place.directory.with_name("wrong")
    wrong.mkdir()
    (wrong / "main.py").touch()
    flags = ["--run", str(run)] if gathered else []
    if not gathered:
        shutil.copy(run / "speedrun_results.json", wrong)
    place.directory, example = wrong, place.directory
    assert place.submit(*flags) == 0
    said = capsys.readouterr().out
    assert "the run 'example' is by its name one of example, not of wrong" in said
    assert gathered or "open: no log is given" in said
    place.directory = example
    assert place.submit("--run", str(run)) == 1  # it counts once
    assert "is by its name" not in capsys.readouterr().out


@pytest.mark.parametrize("description", ["TODO: what is new", "__SUBMISSION_DESCRIPTION__ (130m)"])
def test_description_that_was_not_written_is_put_right_as_the_message_says(place: Place, capsys, description: str):
    place.add_runs(Plan(description=description))
    assert place.submit() == 1
    assert "description is still the placeholder" in (said := capsys.readouterr().out)
    assert "run that again, which trains nothing if only this changed, or give marin submit --description" in said
    assert place.submit("--description", "Wider and shallower.") == 0


def test_affiliation_that_was_not_filled_in_is_put_right_under_the_same_name(place: Place, capsys):
    (run,) = place.add_runs(Plan())
    path = run / "speedrun_results.json"
    content = json.loads(path.read_text())
    content["runs"][0]["run_info"]["author"]["affiliation"] = "Your Affiliation"
    path.write_bytes(dump_results([RunInfo.model_validate(content["runs"][0]["run_info"])]))
    assert place.submit() == 1
    assert "give marin submit --author and --affiliation" in capsys.readouterr().out
    assert place.submit("--author", "Ada Example", "--affiliation", "Independent") == 0
