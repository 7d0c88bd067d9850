import bz2
import errno
import gzip
import json
import lzma
import os
import random
import tracemalloc

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin.children import free_ports
from marin.data.compression import decompressed
from marin.data.documents import Document
from marin.data.inputs import find_inputs
from marin.data.sources import ImportConfig, import_documents, import_step, imported_documents
from marin.errors import ConfigError, DataError
from marin.storage import files

ROWS = [{"id": f"d{i}", "text": f"text {i} é\n", "source": "s"} for i in range(5)]
EXPECTED = [Document(row["id"], row["text"], row["source"]) for row in ROWS]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PAGE = b"<html><head><title>T</title></head><body><nav>Menu</nav><main><h1>Head</h1><p>caf\xc3\xa9 text</p></main></body></html>"


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=2)
    return sink.getvalue().to_pybytes()


def arrow(rows, kind):
    table, sink = pa.Table.from_pylist(rows), pa.BufferOutputStream()
    with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def record(url, body, content_type="text/html; charset=utf-8", status="200 OK", kind="response", extra=""):
    http = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{extra}\r\n".encode() + body
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{url}>\r\nWARC-Target-URI: {url}\r\n"
        f"WARC-Date: 2026-01-01T00:00:00Z\r\nContent-Type: application/http\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return head.encode() + http + b"\r\n\r\n"


PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
TABLES = {
    "a.jsonl": LINES,
    "a.ndjson": LINES.replace(b"\n", b"\r\n\n"),
    "lines.json": LINES,
    "array.json": json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
    "a.parquet": parquet(ROWS),
    "stream.arrow": arrow(ROWS, "stream"),
    "file.arrow": arrow(ROWS, "file"),
}

TABLE_FILES = [name for name in TABLES if name.endswith((".parquet", ".arrow"))]


def imported(paths, **options):
    return list(imported_documents(ImportConfig([str(path) for path in paths], "here", **options)))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


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


# --- names, order and fields --------------------------------------------------------------------------------------


def test_import_of_a_folder_takes_known_files_by_name_and_says_what_it_leaves_out(tmp_path, capsys):
    write(tmp_path / "c" / "b.jsonl", LINES)
    write(tmp_path / "c" / "a" / "z.txt", b"z")
    write(tmp_path / "c" / ".hidden" / "x.txt", b"x")
    write(tmp_path / "c" / ".executor_info.json", b"{}")
    write(tmp_path / "c" / "picture.png", b"x")
    config = ImportConfig([str(tmp_path / "c")], "c", output_path=str(tmp_path / "out"))
    assert [document.id for document in import_documents(config).documents()] == [
        "a/z.txt",
        "d0",
        "d1",
        "d2",
        "d3",
        "d4",
    ]
    assert "picture.png" in capsys.readouterr().out
    table = files.read_json(str(tmp_path / "out" / "sources.json"))
    assert [(row["file"], row["documents"]) for row in table["files"]] == [("a/z.txt", 1), ("b.jsonl", 5)]
    assert table["left_out"] == ["picture.png"]
    assert len(imported([tmp_path / "c"])) == 6  # where nothing is written it is said too
    assert "picture.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["a.txt"]),
        ("**/*.txt", ["a.txt", "x/b.txt", "x/y/c.txt"]),
        ("x/*.txt", ["b.txt"]),
        ("x/?/c.*", ["y/c.txt"]),
        ("[ab].txt", ["a.txt"]),
        ("x", ["b.txt", "y/c.txt"]),
        ("x/b.txt", ["b.txt"]),
    ],
)
def test_import_of_a_pattern_names_files_from_where_it_begins(tmp_path, pattern, names):
    for name in ("a.txt", "x/b.txt", "x/y/c.txt"):
        write(tmp_path / name, b"text")
    assert [file.name for file in find_inputs([f"{tmp_path}/{pattern}"]).files] == names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("corpus", ["linked/a.txt", "linked/below/b.txt", "one.txt"]),
        ("corpus/*/*.txt", ["linked/a.txt"]),
        ("corpus/**/*.txt", ["linked/a.txt", "linked/below/b.txt", "one.txt"]),
        ("corpus/*.txt", ["one.txt"]),
    ],
)
def test_import_of_a_folder_of_links_reads_what_they_lead_to_and_no_circle(tmp_path, pattern, names):
    write(tmp_path / "elsewhere" / "a.txt", b"text")
    write(tmp_path / "elsewhere" / "below" / "b.txt", b"text")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "one", b"text")
    (tmp_path / "corpus" / "one.txt").symlink_to(tmp_path / "one")
    (tmp_path / "elsewhere" / "below" / "circle").symlink_to(tmp_path / "corpus")
    found = find_inputs([f"{tmp_path}/{pattern}"])
    assert [file.name for file in found.files] == names
    assert not found.unknown
    (tmp_path / "corpus" / "broken.txt").symlink_to(tmp_path / "corpus" / "broken.txt")
    if pattern == "corpus":
        with pytest.raises(DataError, match=r"broken\.txt cannot be looked up"):
            imported([tmp_path / "corpus"])


