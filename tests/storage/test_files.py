"""Atomic writes and explained failures."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from marin.errors import StorageError
from marin.storage import files


@pytest.fixture(params=["local", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "d") if request.param == "local" else f"memory://{tmp_path}/d"


def test_files_written_are_read_back_from_any_store(directory: str) -> None:
    path = files.join(directory, "sub", "a.json")
    assert not files.exists(path)
    files.write_json(path, {"b": [1, "é"]})
    assert files.exists(path)
    assert files.read_json(path) == {"b": [1, "é"]}
    assert files.list_dir(directory) == ["sub"]
    assert files.list_dir(files.join(directory, "sub")) == ["a.json"]
    assert files.modified_time(path) is not None
    files.write_bytes(path, b"abc")
    assert files.sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    files.sync_tree(directory)
    files.remove_tree(directory)
    files.remove_tree(directory)
    assert not files.exists(path)
    assert files.list_dir(directory) == []


def test_read_of_missing_file_names_path_and_next_step(directory: str) -> None:
    path = files.join(directory, "absent")
    with pytest.raises(StorageError, match=r"absent cannot be read.*run the step"):
        files.read_bytes(path)


def test_read_json_of_truncated_file_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(StorageError, match=r"a\.json is not valid JSON"):
        files.read_json(str(tmp_path / "a.json"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_write_that_fails_keeps_old_content_and_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = str(tmp_path / "a")
    files.write_bytes(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="cannot be written"):
        files.write_bytes(path, b"new")
    assert files.read_bytes(path) == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_write_below_a_file_says_what_stands_in_the_way(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(StorageError, match="a file stands where a directory is needed"):
        files.write_bytes(str(tmp_path / "a" / "b"), b"")


def test_write_killed_at_any_moment_leaves_a_whole_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    program = (
        "import itertools, sys; from marin.storage import files\n"
        "for i in itertools.count(): files.write_bytes(sys.argv[1], str(i).encode() * 200_000)"
    )
    for delay in (0.05, 0.11, 0.17):
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=pathlib.Path.cwd())
        while not path.exists():
            time.sleep(0.005)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        content = path.read_text()
        assert content == content[: len(content) // 200_000] * 200_000


def test_local_path_of_a_remote_url_is_refused() -> None:
    assert files.local_path("file:///a/b") == pathlib.Path("/a/b")
    with pytest.raises(StorageError, match="local path"):
        files.local_path("gs://bucket/a")


def test_unknown_store_is_refused_with_what_is_known() -> None:
    with pytest.raises(StorageError, match="names no known store `nosuch://`"):
        files.exists("nosuch://a/b")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("/a", "b", "c"), "/a/b/c"),
        (("/a", "/b"), "/b"),
        (("gs://a/b", "c"), "gs://a/b/c"),
        (("/a", "s3://b"), "s3://b"),
    ],
)
def test_join_of_absolute_names_replaces(parts: tuple[str, ...], expected: str) -> None:
    assert files.join(*parts) == expected
