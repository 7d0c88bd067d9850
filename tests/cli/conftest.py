"""`marin` as a user runs it: a subprocess in a small clone of its own, with a home of its own."""

import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import pytest
from submission_place import Place

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
Marin = Callable[..., subprocess.CompletedProcess[str]]

TEMPLATE = pathlib.Path(__file__).with_name("starter_template.txt")


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> dict[str, str]:
    """The variables that a program needs, and nothing of the account that runs the tests."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ada Lovelace\n\temail = 7+ada@users.noreply.github.com\n")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "MARIN_CPU_PEAK_FLOPS": "1e11",
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "80",
    }


@pytest.fixture
def clone(tmp_path: pathlib.Path) -> pathlib.Path:
    """The least that counts as a clone of Marin, with a template."""
    root = tmp_path / "clone"
    (root / "experiments" / "speedrun").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "marin"\ndependencies = ["numpy>=2.0"]\n')
    (root / "experiments" / "hackable_transformer_starter_template.py").write_text(TEMPLATE.read_text())
    return root


@pytest.fixture
def marin(clone: pathlib.Path, environment: dict[str, str]) -> Marin:
    def run(*arguments: str, cwd: pathlib.Path = clone, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "marin", *arguments],
            cwd=cwd, env={**environment, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.chdir(place.root)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # no person
    (tmp_path / "bin").mkdir()
    return place
