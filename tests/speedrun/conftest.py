"""What tests of code that runs in a sandbox share."""

import pathlib

import pytest

from marin.errors import ConfigError
from marin.speedrun import sandbox


@pytest.fixture
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def scratch(outside_ci: None, tmp_path: pathlib.Path) -> pathlib.Path:
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"
