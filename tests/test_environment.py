"""What a Python without Marin's packages says: the one of a terminal in which the environment was not activated."""

import os
import pathlib
import subprocess
import sys

import pytest

from marin import environment

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["experiments.speedrun.hello_world.main", "--dry_run", "true"],
        ["scripts.base_train", "--depth=4"],
        ["marin", "explain", "hello_world"],
        ["marin", "browse"],
    ],
)
def test_python_without_the_packages_is_told_to_activate_the_environment(arguments: list[str]) -> None:
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(  # -S: without site-packages
        [sys.executable, "-S", "-m", *arguments], cwd=ROOT, env=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == 1 and said[0].startswith(f"error: {sys.executable} has no package `"), done.stderr
    assert ". .venv/bin/activate" in said[0] and "make venv" in said[0]


def test_old_python_is_named_with_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 12, "final", 0))
    monkeypatch.setattr(sys, "version", "3.10.12 (main)")
    with pytest.raises(SystemExit) as ended:
        environment.require()
    assert ended.value.code == 2
    assert "is Python 3.10.12, Marin needs 3.11 or later" in capsys.readouterr().err
