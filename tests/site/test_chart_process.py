"""Charts drawn by a child: the same files, and errors and stops that reach the person."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.leaderboard import make_rows
from marin.site.leaderboard.build import build_site

SCRIPT = pathlib.Path(__file__).parent / "charts_in_child.py"


def _drawn(scenario: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), scenario], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(("scenario", "others"), [("whole", 1), ("one processor", 0)])
def test_drawings_come_in_the_order_in_which_they_were_asked_for(scenario: str, others: int) -> None:
    assert _drawn(scenario) == {"error": None, "numbers": ["0", "1", "2"], "others": others}


def test_drawing_that_fails_or_whose_process_is_killed_says_so() -> None:
    assert _drawn("wrong") == {"error": "no such axis", "numbers": ["0"], "others": 1}
    assert _drawn("killed")["error"] == "the process that drew the charts was killed: try again"


def test_drawing_that_lacks_a_package_says_which() -> None:
    assert _drawn("not installed") == {"error": "No module named 'altair'", "numbers": [], "others": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_child_that_draws_ends_with_its_parent(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "slow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    os.kill(process.pid, number)
    # A child that lived on would hold the pipes, which end here within a moment.
    process.communicate(timeout=60)


def test_site_of_the_command_whose_charts_a_child_draws_is_the_one_that_this_process_builds(
    tmp_path: pathlib.Path,
) -> None:
    rows, by_command, here = tmp_path / "runs.json", tmp_path / "command", tmp_path / "here"
    rows.write_text(json.dumps(make_rows(60)))
    command = [sys.executable, "-m", "marin", "leaderboard", "build", "--rows", str(rows), "--output", str(by_command)]
    subprocess.run(command, check=True, capture_output=True)
    build_site([], [rows], here)
    names = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    assert len([name for name in names if name.parts[0] == "charts"]) >= 8
    for name in names:
        assert (by_command / name).read_bytes() == (here / name).read_bytes()
