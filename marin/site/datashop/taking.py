"""What an uploaded file must be: read once from its start to its end, in a process of its own, and written as clean documents.

    python -m marin.site.datashop.taking FILE NAME FOLDER [--text-field F] [--split whole|lines|blank]

A file comes from anywhere: it may be damaged, cut short, of another type than its name says, one endless line, or a few
kilobytes that expand to terabytes. So nothing of it is kept that was not read and understood here, sizes are limited after
decompression, and the process may use only so much memory and time. What follows in a run reads only what is written here:
`{stem}-{reading}.jsonl.zst`, documents in our own format, and `upload.json`, what was found. Rows without a text are left out and
counted by reason; a file without any document is refused.
"""

import argparse
import collections
import contextlib
import hashlib
import io
import itertools
import pathlib
import resource
from collections.abc import Iterator
from typing import Any

from marin.data.compression import NAMES, BlockStream, decompressed
from marin.data.documents import Document, is_unicode, text_bytes, write_documents
from marin.data.formats import BadRow, Row, json_line_rows
from marin.data.inputs import InputFile, format_of
from marin.errors import DataError, clean_exit, first_line
from marin.storage import files

MOST_TEXT = 16_000_000_000
LONGEST_LINE = 32_000_000
MOST_MEMORY = 4_000_000_000
MOST_SECONDS = 3600
SUMMARY = "upload.json"
SPLITS = {"blank": "documents parted by empty lines", "lines": "a document on each line", "whole": "one document"}
"""What a text file may hold."""
EXPECTED_ENDINGS = (
    f"its name should end in .jsonl, .parquet or .txt (.jsonl and .txt may be packed: {', '.join(NAMES)})"
)

_USUAL_FIELDS = ("text", "content", "body", "document", "markdown", "raw_content")
_LOOKED_AT = 100  # rows, to find the field with the texts
_EXCERPT = 400


def take(path: pathlib.Path, name: str, folder: pathlib.Path, *, text_field: str = "", split: str = "blank") -> None:
    """Writes the documents of the file and `upload.json` into a new folder.

    Args:
        name: what the file is called; its ending says its format.
        text_field: the field or column with the text; "" finds it.
        split: of a text file, a key of `SPLITS`.
    Raises:
        DataError: it is not what its name says, or holds no document, or is beyond the limits.
    """
    kind, compression = format_of(name)
    if kind not in ("jsonl", "parquet", "text"):
        raise DataError(EXPECTED_ENDINGS)
    file = InputFile(str(path), name, kind, compression)
    if kind == "parquet":
        field, rows = _columns(file, text_field)
    elif kind == "text":
        field, rows = "text", _pieces(file, split)
    else:
        field, rows = _fields(file, text_field)
    digest = files.sha256_file(str(path))
    # The same file read in two ways, and two files of one name, are different documents: names of shards and ids say so.
    stem = f"{name.split('.')[0]}-{reading_digest(digest, name, text_field, split)[:8]}"
    target = folder / f"{stem}.jsonl.zst"
    found = _Found(stem, name.split(".")[0], field)
    write_documents(str(target), found.documents(rows))
    if not found.count:
        raise DataError(f"it holds no document{found.first_problem()}")
    summary = {
        "name": name,
        "format": kind,
        "text_field": field,
        "split": split if kind == "text" else None,
        "bytes": path.stat().st_size,
        "digest": digest,
        "file": target.name,
        "documents": found.count,
        "text_bytes": found.text_bytes,
        "left_out": dict(found.left_out.most_common()),
        "first_problem": found.first_problem().removeprefix(": "),
        "excerpts": found.excerpts,
    }
    files.write_json(str(folder / SUMMARY), summary)


def reading_digest(digest: str, name: str, text_field: str, split: str) -> str:
    """What a file's documents depend on, as hexadecimal digits: its content and how it is read."""
    return hashlib.sha256(f"{digest}\0{name}\0{text_field}\0{split}".encode()).hexdigest()


class _Found:
    """Counts of what came by.

    Args:
        stem: of the ids that are made, one for each file and reading.
        source: of rows that name none.
    """

    def __init__(self, stem: str, source: str, field: str) -> None:
        self._stem, self._source, self._field = stem, source, field
        self._ids: set[bytes] = set()
        self.count = self.text_bytes = 0
        self.left_out: collections.Counter[str] = collections.Counter()
        self.excerpts: list[str] = []
        self._problem = ""

    def documents(self, rows: Iterator[Row | BadRow]) -> Iterator[Document]:
        for row in rows:
            document = self._document(row)
            if isinstance(document, BadRow):
                self.left_out[document.reason] += 1
                self._problem = self._problem or f"row {document.number}: {document.detail}"
                continue
            self.count += 1
            self.text_bytes += text_bytes(document.text)
            if len(self.excerpts) < 3:
                self.excerpts.append(document.text[:_EXCERPT])
            yield document

    def first_problem(self) -> str:
        return f": {self._problem[:300]}" if self._problem else ""

    def _document(self, row: Row | BadRow) -> Document | BadRow:
        if isinstance(row, BadRow):
            return row
        text = row.fields.get(self._field)
        if not isinstance(text, str):
            there = ", ".join(str(name)[:40] for name in list(row.fields)[:10]) or "none"
            return BadRow(row.number, "no_text", f"no text in the field {self._field!r} (fields: {there})")
        if not text.strip():
            return BadRow(row.number, "empty_text", "the text is empty")
        source = row.fields.get("source")
        source = source if isinstance(source, str) and source else self._source
        document = Document(self._id(row), text, source)
        if not all(map(is_unicode, (document.id, text, source))):
            return BadRow(row.number, "lone_surrogate", "a field holds half of a character (\\ud800 to \\udfff)")
        return document

    def _id(self, row: Row) -> str:
        """The row's own id where no row before had it, else one made of the file, its reading and the row's number."""
        value = row.fields.get("id")
        own = str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else ""
        digest = hashlib.blake2b(own.encode(errors="replace"), digest_size=8).digest()
        if not own or len(own) > 500 or digest in self._ids:
            return f"{self._stem}:{row.number}"
        self._ids.add(digest)
        return own


