"""Rows as files of each format and compression, and their import."""

import bz2
import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from marin.data.documents import Document
from marin.data.sources import ImportConfig, imported_documents

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