@pytest.mark.parametrize("asked", ["corpus", "corpus/**/*.txt"])
def test_import_of_a_file_that_two_names_lead_to_reads_it_once_and_says_so(tmp_path, capsys, monkeypatch, asked):
    write(tmp_path / "place" / "corpus" / "b" / "x.txt", b"x")
    write(tmp_path / "place" / "corpus" / "b" / "y.txt", b"y")
    (tmp_path / "place" / "corpus" / "a").symlink_to("b")  # before it by name
    (tmp_path / "place" / "corpus" / "z.txt").symlink_to("b/y.txt")
    (tmp_path / "work").symlink_to("place")  # ids do not depend on where a corpus lies
    monkeypatch.chdir(tmp_path / "work")
    assert [document.id for document in imported([asked])] == ["b/x.txt", "b/y.txt"]
    assert (
        "left out as another name of a file that is read: 3 files (a/x.txt, a/y.txt, z.txt)" in capsys.readouterr().out
    )


@pytest.mark.parametrize("asked", ["disk", "disk/**/*.txt"])
def test_import_of_a_disk_passes_over_what_is_the_systems_and_names_any_other_folder_that_cannot_be_listed(
    tmp_path, monkeypatch, asked
):
    write(tmp_path / "disk" / "a.txt", b"text")
    (tmp_path / "disk" / "lost+found").mkdir()
    scandir = os.scandir

    def as_no_root(folder):
        if str(folder).endswith(("lost+found", "secret")):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", as_no_root)
    assert [file.name for file in find_inputs([f"{tmp_path}/{asked}"]).files] == ["a.txt"]
    (tmp_path / "disk" / "secret").mkdir()
    with pytest.raises(DataError, match=r"disk/secret cannot be listed \(Permission denied\)"):
        find_inputs([f"{tmp_path}/{asked}"])


def test_import_of_two_files_that_would_have_one_name_is_refused(tmp_path):
    for folder in "ab":
        write(tmp_path / folder / "x.txt", b"text")
    with pytest.raises(DataError, match=r"both be called 'x\.txt'"):
        find_inputs([str(tmp_path / "a"), str(tmp_path / "b")])


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


# --- what is wrong with files -------------------------------------------------------------------------------------

BAD_LINES = {
    "not_json": b'{"text": "a",}',
    "not_an_object": b'["text"]',
    "text_is_no_string": b'{"content": "a"}',
    "not_utf8": b'{"text": "caf\xe9"}',
    "lone_surrogate": b'{"text": "\\ud800"}',
}


@pytest.mark.parametrize("reason", BAD_LINES)
@pytest.mark.parametrize("packed", PACK)
def test_import_of_a_bad_line_names_file_and_line_or_skips_and_counts_it(tmp_path, reason, packed):
    lines = LINES.splitlines()
    lines.insert(3, BAD_LINES[reason])
    path = write(tmp_path / f"a.jsonl{packed}", PACK[packed](b"\n".join(lines)))
    with pytest.raises(DataError, match=rf"a\.jsonl{packed}:4: {reason}: .*on_bad_row"):
        imported([path])
    config = ImportConfig([str(path)], "here", on_bad_row="skip", output_path=str(tmp_path / "out"))
    assert list(import_documents(config).documents()) == EXPECTED
    report = files.read_json(str(tmp_path / "out" / "report.json"))
    assert report["documents"] == {"in": 6, "kept": 5, "changed": 0, "dropped": 1}
    assert report["dropped"] == {reason: {"documents": 1, "examples": [f"a.jsonl{packed}:4"]}}


