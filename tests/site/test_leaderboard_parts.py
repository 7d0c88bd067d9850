"""Pages written by several processes: the same files, the same record, and errors that reach the person."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from marin.site.leaderboard.output import RECORD

SCRIPT = pathlib.Path(__file__).parent / "parts_in_children.py"


def _build(site: pathlib.Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(site), *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def test_parts_written_by_children_are_the_files_that_one_process_writes(tmp_path: pathlib.Path) -> None:
    made = _build(tmp_path / "children", "whole")
    assert (made["written"], made["processes"], made["error"]) == (42, 3, None)
    assert _build(tmp_path / "alone", "whole", "1000") == made | {"processes": 1}
    assert _build(tmp_path / "children", "whole") == made | {"written": 0}
    fewer = _build(tmp_path / "children", "fewer")
    assert fewer["written"] == 0
    assert "key-0.html" in made["files"] and "key-0.html" not in fewer["files"]
    assert set(json.loads(fewer["files"][RECORD])["files"]) == set(fewer["files"]) - {RECORD}


def test_parts_of_which_one_fails_raise_its_error_and_leave_no_record(tmp_path: pathlib.Path) -> None:
    _build(tmp_path, "whole")
    failed = _build(tmp_path, "full")
    assert failed["error"] == "the disk is full"
    assert RECORD not in failed["files"]
    again = _build(tmp_path, "whole")
    assert (again["error"], again["written"]) == (None, 42)


def test_what_belongs_to_no_key_fails_as_the_keys_do(tmp_path: pathlib.Path) -> None:
    for fewest in ("1", "1000"):
        failed = _build(tmp_path / fewest, "full of the rest", fewest)
        assert failed["error"] == "the disk is full"
        assert RECORD not in failed["files"] and "rest.txt" not in failed["files"]


@pytest.mark.parametrize(
    ("number", "whole_group", "said"),
    [(signal.SIGTERM, False, "terminated"), (signal.SIGINT, True, "interrupted"), (signal.SIGKILL, False, "")],
)
def test_children_end_with_their_parent_and_say_nothing(
    number: signal.Signals, whole_group: bool, said: str, tmp_path: pathlib.Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path), "slow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    (os.killpg if whole_group else os.kill)(process.pid, number)
    # A child that lived on would hold the pipes, which end here within a moment.
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("", said and f"\n{said}; run the same command again to continue\n")
    assert RECORD not in {path.name for path in tmp_path.iterdir()}


def test_parts_whose_process_is_killed_say_so(tmp_path: pathlib.Path) -> None:
    killed = _build(tmp_path, "killed")
    assert killed["error"] == "a process that did a part of the work was killed: try again"
    assert RECORD not in killed["files"]
