"""The table at the end of a run, as a terminal shows it."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from marin.execution.report import print_summary


def test_message_of_a_failure_is_only_begun_in_the_table_that_stands_below_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marin.execution.report._WIDTH_WITHOUT_TERMINAL", 400)
    said = "ConfigError: `--device-batch-size` is 7: a batch of 8 has no equal parts of 7 sequences; use a divisor of 8"
    node = SimpleNamespace(name="gpt2/chat_sft", output_path="base/d4")
    failed: Any = SimpleNamespace(node=node, kind="failed", reason=f"{said}\nmore", seconds=1.5)
    waits: Any = SimpleNamespace(node=node, kind="not run", reason=f"needs {'x' * 100}", seconds=0.0)
    print_summary([failed, waits])
    table = capsys.readouterr().out
    assert said[:50] in table and "use a divisor" not in table and "more" not in table
    assert f"needs {'x' * 100}" in table  # which is told nowhere else


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