@pytest.mark.parametrize("names", [["text", "text"], ["text", "id", "id"]])
def test_import_of_columns_of_one_name_takes_none_of_them_for_it(tmp_path, names):
    table = pa.Table.from_arrays([pa.array([name]) for name in "abc"[: len(names)]], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    if names.count("text") > 1:
        with pytest.raises(DataError, match="a.parquet has several columns `text`"):
            imported([tmp_path / "a.parquet"])
    else:
        assert imported([tmp_path / "a.parquet"]) == [Document("a.parquet:1", "a", "here")]


@pytest.mark.parametrize("packed", [".bz2", ".xz"])
def test_import_of_an_archive_of_many_streams_gives_all_and_a_block_of_zeros_takes_no_memory(tmp_path, packed):
    streams = [PACK[packed](line) for line in LINES.splitlines(keepends=True)]
    padding = bytes(8) if packed == ".xz" else b""  # as `xz` leaves between files
    path = write(tmp_path / f"a.jsonl{packed}", padding.join(streams) + padding)
    assert imported([path]) == EXPECTED
    bomb = write(tmp_path / f"bomb.jsonl{packed}", PACK[packed](bytes(100_000_000)))
    assert bomb.stat().st_size < 20_000
    with bomb.open("rb") as stream:
        sizes = [len(block) for block in decompressed(stream, packed, lambda: "bomb")]
    assert sum(sizes) == 100_000_000 and max(sizes) < 1_000_000


@pytest.mark.parametrize("window_log", [27, 28, 31])
def test_import_of_a_zstd_archive_with_a_long_window_gives_its_documents(tmp_path, window_log):
    writer = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=window_log)
    ).compressobj()  # as `zstd --long=N` does from a pipe, which does not know the size
    path = write(tmp_path / "a.jsonl.zst", writer.compress(LINES) + writer.flush())
    assert imported([path]) == EXPECTED


