"""Files of each format and compression give the same documents, from this machine and from stores."""

import gzip
import json

import fsspec
import pytest

from marin.children import free_ports
from marin.data.documents import Document
from marin.data.sources import ImportConfig, import_documents, imported_documents
from marin.errors import DataError
from marin.storage import files

from .source_files import EXPECTED, LINES, PACK, PAGE, TABLES, imported, record, write


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("name", TABLES)
def test_import_of_rows_in_each_format_and_compression_gives_the_same_documents(tmp_path, name, packed):
    path = write(tmp_path / (name + packed), PACK[packed](TABLES[name]))
    assert imported([path]) == EXPECTED


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", b"\xef\xbb\xbf one\r\ntwo ", " one\r\ntwo "),
        ("a.md", "# Kopf\n€".encode(), "# Kopf\n€"),
        ("a.html", PAGE, "Head\n\ncafé text"),
        ("a.HTM", b"<meta charset=windows-1252><p>caf\xe9 text</p>", "café text"),
    ],
)
def test_import_of_a_file_that_is_one_document_is_named_by_it(tmp_path, name, content, text, packed):
    path = write(tmp_path / (name + packed), PACK[packed](content))
    assert imported([path]) == [Document(name + packed, text, "here")]


def warc_members():
    return [
        record("http://a/info", b"x", kind="request"),
        record("http://a/1", PAGE),
        record("http://a/2", b"\x89PNG", "image/png"),
        record("http://a/3", b"gone", status="404 Not Found"),
        record("http://a/4", gzip.compress(PAGE), extra="Content-Encoding: gzip\r\n"),
        record("http://a/5", b"caf\xe9", "text/plain; charset=latin1"),
        record("http://a/6", b"<nav>only a menu</nav>"),
        record("http://a/7", PAGE, "text/html; charset=no-such-set"),
    ]


@pytest.mark.parametrize("packed", PACK)
def test_import_of_a_web_archive_takes_its_pages_and_counts_the_rest(tmp_path, packed):
    archive = b"".join(map(PACK[packed], warc_members()))  # one gzip member, or frame, a record, as crawlers write
    path = write(tmp_path / f"a.warc{packed}", archive)
    config = ImportConfig([str(path)], "web", id_key="url", output_path=str(tmp_path / "out"))
    found = {document.id: document.text for document in import_documents(config).documents()}
    page = "Head\n\ncafé text"
    assert found == {"http://a/1": page, "http://a/4": page, "http://a/5": "café", "http://a/7": page}
    report = files.read_json(str(tmp_path / "out" / "report.json"))
    assert {reason: row["documents"] for reason, row in report["dropped"].items()} == {
        "no_text": 1,
        "no_success": 1,
        "empty_text": 1,
    }
    assert imported([path])[0].id == f"a.warc{packed}:2"


@pytest.mark.parametrize("where", ["middle of a record", "inside its head", "inside the first head"])
def test_import_of_a_web_archive_that_is_cut_is_refused_with_the_record(tmp_path, where):
    members = warc_members()
    archive = b"".join(members[:2])
    length = {
        "middle of a record": len(archive) - 100,
        "inside its head": len(members[0]) + 60,
        "inside the first head": 30,
    }
    path = write(tmp_path / "a.warc", archive[: length[where]])
    with pytest.raises(DataError, match=r"a\.warc, record [12]: "):
        imported([path])


def test_import_ids_and_sources_follow_the_rule(tmp_path):
    rows = [
        {"text": "1", "id": 7, "name": "n1", "source": ""},
        {"text": "2", "name": "n2", "source": 3},
        {"text": "3", "id": None, "name": "n3", "source": "own"},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)).encode())
    assert [(d.id, d.source) for d in imported([path])] == [("7", "here"), ("a.jsonl:2", "here"), ("a.jsonl:3", "own")]
    assert [d.id for d in imported([path], id_key="name")] == ["n1", "n2", "n3"]
    assert [d.text for d in imported([path], text_key="name")] == ["n1", "n2", "n3"]
    with pytest.raises(DataError, match=r"a\.jsonl:2: no_id: there is no field `id`"):
        imported([path], id_key="id")


# --- stores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_import_from_a_store_gives_what_the_local_files_give(tmp_path, request, kind):
    root = f"memory://{tmp_path}/d" if kind == "memory" else request.getfixturevalue("s3_prefix")
    for name in ("a.jsonl", "a.parquet", "array.json"):
        write(tmp_path / "local" / "x" / name, TABLES[name])
        with fsspec.open(f"{root}/x/{name}", "wb") as stream:
            stream.write(TABLES[name])
    expected = imported([tmp_path / "local"])
    assert imported([root]) == imported([f"{root}/x/*"]) == expected
    with fsspec.open(f"{root}/x/a.jsonl.gz", "wb") as stream:
        stream.write(gzip.compress(LINES)[:-20])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz:\d+: the file is cut short"):
        imported([f"{root}/x/a.jsonl.gz"])


@pytest.mark.parametrize("kind", ["memory", "s3", "http"])
def test_import_from_a_store_of_an_object_that_changes_while_it_is_read_is_refused(tmp_path, request, server, kind):
    content = b"".join(b'{"text": "%d"}\n' % i for i in range(3000))
    if kind == "http":
        server.files["a.jsonl"] = content
        path = f"{server.url}/a.jsonl"
    else:
        path = (f"memory://{tmp_path}/d" if kind == "memory" else request.getfixturevalue("s3_prefix")) + "/a.jsonl"
        fsspec.open(path, "wb").open().close()
        fsspec.core.url_to_fs(path)[0].pipe_file(path, content)
    documents = imported_documents(ImportConfig([path], "h"))
    next(documents)
    if kind == "http":
        server.files["a.jsonl"] = content + b'{"text": "more"}\n'
    else:
        fsspec.core.url_to_fs(path)[0].pipe_file(path, content + b'{"text": "more"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl changed while it was read"):
        list(documents)


def test_import_from_a_web_server_reads_the_file_and_refuses_one_that_is_not_there(server):
    server.files["some a.jsonl.gz"] = gzip.compress(LINES)
    server.files["some%20a.jsonl.gz"] = server.files["some a.jsonl.gz"]
    assert imported([f"{server.url}/some%20a.jsonl.gz?x=1"]) == EXPECTED
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read \(.*404.*fetch it with `download_step`"):
        imported([f"{server.url}/none.jsonl"])
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read \(.*Connect.*fetch it with `download_step`"):
        imported([f"http://127.0.0.1:{free_ports(1)[0]}/a.jsonl"])
    server.files["cut.jsonl"], server.faults = LINES, [("drop", len(LINES) // 2)] * 20
    with pytest.raises(
        DataError, match=r"^[^\n]*cut\.jsonl cannot be read \([^\n]*fetch it with `download_step`[^\n]*$"
    ):
        imported([f"{server.url}/cut.jsonl"])
