"""What an uploaded file must be, and what is left of one that is refused."""

import asyncio
import contextlib
import gzip
import json
import lzma
import os
import pathlib
import re
import shutil
import threading
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin.data.documents import read_documents
from marin.errors import DataError
from marin.site.datashop import taking
from marin.site.datashop.uploads import Uploads, clean_name
from marin.storage import files


def _take(folder: pathlib.Path, name: str, content: bytes, **options: Any) -> tuple[dict[str, Any], list[Any]]:
    raw, made = folder / "raw", folder / "made"
    raw.write_bytes(content)
    made.mkdir()
    taking.take(raw, name, made, **options)
    summary = json.loads((made / taking.SUMMARY).read_text())
    return summary, list(read_documents(str(made / summary["file"])))


def _lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_rows_without_a_text_are_counted_and_all_others_are_kept(tmp_path: pathlib.Path) -> None:
    content = (
        _lines(
            {"id": 7, "text": "first", "source": "web"}, {"id": 7, "text": "same id"}, {"text": ""}, {"other": 1}, [1]
        )
        + b'{"text": "not \xff UTF-8"}\n{"text": "half \\ud800"}\nno json\n'
        + b'{"text": "NUL \\u0000 and <script>"}'
    )
    summary, documents = _take(tmp_path, "a.jsonl", content)
    made = summary["file"].removesuffix(".jsonl.zst")
    assert re.fullmatch("a-[0-9a-f]{8}", made)
    assert [(document.id, document.text, document.source) for document in documents] == [
        ("7", "first", "web"),
        (f"{made}:2", "same id", "a"),
        (f"{made}:9", "NUL \0 and <script>", "a"),
    ]
    assert summary["left_out"] == {
        "no_text": 1, "empty_text": 1, "not_an_object": 1, "not_utf8": 1, "lone_surrogate": 1, "not_json": 1,
    }  # fmt: skip
    assert (summary["documents"], summary["text_bytes"]) == (3, 5 + 7 + 18)
    assert summary["first_problem"].startswith("row 3: the text is empty")


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"text": "a", "content": "bbbb"}], "text"),
        ([{"title": "short", "content": "c"}], "content"),
        ([{"title": "short", "abstract": "much longer", "n": 3}], "abstract"),
    ],
)
def test_field_with_the_text_is_found(tmp_path: pathlib.Path, rows: list[Any], field: str) -> None:
    summary, documents = _take(tmp_path, "a.jsonl.gz", gzip.compress(_lines(*rows)))
    assert summary["text_field"] == field and documents[0].text == rows[0][field]


