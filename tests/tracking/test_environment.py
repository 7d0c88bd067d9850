"""What a record says of the code: which loaded files are not those of the commit, whatever git was told to say."""

import importlib.util
import os
import random
import shutil
import subprocess
import sys

import pytest

from marin.execution import provenance
from marin.tracking import environment
from marin.tracking.environment import loaded_unlike

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")
TEXT = "VALUE = 1\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A clone whose module `pkg.model` is loaded, and git in it."""

    def git(*arguments):
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text(TEXT)
    (tmp_path / ".gitignore").write_text("helper.py\nlib/\n")
    git("add", ".")
    git("commit", "-qm", "x")
    _load(monkeypatch, "pkg_model", tmp_path / "pkg" / "model.py")
    return tmp_path, git


def _load(monkeypatch, name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))


def test_files_as_committed_are_none(checkout, monkeypatch):
    folder, git = checkout
    package = folder / "lib" / "site-packages" / "other.py"  # an environment that lies in the clone
    package.parent.mkdir(parents=True)
    package.write_text(TEXT)
    _load(monkeypatch, "other", package)
    assert loaded_unlike(folder / "pkg", git("rev-parse", "HEAD")) == []
    monkeypatch.setattr(environment, "_PACKAGE", package.parent)  # with Marin in it
    assert loaded_unlike(folder / "pkg", git("rev-parse", "HEAD")) == []


def test_lines_that_end_as_on_windows_are_as_committed_and_a_change_among_them_is_named(checkout):
    folder, git = checkout
    as_on_windows = TEXT.replace("\n", "\r\n").encode()
    (folder / "pkg" / "model.py").write_bytes(as_on_windows)
    assert as_on_windows != TEXT.encode() and loaded_unlike(folder / "pkg", git("rev-parse", "HEAD")) == []
    (folder / "pkg" / "model.py").write_bytes(as_on_windows.replace(b"1", b"2"))
    assert loaded_unlike(folder / "pkg", git("rev-parse", "HEAD")) == ["pkg/model.py"]


@pytest.mark.parametrize("way", ["plain", "skip-worktree", "assume-unchanged", "filter", "replaced commit"])
def test_file_that_was_changed_is_named_where_git_is_told_not_to_see_it(way, checkout):
    folder, git = checkout
    commit = git("rev-parse", "HEAD")
    if way == "filter":
        (folder / ".git" / "info" / "attributes").write_text("*.py filter=back\n")
        git("config", "filter.back.clean", "sed s/2/1/")
    (folder / "pkg" / "model.py").write_text(TEXT.replace("1", "2"))
    if way in ("skip-worktree", "assume-unchanged"):
        git("update-index", f"--{way}", "pkg/model.py")
    if way == "replaced commit":
        git("commit", "-qam", "changed")
        changed = git("rev-parse", "HEAD")
        git("reset", "-q", "--soft", commit)
        git("replace", commit, changed)
    assert bool(git("status", "--porcelain")) == (way == "plain")
    assert loaded_unlike(folder / "pkg", commit) == ["pkg/model.py"]


def test_clone_of_marin_is_looked_at_beside_that_of_an_experiment(checkout, tmp_path_factory, monkeypatch):
    folder, git = checkout
    experiment = tmp_path_factory.mktemp("own")
    for arguments in (
        ["init", "-q"],
        ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *arguments], cwd=experiment, check=True)
    (folder / "pkg" / "model.py").write_text(TEXT.replace("1", "2"))
    git("update-index", "--skip-worktree", "pkg/model.py")
    monkeypatch.setattr(environment, "code_directory", lambda: experiment)
    monkeypatch.setattr(environment, "_PACKAGE", folder / "pkg")
    state, _ = environment.git_state()
    assert (state["dirty"], state["loaded_unlike"]) == (True, ["pkg/model.py"])


def test_job_in_a_copy_without_git_knows_the_state_of_the_checkout_that_it_was_submitted_from(
    checkout, tmp_path_factory, monkeypatch
):
    """As on a Ray cluster, whose jobs get the repository without `.git`."""
    folder, git = checkout
    (folder / "pkg" / "model.py").write_text(TEXT.replace("1", "2"))
    at_home = provenance.code_state(folder)
    assert (at_home.commit, at_home.dirty) == (git("rev-parse", "HEAD"), True) and b"+VALUE = 2" in at_home.diff
    variables = provenance.submitted_variables(folder)
    copy = tmp_path_factory.mktemp("copy")
    monkeypatch.setattr(provenance, "__file__", str(copy / "marin" / "execution" / "provenance.py"))
    assert provenance.code_state(copy) == provenance.CodeState()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert provenance.code_state(copy) == at_home
    assert provenance.code_state(tmp_path_factory.mktemp("elsewhere")) == provenance.CodeState()
    monkeypatch.setattr(environment, "code_directory", lambda: copy)
    state, diff = environment.git_state()
    assert (state["commit"], state["dirty"], diff) == (at_home.commit, True, at_home.diff)
    (folder / "pkg" / "model.py").write_bytes(b"#" + os.urandom(2**17).hex().encode())  # too long for a variable
    (told,) = provenance.submitted_variables(folder).values()
    assert len(told) < 2**17
    monkeypatch.setenv(next(iter(variables)), told)
    assert provenance.code_state(copy) == provenance.CodeState(at_home.commit, True, b"")


def test_state_that_a_job_is_told_has_no_dollar_sign_as_ray_puts_values_in_place_of_names_after_it(checkout):
    folder, _ = checkout
    (folder / "pkg" / "model.py").write_text("#" + random.Random(0).randbytes(4000).hex())
    (told,) = provenance.submitted_variables(folder).values()
    assert len(told) > 4000 and "$" not in told


def test_checkout_of_which_git_says_no_commit_is_told_of_once(tmp_path, capsys):
    (tmp_path / ".git").mkdir()  # git refuses it, as it does what another user owns
    (tmp_path / "pkg").mkdir()
    for _ in range(2):
        assert provenance.code_state(tmp_path / "pkg") == provenance.CodeState()
    assert capsys.readouterr().err.count(f"git names no commit of {tmp_path}") == 1


def test_file_that_git_ignores_is_named(checkout, monkeypatch):
    folder, git = checkout
    (folder / "helper.py").write_text(TEXT)
    _load(monkeypatch, "helper", folder / "helper.py")
    assert git("status", "--porcelain") == ""
    assert loaded_unlike(folder / "pkg", git("rev-parse", "HEAD")) == ["helper.py"]
    (folder / "helper.py").unlink()  # what is gone cannot be compared
    assert loaded_unlike(folder / "pkg", git("rev-parse", "HEAD")) == []
