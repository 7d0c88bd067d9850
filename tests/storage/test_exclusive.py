"""Files that only one of all who try creates."""

import errno
import os
import pathlib
import types
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from marin.errors import StorageError
from marin.storage import exclusive, files


def test_create_exclusive_gives_the_path_to_the_first_and_keeps_its_content(store: str) -> None:
    path = files.join(store, "sub", "1.json")
    assert exclusive.create(path, b"first")
    assert not exclusive.create(path, b"second")
    assert files.read_bytes(path) == b"first"
    assert files.list_dir(files.join(store, "sub")) == ["1.json"]


def test_create_exclusive_raced_for_by_threads_has_one_winner(store: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            path = files.join(store, f"{number}.json")
            won = list(pool.map(lambda i, path=path: exclusive.create(path, b"%d" % i), range(8)))
            assert sum(won) == 1
            assert won[int(files.read_bytes(path))]


def test_create_exclusive_without_parents_makes_no_directory(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StorageError, match="no such file or directory"):
        exclusive.create(str(tmp_path / "sub" / "a"), b"", make_parents=False)
    assert os.listdir(tmp_path) == []


def test_create_exclusive_below_a_file_is_an_error_and_not_a_lost_race(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(StorageError, match="a file stands where a directory is needed"):
        exclusive.create(str(tmp_path / "a" / "b"), b"")


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
            exclusive.create(str(tmp_path / "a"), b"first")
    assert os.listdir(tmp_path) == []
    assert exclusive.create(str(tmp_path / "a"), b"second")


def test_create_exclusive_whose_link_was_made_by_a_request_without_an_answer_is_ours(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a request whose answer was lost, and the repeated one finds what the first has made."""
    link = os.link

    def link_twice(source: pathlib.Path, target: pathlib.Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert exclusive.create(str(tmp_path / "a"), b"first")
    monkeypatch.setattr(os.path, "exists", lambda path: False)  # a directory that NFS remembers as it was
    monkeypatch.setattr(pathlib.Path, "exists", lambda path: False)
    assert not exclusive.create(str(tmp_path / "a"), b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


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
            won = list(pool.map(lambda i, path=path: exclusive.create(path, b"%d" % i), range(8)))
            assert sum(won) == 1
            assert won[int(files.read_bytes(path))]
    assert len(os.listdir(tmp_path)) == 20


@pytest.mark.usefixtures("without_hard_links")
def test_create_exclusive_without_hard_links_that_took_too_long_does_not_count(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(exclusive, "_clock", lambda: next(clock))
    with pytest.raises(StorageError, match=r"100 s to write \(was this process stopped\?\)"):
        exclusive.create(str(tmp_path / "a"), b"")


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
        monkeypatch.setattr(files, "filesystem_of", lambda _, filesystem=filesystem: filesystem)
        assert exclusive.create("s3://bucket/a", b"") is created
    monkeypatch.setattr(files, "filesystem_of", lambda _: answering("AccessDenied"))
    with pytest.raises(StorageError, match="cannot be created"):
        exclusive.create("s3://bucket/a", b"")


def test_check_exclusive_create_accepts_a_store_with_a_conditional_put_and_leaves_nothing(store: str) -> None:
    exclusive.check_store(store)
    exclusive.check_store(store)
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
            exclusive.check_store(f"{driver.protocol}://store/runs")


def test_check_exclusive_create_of_an_unreachable_store_says_so(s3_prefix: str) -> None:
    with pytest.raises(StorageError, match="nosuchbucket/runs cannot be used for runs"):
        exclusive.check_store("s3://nosuchbucket/runs")
