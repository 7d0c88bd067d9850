"""Responses of web archives as servers really send them: one that cannot be read costs itself and nothing behind it."""

import gzip
import time

import pytest

from marin.data.pages import html_text
from marin.data.sources import ImportConfig, import_documents, imported_documents
from marin.errors import DataError
from marin.storage import files

SENTENCE = "A page with enough text to be its main content. "
PAGE = f"<html><body><p>{SENTENCE * 40}</p></body></html>".encode()
TEXT = (SENTENCE * 40).strip()


def response(url, body=PAGE, content_type="text/html; charset=utf-8", extra=""):
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{extra}\r\n".encode() + body
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{url}>\r\nWARC-Target-URI: {url}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return head.encode() + http + b"\r\n\r\n"


BROKEN = {
    "gzip that is none": response("u", b"no gzip", extra="Content-Encoding: gzip\r\n"),
    "an encoding that is not known": response("u", extra="Content-Encoding: zstd\r\n"),
    "chunks that are none": response("u", extra="Transfer-Encoding: chunked\r\n"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_import_of_an_archive_with_a_response_that_cannot_be_read_counts_it_and_goes_on(tmp_path, what):
    path = tmp_path / "a.warc"
    path.write_bytes(response("before") + BROKEN[what] + response("after") * 2)
    config = ImportConfig([str(path)], "web", on_bad_row="skip", output_path=str(tmp_path / "out"))
    found = [(document.id, document.text) for document in import_documents(config).documents()]
    assert found == [("a.warc:1", TEXT), ("a.warc:3", TEXT), ("a.warc:4", TEXT)]
    report = files.read_json(str(tmp_path / "out" / "report.json"))
    assert report["dropped"] == {"bad_response": {"documents": 1, "examples": ["a.warc:2"]}}


@pytest.mark.parametrize("what", BROKEN)
def test_import_of_a_response_that_cannot_be_read_is_refused_in_one_line_that_says_how_to_skip_it(tmp_path, what):
    path = tmp_path / "a.warc"
    path.write_bytes(response("before") + BROKEN[what])
    with pytest.raises(DataError, match=r"a\.warc:2: bad_response: u: .*on_bad_row") as caught:
        list(imported_documents(ImportConfig([str(path)], "web")))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "content_type",
    [
        "text/html; charset=undefined",  # what a script writes that has no name to give
        "text/html; charset=punycode",
        "text/html; charset=utf-8\0",
        "Text/HTML; Charset=UTF-8",
        "TEXT/HTML",
        "application/XHTML+xml",
    ],
)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_import_of_a_response_reads_its_page_however_its_type_is_written(tmp_path, content_type, encoding):
    path = tmp_path / "a.warc"
    body, extra = (gzip.compress(PAGE), "Content-Encoding: gzip\r\n") if encoding else (PAGE, "")
    path.write_bytes(response("u", body, content_type, extra))
    assert [document.text for document in imported_documents(ImportConfig([str(path)], "web"))] == [TEXT]


@pytest.mark.parametrize("tag", ["div", "ul><li", "OL><LI"])
def test_page_of_tags_that_are_never_closed_gives_all_of_its_text_in_a_time_that_grows_with_its_size(tag):
    words = [f"word{number}" for number in range(20_000)]
    page = "".join(f"<{tag}>{word}\n" for word in words).encode()
    started = time.process_time()
    text = html_text(page)
    assert text.split() == words
    assert time.process_time() - started < 3  # 0.1 s; where each element looks at all above it, 10 to 20 s
    assert len(text) < 2 * len(page)


@pytest.mark.parametrize("depth", [1, 400])
def test_page_within_what_browsers_nest_gives_its_main_content_only(depth):
    page = f"<body><nav>Home</nav>{'<div>' * depth}<p>{SENTENCE * 40}</p>{'</div>' * depth}<footer>Imprint</footer>"
    assert html_text(page.encode()) == TEXT