# --- rows of each format ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _limited(file: InputFile) -> Iterator[io.BufferedReader]:
    """The unpacked file, which refuses to go on beyond the limits."""
    with open(file.path, "rb") as stream:
        blocks = decompressed(stream, file.compression, lambda: "it cannot be unpacked", "upload it again")
        yield io.BufferedReader(BlockStream(_checked(blocks)), 1 << 17)


def _checked(blocks: Iterator[bytes]) -> Iterator[bytes]:
    total = line = 0
    for block in blocks:
        total += len(block)
        _check_size(total)
        first, last = block.find(b"\n"), block.rfind(b"\n")
        longest = line + (len(block) if first < 0 else first)
        line = longest if last < 0 else len(block) - last - 1
        if longest > LONGEST_LINE:
            raise DataError(
                f"it has a line of more than {LONGEST_LINE / 1e6:g} MB: one document a line is expected, check the format"
            )
        yield block


def _fields(file: InputFile, wanted: str) -> tuple[str, Iterator[Row | BadRow]]:
    """Rows of JSON lines, and the field with the text."""

    def rows() -> Iterator[Row | BadRow]:
        with _limited(file) as stream:
            yield from json_line_rows(InputFile(file.path, file.name, file.format, ""), stream)

    if wanted:
        return wanted, rows()
    all_rows = rows()
    seen = list(itertools.islice(all_rows, _LOOKED_AT))
    return _likely([row.fields for row in seen if isinstance(row, Row)]), itertools.chain(seen, all_rows)


def _likely(found: list[Any]) -> str:
    """The field that most likely holds the texts: one of the usual names, else the strings that are longest together."""
    lengths: collections.Counter[str] = collections.Counter()
    for fields in found:
        for name, value in fields.items():
            if isinstance(value, str):
                lengths[name] += len(value) + 1
    usual = [name for name in _USUAL_FIELDS if name in lengths]
    return usual[0] if usual else max(lengths, key=lambda name: lengths[name], default="text")


def _columns(file: InputFile, wanted: str) -> tuple[str, Iterator[Row | BadRow]]:
    """Rows of a Parquet file, and the column with the text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from marin.data.columns import column_rows

    if file.compression:
        raise DataError(f"a .parquet file is packed inside: upload it without {file.compression}")
    try:
        metadata = pq.read_metadata(file.path)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise DataError(f"it is no Parquet file ({first_line(error)})") from None
    _check_size(sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)))
    strings = [item.name for item in schema if pa.types.is_string(item.type) or pa.types.is_large_string(item.type)]
    field = wanted
    if not wanted:
        with open(file.path, "rb") as stream:
            first = itertools.islice(column_rows(file, stream, optional=strings), _LOOKED_AT)
            field = _likely([row.fields for row in first if isinstance(row, Row)])
    if field not in schema.names:
        raise DataError(f"it has no column {field!r}: its columns are {', '.join(schema.names[:20]) or 'none'}")

    def rows() -> Iterator[Row | BadRow]:
        # What the file says of its size knows nothing of a value that is there once and in many rows.
        total = 0
        with open(file.path, "rb") as stream:
            for row in column_rows(file, stream, needed=[field], optional=["id", "source"]):
                if isinstance(row, Row):
                    total += sum(text_bytes(value) for value in row.fields.values() if isinstance(value, str))
                    _check_size(total)
                yield row

    return field, rows()


def _check_size(size: int) -> None:
    if size > MOST_TEXT:
        raise DataError(f"it expands to more than {MOST_TEXT / 1e9:g} GB: split it into smaller files")


def _pieces(file: InputFile, split: str) -> Iterator[Row | BadRow]:
    """The documents of a text file."""
    with _limited(file) as stream:
        if b"\0" in stream.peek(1 << 16):
            raise DataError("it is no text: it holds NUL bytes")
        for number, content in _parted(stream, split):
            try:
                yield Row(
                    number, {"text": content.decode().removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip("\r\n")}
                )
            except UnicodeDecodeError as error:
                yield BadRow(number, "not_utf8", f"byte {error.start + 1} is not UTF-8 ({error.reason})")


def _parted(stream: io.BufferedReader, split: str) -> Iterator[tuple[int, bytes]]:
    """Number of the first line, and the bytes, of each document."""
    held: list[bytes] = []
    first = size = 0
    for number, line in enumerate(stream, start=1):
        is_blank = not line.strip()
        if split == "lines":
            if not is_blank:
                yield number, line
        elif is_blank and split == "blank":
            if held:
                yield first, b"".join(held)
            held, size = [], 0
        else:
            first = first if held else number
            held.append(line)
            size += len(line)
            if size > LONGEST_LINE:
                raise DataError(
                    f"it has a document of more than {LONGEST_LINE / 1e6:g} MB: say how the file is parted into documents"
                )
    if held:
        yield first, b"".join(held)


# --- as a process -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Exit status 2 and one message for a file that is refused."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("name")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text-field", default="")
    parser.add_argument("--split", choices=sorted(SPLITS), default="blank")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    with clean_exit():
        try:
            take(args.file, args.name, args.folder, text_field=args.text_field, split=args.split)
        except MemoryError:
            raise DataError("it needs more memory than a file may take: split it into smaller files") from None


if __name__ == "__main__":
    main()
