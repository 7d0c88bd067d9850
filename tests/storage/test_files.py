"""Atomic writes and explained failures."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from marin.errors import StorageError
from marin.storage import files


def test_files_written_are_read_back_from_any_store(store: str) -> None:
    path = files.join(store, "sub", "a.json")
    assert not files.exists(path)
    files.write_json(path, {"b": [1, "é"]})
    assert files.exists(path)
    assert files.read_json(path) == {"b": [1, "é"]}
    assert files.list_dir(store) == ["sub"]
    assert files.list_dir(files.join(store, "sub")) == ["a.json"]
    assert files.modified_time(path) is not None
    files.write_bytes(path, b"abc")
    assert files.sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    files.sync_tree(store)
    files.remove_tree(store)
    files.remove_tree(store)
    assert not files.exists(path)
    assert files.list_dir(store) == []


def test_read_of_missing_file_names_path_and_next_step(store: str) -> None:
    path = files.join(store, "absent")
    with pytest.raises(StorageError, match=r"absent cannot be read.*run the step"):
        files.read_bytes(path)


@pytest.mark.parametrize("content", ['{"a": ', "[" * 200_000])
def test_read_json_of_damaged_file_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
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


def test_writing_shows_the_content_only_when_its_block_ends_well(store: str) -> None:
    path = files.join(store, "sub", "a")
    with files.writing(path) as stream:
        stream.write(b"old")
        assert not files.exists(path)
    with pytest.raises(KeyboardInterrupt), files.writing(path) as stream:
        stream.write(b"new")
        raise KeyboardInterrupt
    assert files.read_bytes(path) == b"old"
    assert files.list_dir(files.join(store, "sub")) == ["a"]


def test_writing_on_a_full_disk_says_so_and_keeps_the_old_content(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "a")
    files.write_bytes(path, b"old")
    with pytest.raises(StorageError, match="a cannot be written: the disk is full"), files.writing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert files.read_bytes(path) == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_writing_to_a_store_leaves_no_temporary_file_here_when_its_block_fails(
    store: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(RuntimeError), files.writing(files.join(store, "a")) as stream:
        stream.write(b"new")
        raise RuntimeError
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("name", ["模" * 80, "é" * 127, "a" + "é" * 127, "a" * 255, os.fsdecode(b"caf\xe9" * 60)])
def test_name_as_long_as_a_file_system_takes_can_be_written(tmp_path: pathlib.Path, name: str) -> None:
    files.write_bytes(str(tmp_path / name), b"x")
    assert os.listdir(tmp_path) == [name]
    (tmp_path / files.temporary_name(name)).touch()
    files.remove_temporaries(str(tmp_path))
    assert os.listdir(tmp_path) == [name]


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
            assert process.poll() is None
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


def test_write_bytes_that_need_not_last_flushes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise AssertionError("flushed")

    monkeypatch.setattr(os, "fsync", refuse)
    files.write_bytes(str(tmp_path / "a"), b"old", durable=False)
    files.write_bytes(str(tmp_path / "a"), b"new", durable=False)
    assert files.read_bytes(str(tmp_path / "a")) == b"new"
    assert os.listdir(tmp_path) == ["a"]