@pytest.mark.parametrize("packed", [packed for packed in PACK if packed])
@pytest.mark.parametrize("on_bad_row", ["refuse", "skip"])
def test_import_of_a_truncated_archive_is_refused_with_file_and_line(tmp_path, packed, on_bad_row):
    content = PACK[packed](b"".join(b'{"text": "%d"}\n' % random.Random(i).getrandbits(400) for i in range(20_000)))
    path = write(tmp_path / f"a.jsonl{packed}", content[: len(content) // 2])
    with pytest.raises(DataError, match=rf"a\.jsonl{packed}:[1-9]\d+: the file is cut short") as caught:
        imported([path], on_bad_row=on_bad_row)
    line = int(str(caught.value).split(":")[1])
    assert 2000 < line < 13_000


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.jsonl.xz", "a.txt.gz", *TABLE_FILES])
@pytest.mark.parametrize("damage", ["cut", "flipped", "appended"])
def test_import_of_a_damaged_file_is_refused_by_name_or_gives_the_right_documents(tmp_path, name, damage):
    stem, packed = os.path.splitext(name) if not name.endswith((".parquet", ".arrow")) else (name, "")
    good = PACK[packed](TABLES.get(stem, b"some text\n" * 200))
    if damage == "cut":
        contents = [good[:length] for length in range(1, len(good), max(1, len(good) // 25))]
    elif damage == "appended":
        contents = [good + b"more"]
    else:
        contents = [
            good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] for at in range(0, len(good), max(1, len(good) // 25))
        ]
    allowed = imported([write(tmp_path / "good" / name, good)])
    right = 0
    for number, content in enumerate(contents):
        path = write(tmp_path / str(number) / name, content)
        try:
            found = imported([path])
        except DataError as error:
            right += name in str(error)
        else:
            # Parquet and Arrow carry no checksum of values: a flipped bit there can change a text, never the count.
            assert found == allowed or (damage == "flipped" and not packed and len(found) == len(allowed))
            right += 1
    assert right == len(contents)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.json", "a.html", "a.warc", "a.jsonl.gz", "a.parquet"])
def test_import_of_an_empty_file_is_refused_by_name_or_counted(tmp_path, name):
    content = gzip.compress(b"") if name.endswith(".gz") else b""
    if name.endswith(".parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), sink)
        content = sink.getvalue().to_pybytes()
    paths = [write(tmp_path / name, content), write(tmp_path / "full.jsonl", LINES)]
    with pytest.raises(DataError, match=rf"{name} is empty"):
        imported(paths)
    config = ImportConfig([str(path) for path in paths], "h", on_bad_row="skip", output_path=str(tmp_path / "out"))
    assert import_documents(config).num_documents == 5
    report = files.read_json(str(tmp_path / "out" / "report.json"))
    assert report["dropped"] == {"empty_file": {"documents": 1, "examples": [name]}}


@pytest.mark.parametrize("on_bad_row", ["refuse", "skip"])
@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow"])
def test_import_of_a_table_without_the_column_names_those_it_has(tmp_path, name, on_bad_row):
    path = write(tmp_path / name, TABLES[name])
    with pytest.raises(DataError, match=rf"{name} has no column `body`: name one of id, text, source"):
        imported([path], text_key="body", on_bad_row=on_bad_row)


def test_import_of_lines_without_the_field_says_how_to_name_another(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"content": "a", "url": "b"}')
    with pytest.raises(
        DataError, match=r"a\.jsonl:1: .*no field `text` \(fields: content, url; `text_key` names another\)"
    ):
        imported([path])
    with pytest.raises(DataError, match=r"no field `key` \(fields: content, url; `id_key` names another\)"):
        imported([path], text_key="content", id_key="key")


def test_import_of_a_column_of_another_type_says_what_it_holds(tmp_path):
    path = write(tmp_path / "a.parquet", parquet([{"text": "a", "tokens": [1, 2]}]))
    with pytest.raises(DataError, match=r"column `tokens` holds list"):
        imported([path], text_key="tokens")


def test_import_of_a_table_with_nulls_and_bad_strings_counts_these_rows(tmp_path):
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    column = pa.chunked_array([pa.array(["one", None]), bad, pa.array(["two"])])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": column}), sink)
    path = write(tmp_path / "a.parquet", sink.getvalue().to_pybytes())
    with pytest.raises(DataError, match=r"a\.parquet:2: text_is_no_string: field `text` holds null"):
        imported([path])
    assert [(d.id, d.text) for d in imported([path], on_bad_row="skip")] == [
        ("a.parquet:1", "one"),
        ("a.parquet:4", "two"),
    ]


def test_import_in_which_every_row_is_dropped_is_refused_with_the_reasons(tmp_path):
    path = write(tmp_path / "a.jsonl", LINES)
    config = ImportConfig([str(path)], "h", text_key="body", on_bad_row="skip", output_path=str(tmp_path / "out"))
    with pytest.raises(DataError, match=r"no document remains.*text_is_no_string \(5\).*'body'"):
        import_documents(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"text": "a"}, {"text": }]', r"a\.json:1: the JSON array cannot be read"),
        (b'[{"text": "a"},\n{"text": "b"}\n', r"a\.json:2: the JSON array cannot be read"),
        (b'[{"text": "a"},\n{"text": "b" 5}' + b',\n{"text": "c"}' * 9000, r"a\.json:2: .*Expecting ',' delimiter"),
        (b"[" + b'{"text": "a"},\n' * 9000 + b'{"text": "\xff"}]', r"a\.json:9001: the JSON array .*is not UTF-8"),
        (b'[{"text": "a"}] 5', r"more behind the array's end"),
        (b'{\n"text": "a",\n', r"neither JSON lines \(line 1:.*nor one JSON value"),
        (b"[" * 100_000, r"the JSON array cannot be read"),
        (b"5\n", r"a\.json:1: not_an_object: found a int"),
    ],
)
def test_import_of_a_json_file_that_is_none_says_where(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        imported([write(tmp_path / "a.json", content)])


def test_import_of_one_json_object_over_many_lines_is_one_document(tmp_path):
    path = write(tmp_path / "a.json", json.dumps(ROWS[0], indent=1).encode())
    assert imported([path]) == EXPECTED[:1]


def test_import_of_a_long_json_array_reads_each_element_whatever_its_length(tmp_path):
    rows = [{"id": str(i), "text": "x" * (1 + 37 * i * i % 150_000)} for i in range(200)]
    path = write(tmp_path / "a.json", json.dumps(rows).encode())
    assert [(d.id, d.text) for d in imported([path])] == [(row["id"], row["text"]) for row in rows]


def test_import_of_a_json_array_on_one_line_holds_no_more_of_it_than_an_element(tmp_path):
    row = json.dumps({"text": "é " * 5_000})
    path = write(tmp_path / "a.json", f"[{', '.join([row] * 500)}]".encode())
    tracemalloc.start()
    try:
        documents = imported_documents(ImportConfig([str(path)], "h"))
        assert sum(document.text == "é " * 5_000 for document in documents) == 500
        assert tracemalloc.get_traced_memory()[1] < 8_000_000  # of 17 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("change", ["grown", "rewritten", "replaced", "removed"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_import_of_a_file_that_changes_while_it_is_read_is_refused(tmp_path, change, name):
    rows = [{"text": f"{i} " * 50} for i in range(3000)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = write(tmp_path / name, lines if name == "a.jsonl" else parquet(rows))
    documents = imported_documents(ImportConfig([str(path)], "h"))
    next(documents)
    if change == "grown":
        with open(path, "ab") as stream:
            stream.write(b'{"text": "more"}\n')
    elif change == "rewritten":
        os.utime(path, ns=(1, 1))
    elif change == "replaced":
        os.replace(write(tmp_path / "other" / name, path.read_bytes()), path)
    else:
        path.unlink()
    with pytest.raises(DataError, match=rf"{name} (changed while it was read|cannot be looked up)"):
        list(documents)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["/no/such/place"], "is no file and no folder"),
        (["memory://no/such/place"], "^memory://no/such/place is no file and no folder"),
        (["nosuchstore://x/a.txt"], "no known store"),
        (["{tmp}/x.pdf"], "no file of a known format .found: x.pdf.: use .txt"),
        (["{tmp}/*.csv"], r"\*\.csv names no file, as a pattern"),
        (["{tmp}/a.txt", "{tmp}/tpyo/*.txt"], r"tpyo/\*\.txt names no file"),
        (["{tmp}/a.txt", "{tmp}/empty"], "/empty names no file"),
    ],
)
def test_import_of_paths_that_name_nothing_says_what_was_looked_for(tmp_path, paths, message):
    write(tmp_path / "x.pdf", b"x")
    write(tmp_path / "a.txt", b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=message):
        imported([path.format(tmp=tmp_path) for path in paths])


def test_import_configs_with_unusable_values_are_refused_by_field():
    with pytest.raises(ConfigError, match="`on_bad_row` is 'ignore'"):
        import_step("x", ["a.txt"], on_bad_row="ignore")
    with pytest.raises(ConfigError, match="`paths` is the string"):
        ImportConfig("a.txt", "x")
    with pytest.raises(ConfigError, match="`paths` is empty"):
        imported([])
    with pytest.raises(ConfigError, match="`paths` has an empty path"):
        imported([""])


def test_import_of_a_document_set_says_to_use_it_as_it_is(tmp_path):
    config = ImportConfig([str(write(tmp_path / "a.txt", b"text"))], "h", output_path=str(tmp_path / "set"))
    import_documents(config)
    with pytest.raises(DataError, match="is a document set already"):
        imported([tmp_path / "set"])
    assert imported([tmp_path / "set" / "documents"]) == [Document("a.txt", "text", "h")]


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