def test_parquet_without_a_usual_column_is_read_by_the_longest_texts_as_json_lines_are(tmp_path: pathlib.Path) -> None:
    rows = [{"url": "a.org", "about": None, "story": "A longer text."}, {"url": "b.org", "about": "x", "story": "Two"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name, content in (("a.parquet", (tmp_path / "a.parquet").read_bytes()), ("a.jsonl", _lines(*rows))):
        (tmp_path / name[2:]).mkdir()
        summary, documents = _take(tmp_path / name[2:], name, content)
        assert summary["text_field"] == "story"
        assert [document.text for document in documents] == ["A longer text.", "Two"]


def test_parquet_is_read_by_its_likely_or_its_named_column(tmp_path: pathlib.Path) -> None:
    table = pa.table({"n": [1, 2], "title": ["t", "u"], "body": ["one", "two"], "id": ["x", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "likely").mkdir()
    (tmp_path / "named").mkdir()
    assert [document.text for document in _take(tmp_path / "likely", "a.parquet", content)[1]] == ["one", "two"]
    summary, named = _take(tmp_path / "named", "a.parquet", content, text_field="title")
    made = summary["file"].removesuffix(".jsonl.zst")
    assert [(document.id, document.text) for document in named] == [("x", "t"), (f"{made}:2", "u")]


@pytest.mark.parametrize(
    ("split", "texts"),
    [("blank", ["one\ntwo", "three"]), ("lines", ["one", "two", "three"]), ("whole", ["one\ntwo\n\n \nthree"])],
)
def test_text_file_is_parted_as_asked(tmp_path: pathlib.Path, split: str, texts: list[str]) -> None:
    _, documents = _take(tmp_path, "a.txt", b"\xef\xbb\xbfone\ntwo\n\n \nthree\n", split=split)
    assert [document.text for document in documents] == texts


def test_files_of_one_name_and_readings_of_one_file_share_no_id_and_no_file_name(tmp_path: pathlib.Path) -> None:
    names: list[str] = []
    ids: list[str] = []
    for number, (content, split) in enumerate(
        [(b"one\ntwo", "lines"), (b"one\ntwo", "whole"), (b"three\nfour", "lines")]
    ):
        (tmp_path / str(number)).mkdir()
        summary, documents = _take(tmp_path / str(number), "a.txt", content, split=split)
        names.append(summary["file"])
        ids += [document.id for document in documents]
    assert len(set(names)) == 3 and len(set(ids)) == len(ids) == 5
    again = tmp_path / "again"
    again.mkdir()
    assert [document.id for document in _take(again, "a.txt", b"one\ntwo", split="lines")[1]] == ids[:2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.exe", b"MZ", "should end in .jsonl, .parquet or .txt"),
        ("a.parquet", b"PK\x03\x04 not parquet at all", "it is no Parquet file"),
        ("a.parquet", b"PAR1" + bytes(40) + b"PAR1", "it is no Parquet file"),
        ("a.parquet.gz", b"", "without .gz"),
        ("a.jsonl", b"\x89PNG\r\n\x1a\n" + bytes(500), "no document: row 1"),
        ("a.jsonl", b"[" * 100_000, "no document: row 1"),
        ("a.jsonl", b'{"text": "' + b"x" * 40_000_000, "a line of more than 32 MB"),
        ("a.txt", b"a\0b", "NUL bytes"),
        ("a.txt", b"\xff\xfe\xff", "no document: row 1: byte 1 is not UTF-8"),
        ("a.txt.gz", b"no gzip", "gzip data is damaged"),
        ("a.txt.bz2", b"no bzip2", "bzip2 data is damaged"),
        ("a.jsonl.gz", gzip.compress(_lines({"text": "x" * 5000}), mtime=0)[:-9], "cut short"),
        ("a.jsonl.xz", lzma.compress(_lines({"text": "x" * 5000}))[:-9], "cut short"),
        ("a.jsonl.gz", gzip.compress(b" " * 40_000_000, 1, mtime=0), "a line of more than 32 MB"),
    ],
)
def test_other_files_are_refused_with_the_reason(
    tmp_path: pathlib.Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        _take(tmp_path, name, content)


def test_file_that_expands_beyond_the_limit_is_refused_while_it_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "MOST_TEXT", 2_000_000)
    packed = zstandard.ZstdCompressor().compress(_lines({"text": "x"}) * 500_000)
    assert len(packed) < 2000
    with pytest.raises(DataError, match="expands to more than 0.002 GB"):
        _take(tmp_path, "a.jsonl.zst", packed)
    for encoding, is_dictionary in (("plain", False), ("dictionary", True)):
        (tmp_path / encoding).mkdir()
        path = tmp_path / f"{encoding}.parquet"
        pq.write_table(pa.table({"text": ["x" * 1000] * 5000}), path, use_dictionary=is_dictionary)
        told = pq.read_metadata(path).row_group(0).total_byte_size
        assert (told < 2_000_000) == is_dictionary  # what a dictionary hides
        with pytest.raises(DataError, match=r"expands to more than 0.002 GB"):
            _take(tmp_path / encoding, "a.parquet", path.read_bytes())


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd.txt", "passwd.txt"),
        ("C:\\temp\\Ein Tést.JSONL", "Ein-Test.jsonl"),
        ("<img src=x onerror=alert(1)>.jsonl.GZ", "img-src-x-onerror-alert-1.jsonl.gz"),
        ("....txt", "file.txt"),
        (".txt", "file.txt"),
        ("-rf *.txt", "rf.txt"),
        ("a\n\0b\u202egnp.parquet", "a-bgnp.parquet"),
        ("x" * 5000 + ".md", "x" * 60 + ".md"),
        ("data.tar.jsonl", "data-tar.jsonl"),
        ("dump.jsonl.bz2", "dump.jsonl.bz2"),
        ("dump.txt.XZ", "dump.txt.xz"),
    ],
)
def test_names_keep_plain_letters_only(name: str, kept: str) -> None:
    assert clean_name(name) == kept


async def _body(*blocks: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for block in blocks:
        yield block
    if fails:
        raise ConnectionResetError


def test_upload_is_there_whole_once_or_not_at_all(tmp_path: pathlib.Path) -> None:
    uploads = Uploads(tmp_path / "uploads", most_bytes=1000)
    content = _lines({"text": "one"}, {"text": "two"})

    def receive(*blocks: bytes, name: str = "a.jsonl", size: int | None = None, **options: Any) -> Any:
        return asyncio.run(uploads.receive(name, _body(*blocks, **options), size=size))

    first = receive(content[:10], content[10:], name="../a.jsonl")
    assert receive(content).id == first.id
    assert [upload.name for upload in uploads.all()] == ["a.jsonl"] and first.documents == 2
    for blocks, options, message in (
        ((b"x" * 600, b"x" * 600), {}, "larger than"),
        ((b"x",), {"size": 10**9}, "larger than"),
        ((), {}, "it is empty"),
        ((b"\0",), {"name": "b.txt"}, "NUL bytes"),  # the reading process says so
    ):
        with pytest.raises(DataError, match=message):
            receive(*blocks, **options)
    with pytest.raises(ConnectionResetError):
        receive(content[:10], fails=True)
    assert sorted(path.name for path in uploads.folder.iterdir()) == [".incoming", first.id]
    assert list((uploads.folder / ".incoming").iterdir()) == []
    assert uploads.get("../" + first.id) is None and not uploads.remove("..")
    assert uploads.remove(first.id) and uploads.all() == []


def test_slow_disk_keeps_nobody_else_waiting(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = Uploads(tmp_path / "uploads")
    where: list[int] = []
    for module, name in ((files, "sync_tree"), (shutil, "rmtree")):
        plain = getattr(module, name)

        def noted(*arguments: Any, _plain: Any = plain, **options: Any) -> Any:
            where.append(threading.get_ident())
            return _plain(*arguments, **options)

        monkeypatch.setattr(module, name, noted)
    upload = asyncio.run(uploads.receive("a.jsonl", _body(_lines({"text": "one"})), size=None))
    assert uploads.get(upload.id) is not None and list((uploads.folder / ".incoming").iterdir()) == []
    assert len(where) == 2 and threading.get_ident() not in where  # which is the thread of the event loop


def test_what_a_dead_server_left_is_removed_and_what_a_living_one_receives_is_not(tmp_path: pathlib.Path) -> None:
    incoming = tmp_path / ".incoming"
    for name in ("999999999-aa", "odd", f"{os.getppid()}-bb"):
        (incoming / name).mkdir(parents=True)
    Uploads(tmp_path)
    assert [path.name for path in incoming.iterdir()] == [f"{os.getppid()}-bb"]


def test_a_person_who_leaves_while_the_file_is_read_leaves_no_process_and_no_file(tmp_path: pathlib.Path) -> None:
    uploads = Uploads(tmp_path)

    async def body() -> AsyncIterator[bytes]:
        yield _lines(*({"text": f"document {number}"} for number in range(200_000)))

    async def leave() -> None:
        receiving = asyncio.create_task(uploads.receive("a.jsonl", body(), size=None))
        while not _children("marin.site.datashop.taking"):
            assert not receiving.done(), receiving
            await asyncio.sleep(0.01)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving

    asyncio.run(asyncio.wait_for(leave(), 60))
    assert _children("marin.site.datashop.taking") == []
    assert list(uploads.all()) == [] and [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def _children(module: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if module in child.cmdline():
                found.append(child)
    return found
