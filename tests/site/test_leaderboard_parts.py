"""Pages written by several processes: the same files, the same record, and errors that reach the person."""

import json
import os
import pathlib
import signal
import threading
from collections.abc import Callable

import pytest

from marin.errors import StorageError
from marin.site.leaderboard import parts
from marin.site.leaderboard.output import RECORD, SiteWriter
from marin.site.leaderboard.parts import WritingInParts

KEYS = [f"key-{number}" for number in range(40)]


def _writing(writer: SiteWriter, seen: list[int]) -> Callable[[str], None]:
    def write(key: str) -> None:
        seen.append(os.getpid())
        inputs = f"inputs of {key}"
        if not writer.is_fresh(f"{key}.html", inputs):
            writer.write(f"{key}.html", f"<p>{key}</p> by {len(key)}", inputs)

    return write


def _build(site: pathlib.Path, keys: list[str] = KEYS) -> tuple[dict[str, str], int, bool]:
    """The files, how many were written, and whether this process wrote them."""
    writer, seen = SiteWriter(str(site)), list[int]()
    with WritingInParts(writer, keys, _writing(writer, seen)):
        writer.write("beside.txt", "made meanwhile")
    writer.finish()
    return {path.name: path.read_text() for path in site.iterdir()}, writer.num_written, bool(seen)


@pytest.fixture
def in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FEWEST", 1)
    monkeypatch.setattr(parts, "_processors", lambda: 3)
    monkeypatch.setattr(
        threading, "active_count", lambda: 1
    )  # the test runner has threads, which hold none of our locks


def test_parts_written_by_children_are_the_files_that_one_process_writes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, in_children: None
) -> None:
    files, num_written, here = _build(tmp_path / "children")
    assert (num_written, here) == (41, False)
    monkeypatch.setattr(parts, "FEWEST", 1_000)
    assert _build(tmp_path / "alone") == (files, 41, True)
    monkeypatch.setattr(parts, "FEWEST", 1)
    assert _build(tmp_path / "children") == (files, 0, False)
    files, num_written, _ = _build(tmp_path / "children", KEYS[1:])
    assert num_written == 0
    assert "key-0.html" not in files
    assert set(json.loads(files[RECORD])["files"]) == set(files) - {RECORD}


def test_parts_of_which_one_fails_raise_its_error_and_leave_no_record(
    tmp_path: pathlib.Path, in_children: None
) -> None:
    _build(tmp_path / "site")
    writer = SiteWriter(str(tmp_path / "site"))

    def write(key: str) -> None:
        if key == "key-7":
            raise StorageError("the disk is full")
        writer.write(f"{key}.html", "changed")

    with pytest.raises(StorageError, match="the disk is full"), WritingInParts(writer, KEYS, write):
        pass
    assert not (tmp_path / "site" / RECORD).exists()
    files, num_written, _ = _build(tmp_path / "site")
    assert num_written == 41
    assert files["key-3.html"] == "<p>key-3</p> by 5"


def test_parts_whose_process_is_killed_say_so(tmp_path: pathlib.Path, in_children: None) -> None:
    writer = SiteWriter(str(tmp_path / "site"))

    def write(key: str) -> None:
        if key == "key-5":
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(StorageError, match="ended early: build the site again"), WritingInParts(writer, KEYS, write):
        pass
