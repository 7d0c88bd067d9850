"""Web pages as text: HTML files, and the responses in WARC archives.

The text of an HTML page is its main content as the library resiliparse finds it: navigation, headers, footers and the
like are left out, block elements end lines. A page that is nested deeper than browsers follow, which tags that are never
closed make, gives all of its text. The character set is the one that the response names, or else UTF-8
where the bytes are that, or else what the page says of itself or its bytes suggest.

A WARC row has `text`, `url`, `record_id` and `date`. Requests, metadata and the like are no rows. A response that is
neither HTML nor plain text, or no success (status 200 to 299), is a `Skipped` row: it never was a document, and is counted.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from marin.data.compression import BlockStream, decompressed
from marin.data.formats import BadRow, Row
from marin.data.inputs import InputFile
from marin.errors import DataError

_HTML_TYPES = ("text/html", "application/xhtml+xml")
_PLAIN_TYPE = "text/plain"
_SHOWN = 200
# Elements inside of each other, as many as browsers nest before they flatten the rest. To find the main content,
# resiliparse looks from each element at all above it: 10,000 unclosed <div> took 5 s.
_MAX_NESTING = 512
_DEEPEST = " > ".join(["*"] * (_MAX_NESTING + 1))
_LIST_TAG = re.compile(r"<(/?)[uo]l\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A row that is as it should be, and no document."""

    number: int
    reason: str
    detail: str


def html_rows(file: InputFile, stream: BinaryIO) -> Iterator[Row | BadRow]:
    """The one row of an HTML file, with the field `text`; none if the file is empty."""
    if page := b"".join(decompressed(stream, file.compression, lambda: file.path)):
        yield Row(1, {"text": html_text(page)})


def html_text(page: bytes, charset: str | None = None) -> str:
    """The main content of an HTML page; "" where there is none.

    Args:
        charset: what the response's header says; an unknown name is as good as none.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    html = _decoded(page, charset)
    tree = HTMLTree.parse(html)
    document = tree.document
    assert document is not None, "only a tree that was never parsed has none"
    if html.count("<") <= _MAX_NESTING or document.query_selector(_DEEPEST) is None:
        return str(extract_plain_text(tree, main_content=True)).strip()
    # Items are indented by the depth of their list, which in lists this deep is more white space than memory holds.
    without_lists = _LIST_TAG.sub(r"<\1div", html)
    return str(extract_plain_text(without_lists, main_content=False, list_bullets=False)).strip()


def warc_rows(file: InputFile, stream: BinaryIO) -> Iterator[Row | BadRow | Skipped]:
    """The responses of an archive; their numbers count all records.

    Raises:
        DataError: the archive is damaged or cut short.
    """
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    number = 0
    # fastwarc takes an archive that is cut inside a member for a whole one, so the members are unpacked here.
    unpacked = BlockStream(decompressed(stream, file.compression, lambda: f"{file.path}, record {number + 1}"))
    records = iter(
        ArchiveIterator(unpacked, record_types=WarcRecordType.any_type, parse_http=False, stream_detect=False)
    )
    while True:
        try:
            record = next(records, None)
        except OSError as error:
            raise DataError(
                f"{file.path}, record {number + 1}: this is no WARC record ({error}): fetch the file again"
            ) from None
        if record is None:
            return
        number += 1
        declared = record.headers.get("Content-Length") or ""
        record.freeze()
        if not declared.isdecimal() or int(declared) != record.content_length:
            raise DataError(
                f"{file.path}, record {number}: the archive is cut short or damaged here (the record has "
                f"{record.content_length} bytes of {declared or 'a length that is not stated'}): fetch the file again"
            )
        if record.record_type == WarcRecordType.response:
            yield _response_row(record, number)


def _response_row(record: Any, number: int) -> Row | BadRow | Skipped:
    url = record.headers.get("WARC-Target-URI", "").strip("<>")
    response = _alone(record)
    try:
        response.parse_http(auto_decode="all")
        body = response.reader.read()
    except (OSError, ValueError) as error:
        return BadRow(number, "bad_response", f"{url}: {str(error)[:_SHOWN]}")  # it may show the whole body
    status = response.http_headers.status_code if response.http_headers else None
    if status is None or not 200 <= status < 300:
        return Skipped(number, "no_success", f"{url}: HTTP status {status}")
    kind = (response.http_content_type or "").lower()
    if kind not in (*_HTML_TYPES, _PLAIN_TYPE):
        return Skipped(number, "no_text", f"{url}: {kind or 'no content type'}")
    charset = response.http_charset
    text = _decoded(body, charset) if kind == _PLAIN_TYPE else html_text(body, charset)
    fields = {"text": text, "url": url, "record_id": (record.record_id or "").strip("<>")}
    return Row(number, fields | {"date": record.headers.get("WARC-Date", "")})


def _alone(record: Any) -> Any:
    """A copy of a frozen record: an archive whose record fails in the middle of its body cannot be read on."""
    from fastwarc.warc import WarcRecord

    content = record.reader.read()
    kind = record.headers.get("Content-Type")
    lines = ["WARC/1.0", f"Content-Length: {len(content)}", *([f"Content-Type: {kind}"] if kind else []), "", ""]
    return WarcRecord.from_bytes("\r\n".join(lines).encode() + content + b"\r\n\r\n")


def _decoded(page: bytes, charset: str | None) -> str:
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    if charset is not None:
        try:
            return str(bytes_to_str(page, charset))
        except (LookupError, ValueError):
            pass  # servers name character sets that do not exist, and "undefined", which Python has and which decodes nothing
    try:
        return page.decode("utf-8-sig")  # the guess is wrong for short texts in UTF-8
    except UnicodeDecodeError:
        return str(bytes_to_str(page, detect_encoding(page, from_html_meta=True) or "utf-8"))
