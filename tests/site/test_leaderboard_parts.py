"""Pages written by several processes: the same files, the same record, and errors that reach the person."""

import json
import pathlib
import subprocess
import sys
from typing import Any

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
    assert (made["written"], made["by_this_process"], made["error"]) == (42, False, None)
    assert _build(tmp_path / "alone", "whole", "1000") == made | {"by_this_process": True}
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


def test_parts_whose_process_is_killed_say_so(tmp_path: pathlib.Path) -> None:
    killed = _build(tmp_path, "killed")
    assert killed["error"] == "a process that wrote pages ended early: build the site again"
    assert RECORD not in killed["files"]
