"""What is wrong with files: named by file and place and refused, or skipped and counted; never a wrong document."""

import gzip
import json
import os
import random
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin.data.compression import decompressed
from marin.data.documents import Document
from marin.data.sources import ImportConfig, import_documents, import_step, imported_documents
from marin.errors import ConfigError, DataError
from marin.storage import files

from .source_files import EXPECTED, LINES, PACK, ROWS, TABLE_FILES, TABLES, imported, parquet, write

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


def test_import_configs_with_unusable_values_are_refused_by_field():
    with pytest.raises(ConfigError, match="`on_bad_row` is 'ignore'"):
        import_step("x", ["a.txt"], on_bad_row="ignore")
    with pytest.raises(ConfigError, match="`paths` is the string"):
        ImportConfig("a.txt", "x")
    with pytest.raises(ConfigError, match="`paths` is empty"):
        imported([])
    with pytest.raises(ConfigError, match="`paths` has an empty path"):
        imported([""])
