"""Atomic writes and explained failures."""

import errno
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

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


# --- creating only if absent --------------------------------------------------------------------------------------


def test_create_exclusive_gives_the_path_to_the_first_and_keeps_its_content(store: str) -> None:
    path = files.join(store, "sub", "1.json")
    assert files.create_exclusive(path, b"first")
    assert not files.create_exclusive(path, b"second")
    assert files.read_bytes(path) == b"first"
    assert files.list_dir(files.join(store, "sub")) == ["1.json"]


def test_create_exclusive_raced_for_by_threads_has_one_winner(store: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            path = files.join(store, f"{number}.json")
            won = list(pool.map(lambda i, path=path: files.create_exclusive(path, b"%d" % i), range(8)))
            assert sum(won) == 1
            assert won[int(files.read_bytes(path))]


def test_create_exclusive_without_parents_makes_no_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StorageError, match="no such file or directory"):
        files.create_exclusive(str(tmp_path / "sub" / "a"), b"", make_parents=False)
    assert os.listdir(tmp_path) == []


def test_create_exclusive_below_a_file_is_an_error_and_not_a_lost_race(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(StorageError, match="a file stands where a directory is needed"):
        files.create_exclusive(str(tmp_path / "a" / "b"), b"")


@pytest.mark.parametrize("call", ["open", "write", "fsync", "link"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_create_exclusive_that_fails_leaves_the_path_free(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match="cannot be created"):
            files.create_exclusive(str(tmp_path / "a"), b"first")
    assert os.listdir(tmp_path) == []
    assert files.create_exclusive(str(tmp_path / "a"), b"second")


@pytest.fixture
def without_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("without_hard_links")
def test_create_exclusive_without_hard_links_has_one_winner(tmp_path: pathlib.Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            path = str(tmp_path / f"{number}.json")
            won = list(pool.map(lambda i, path=path: files.create_exclusive(path, b"%d" % i), range(8)))
            assert sum(won) == 1
            assert won[int(files.read_bytes(path))]
    assert len(os.listdir(tmp_path)) == 20


@pytest.mark.usefixtures("without_hard_links")
def test_create_exclusive_without_hard_links_that_took_too_long_does_not_count(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(files, "_clock", lambda: next(clock))
    with pytest.raises(StorageError, match=r"100 s to write \(was this process stopped\?\)"):
        files.create_exclusive(str(tmp_path / "a"), b"")


def test_create_exclusive_asks_again_after_a_conflict_and_knows_a_nameless_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refusal(code: str) -> OSError:
        error = OSError(errno.EIO, code)
        error.__cause__ = cause = Exception(code)
        cause.response = {"Error": {"Code": code}}  # type: ignore[attr-defined]
        return error

    def answering(*codes: str) -> types.SimpleNamespace:
        answers = iter(codes)

        def pipe_file(*_: object, mode: str) -> None:
            assert mode == "create"
            if (code := next(answers)) != "OK":
                raise refusal(code)

        return types.SimpleNamespace(pipe_file=pipe_file)

    for codes, created in ((["ConditionalRequestConflict", "OK"], True), (["409", "PreconditionFailed"], False)):
        filesystem = answering(*codes)
        monkeypatch.setattr(files, "_filesystem", lambda _, filesystem=filesystem: filesystem)
        assert files.create_exclusive("s3://bucket/a", b"") is created
    monkeypatch.setattr(files, "_filesystem", lambda _: answering("AccessDenied"))
    with pytest.raises(StorageError, match="cannot be created"):
        files.create_exclusive("s3://bucket/a", b"")


def test_check_exclusive_create_accepts_a_store_with_a_conditional_put_and_leaves_nothing(store: str) -> None:
    files.check_exclusive_create(store)
    files.check_exclusive_create(store)
    assert files.list_dir(store) == []


class LooksAndWrites(fsspec.AbstractFileSystem):
    """As the drivers of FTP, SFTP and HDFS: the condition is fsspec's own, in two steps."""

    protocol = "looks"


class Forgets(MemoryFileSystem):
    """As a driver or a server that does not know of the condition."""

    protocol = "forgets"
    __module__ = MemoryFileSystem.__module__

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        super().pipe_file(path, value)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [(LooksAndWrites, "has no conditional put; use a local --prefix"), (Forgets, "the store overwrites a file")],
)
def test_check_exclusive_create_refuses_other_stores_with_reason_and_next_step(
    driver: type[fsspec.AbstractFileSystem], reason: str
) -> None:
    fsspec.register_implementation(driver.protocol, driver, clobber=True)
    for _ in range(2):  # a refusal is not forgotten
        with pytest.raises(StorageError, match=f"cannot keep two runs apart: .*{reason}"):
            files.check_exclusive_create(f"{driver.protocol}://store/runs")


def test_check_exclusive_create_of_an_unreachable_store_says_so(s3_prefix: str) -> None:
    with pytest.raises(StorageError, match="nosuchbucket/runs cannot be used for runs"):
        files.check_exclusive_create("s3://nosuchbucket/runs")


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
