"""The table at the end of a run, as a terminal shows it."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from marin.execution.report import print_summary


def test_names_of_steps_stand_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [f"descent/learning_rate=0.0{number}-warmup=0.1-seed={number}" for number in (1, 2)]
    outcomes: list[Any] = [
        SimpleNamespace(
            node=SimpleNamespace(name=name, output_path=f"local_store/{name}-0123abcd"), kind="ran", reason="it is new", seconds=1.5
        )
        for name in names
    ]  # fmt: skip
    print_summary(outcomes)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in lines if line.startswith("│")]
    shown = "".join(row[0] for row in rows)
    assert shown == "".join(names)
    assert all(row[1] in ("ran", "") for row in rows)
