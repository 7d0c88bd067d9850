"""The table at the end of a run, as a terminal shows it."""

import re
from typing import cast

import pytest

from marin.execution.fingerprint import Identity
from marin.execution.graph import Node
from marin.execution.report import print_summary
from marin.execution.runner import Result
from marin.execution.step import ExecutorStep


def node_of(name: str) -> Node:
    return Node(ExecutorStep(name, print, None), cast(Identity, None), f"local_store/{name}-0123abcd", ())


def test_message_of_a_failure_is_only_begun_in_the_table_that_stands_below_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marin.execution.report._WIDTH_WITHOUT_TERMINAL", 400)
    said = "ConfigError: `--device-batch-size` is 7: a batch of 8 has no equal parts of 7 sequences; use a divisor of 8"
    failed, waits = Result("failed", f"{said}\nmore", 1.5), Result("not run", f"needs {'x' * 100}")
    print_summary({node_of("gpt2/chat_sft"): failed, node_of("gpt2/chat_rl"): waits})
    table = capsys.readouterr().out
    assert said[:50] in table and "use a divisor" not in table and "more" not in table
    assert f"needs {'x' * 100}" in table  # which is told nowhere else


def test_names_of_steps_stand_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [f"descent/learning_rate=0.0{number}-warmup=0.1-seed={number}" for number in (1, 2)]
    print_summary({node_of(name): Result("ran", "it is new", 1.5) for name in names})
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in lines if line.startswith("│")]
    shown = "".join(row[0] for row in rows)
    assert shown == "".join(names)
    assert all(row[1] in ("ran", "") for row in rows)
