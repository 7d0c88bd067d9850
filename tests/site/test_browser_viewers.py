"""The data browser over a real server: folders, and what is shown of each kind of file, whole or broken."""

import bz2
import gzip
import html
import json
import lzma
import os
import pathlib
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from browser_pages import CACHE, CORPUS, links_of, open_page, words_of

from marin.site.browser import listing, roots, text

# --- folders ------------------------------------------------------------------------------------------------------


def test_numbers_in_names_count_as_numbers_with_zeros_before_them_too(tmp_path: pathlib.Path) -> None:
    names = ["a-1", "a-02", "a-003", "a-10", "a-0100", "b"]
    for name in reversed(names):
        (tmp_path / name).touch()
    (root,) = roots.make_roots([str(tmp_path)])
    assert [entry.name for entry in listing.list_directory(roots.resolve(root, ())).entries] == names


def test_folder_lists_sizes_kinds_and_states_and_hides_attempts(client: Any) -> None:
    corpus = words_of(open_page(client, CORPUS))
    for words in ("weights.bin 2.56 kB", "rows.parquet", "Parquet", "JSON lines, zstd", "picture.png", "image"):
        assert words in corpus
    runs = open_page(client, "/files/0/checkpoints")
    assert ".attempts" not in words_of(runs)
    assert "run-44444444 / running" in words_of(runs)
    assert ".attempts /" in words_of(open_page(client, "/files/0/checkpoints?all=1"))


def test_folder_of_ten_thousand_entries_is_listed_paged_and_filtered_in_half_a_second(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    for number in range(10_000):
        os.close(os.open(tmp_path / f"shard-{number}.jsonl", os.O_CREAT))
    with serve(tmp_path) as client:
        open_page(client, "/")
        seconds, usual = [], []
        for _ in range(8):  # other work on the machine may disturb some
            # Of the server too, which runs in a thread; a busy machine stretches any other clock.
            start = time.process_time()
            first = words_of(open_page(client, "/files/0"))
            seconds.append(time.process_time() - start)
            # Half a second where adding a million numbers takes 20 ms, as it usually does; a busy machine is slower at both.
            start = time.process_time()
            sum(range(1_000_000))
            usual.append((time.process_time() - start) / 0.02)
        assert min(seconds) < 0.5 * max(1, min(usual))
        assert "10,000 entries" in first and "Page 1 of 100" in first
        assert "shard-99.jsonl" in first and "shard-100.jsonl" not in first  # numbers in their order
        last = words_of(open_page(client, "/files/0?page=100"))
        assert "shard-9999.jsonl" in last and "Next →" in last
        beyond = words_of(open_page(client, "/files/0?page=999999999"))
        assert len({re.sub(r"just now|\d+ (s|min) ago", "", page) for page in (beyond, last)}) == 1
        found = words_of(open_page(client, "/files/0?q=SHARD-12"))
        assert "111 of 10,000 entries" in found and "shard-1299.jsonl" not in found  # on the second page
        assert "shard-1299.jsonl" in words_of(open_page(client, "/files/0?q=SHARD-12&page=2"))
        assert "Nothing here has" in words_of(open_page(client, "/files/0?q=nothing+like+this"))


# --- viewers ------------------------------------------------------------------------------------------------------


def test_json_is_shown_as_a_tree_in_parts_and_searched(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    value = {"rows": [{"n": n, "é/~": f"value {n}"} for n in range(450)], "deep": {"x": [None, True, 1.5]}}
    (tmp_path / "a.json").write_text(json.dumps(value))
    with serve(tmp_path) as client:
        whole = open_page(client, "/files/0/a.json")
        assert "rows : [ 450 items ]" in words_of(whole) and "… 350 more" in words_of(whole)
        part = words_of(open_page(client, "/files/0/a.json?at=/rows&page=3"))
        assert "449 : { 2 keys }" in part and "Page 3 of 3" in part and "deep" not in part
        assert "value 7" in words_of(open_page(client, "/files/0/a.json?at=/rows/7"))
        found = open_page(client, "/files/0/a.json?q=VALUE+44")
        assert "11 found" in words_of(found)
        assert "/files/0/a.json?at=%2Frows%2F449" in links_of(found)
        assert client.get("/files/0/a.json?at=/none").status == 404


def test_json_of_wide_items_names_every_item_of_its_page(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    # More parts than a page has room for: items may be folded into links, and none may be left out.
    (tmp_path / "wide.json").write_text(json.dumps([{f"key{k}": k for k in range(30)} for _ in range(190)]))
    with serve(tmp_path) as client:
        shown = words_of(open_page(client, "/files/0/wide.json"))
        assert "Page" not in shown
        assert all(f" {number} : " in shown for number in range(190))


@pytest.mark.parametrize(
    "name", ["train.jsonl", "train.jsonl.gz", "train.jsonl.zst", "train.jsonl.bz2", "train.jsonl.xz"]
)
def test_rows_are_paged_searched_and_folded(client: Any, name: str) -> None:
    first = open_page(client, f"{CORPUS}/{name}")
    assert first.count('<details><summary><span class="row-number">') == 50
    assert "Document 49 is" in words_of(first) and "Document 50 is" not in words_of(first)
    (following,) = [link for link in links_of(first) if "row=51" in link]
    second = words_of(open_page(client, following))
    assert "Rows 51 to 60 of 60" in second and "Document 59 is" in second and "End" in second
    found = words_of(open_page(client, f"{CORPUS}/{name}?q=CAF%C3%89+number+413"))  # written as \u00e9 in the file
    assert "1 row found" in found and "Document 59 is" in found
    assert "No row has" in words_of(open_page(client, f"{CORPUS}/{name}?q=zebra"))
    for row in ("1,000", "1,000,000,000"):
        beyond = open_page(client, f"{CORPUS}/{name}?row={row.replace(',', '')}")
        assert f"There is no row {row}: the file has 60." in words_of(beyond)
        (last,) = re.findall(r'href="([^"]+)" rel="prev"', beyond)  # not one as far beyond the end
        assert "Rows 11 to 60 of 60" in words_of(open_page(client, last))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_paging_back_through_long_rows_misses_none(
    tmp_path: pathlib.Path, serve: Callable[..., Any], ending: str
) -> None:
    lines = [json.dumps({"n": number, "noise": "x" * (300_000 if number > 30 else 100)}) for number in range(1, 61)]
    data = ("\n".join(lines) + "\n").encode()
    (tmp_path / f"long.jsonl{ending}").write_bytes(gzip.compress(data, 1) if ending else data)
    with serve(tmp_path) as client:
        address, seen = f"/files/0/long.jsonl{ending}?row=61", []
        while address:
            page = open_page(client, address)
            numbers = [int(number) for number in re.findall(r'<span class="row-number">(\d+)', page)]
            assert len(numbers) <= 50 and len(page) < 20_000_000
            seen = numbers + seen
            address = next((html.unescape(link) for link in re.findall(r'href="([^"]+)" rel="prev"', page)), "")
        assert seen == list(range(1, 61))


@pytest.mark.parametrize("name", ["c4.json", "c4.json.gz"])
def test_json_lines_that_are_called_json_are_shown_as_rows(
    tmp_path: pathlib.Path, serve: Callable[..., Any], name: str
) -> None:
    data = "".join(json.dumps({"text": f"Document {n} is here."}) + "\n" for n in range(1, 61)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with serve(tmp_path) as client:
        first = open_page(client, f"/files/0/{name}")
        assert "Rows 1 to 50" in words_of(first) and "Document 50 is here" in words_of(first)
        (following,) = re.findall(r'href="([^"]+)" rel="next"', first)
        assert "Rows 51 to 60 of 60" in words_of(open_page(client, html.unescape(following)))
        assert "1 row found" in words_of(open_page(client, f"/files/0/{name}?q=document+7+"))


def test_byte_order_mark_before_json_lines_is_no_part_of_the_first_row(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    (tmp_path / "windows.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    with serve(tmp_path) as client:
        shown = words_of(open_page(client, "/files/0/windows.jsonl"))
    assert "a: 1" in shown and "a: 2" in shown and "not JSON" not in shown


def test_rows_of_a_large_plain_file_are_reached_again_at_once(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    with open(tmp_path / "big.jsonl", "w") as stream:
        for number in range(1, 200_001):
            stream.write(f'{{"n": {number}, "padding": "{"x" * 80}"}}\n')
    with serve(tmp_path) as client:
        open_page(client, "/files/0/big.jsonl?row=199990")
        seconds = []
        for row in (50_000, 100_000, 150_000):  # other work on the machine may disturb some
            start = time.process_time()
            words = words_of(open_page(client, f"/files/0/big.jsonl?row={row}"))
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.3
        assert "Rows 150,000 to 150,049" in words and "n: 150000," in words
        assert "1 row found" in words_of(open_page(client, "/files/0/big.jsonl?q=%22n%22%3A+123456%2C"))


def test_rows_that_are_broken_say_what_is_wrong_and_the_others_are_shown(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    (tmp_path / "bad.jsonl").write_bytes(
        b'{"a": 1}\n{"a": \n\n' + b"[" * 100_000 + b"\n\xff\xfe\n" + b'"' + b"y" * 3_000_000
    )
    rows = "".join(json.dumps({"n": n, "noise": os.urandom(200).hex()}) + "\n" for n in range(2000)).encode()
    packed = zstandard.ZstdCompressor().compress(rows)
    (tmp_path / "cut.jsonl.zst").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(rows)[:50_000])
    (tmp_path / "cut.jsonl.bz2").write_bytes(bz2.compress(rows, 1)[:200_000])
    (tmp_path / "cut.jsonl.xz").write_bytes(lzma.compress(rows)[:200_000])
    (tmp_path / "none.jsonl.gz").write_bytes(b"this is no gzip")
    (tmp_path / "none.jsonl.bz2").write_bytes(b"this is no bzip2")
    (tmp_path / "two.jsonl.zst").write_bytes(packed + zstandard.ZstdCompressor().compress(b'{"n": "second frame"}\n'))
    with serve(tmp_path) as client:
        bad = words_of(open_page(client, "/files/0/bad.jsonl"))
        assert "a: 1" in bad and "The row is not JSON: Expecting value" in bad and "The row is empty" in bad
        assert "not JSON The row is not" in bad and "empty The row is empty" in bad  # told without opening the row
        assert "nested too deeply" in bad and "The row has 3,000,001 bytes: only its first 1,000,000" in bad
        for name in ("cut.jsonl.zst", "cut.jsonl.gz", "cut.jsonl.bz2", "cut.jsonl.xz"):
            assert "n: 0," in words_of(open_page(client, f"/files/0/{name}"))
            assert "damaged or cut off after row" in words_of(open_page(client, f"/files/0/{name}?q=nothing"))
        for name in ("none.jsonl.gz", "none.jsonl.bz2"):
            assert "damaged or cut off after row 0" in words_of(open_page(client, f"/files/0/{name}"))
        assert "1 row found" in words_of(open_page(client, "/files/0/two.jsonl.zst?q=second+frame"))


def test_gzip_rows_before_a_damage_are_shown_and_its_place_is_told_from_every_page(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    def rows(first: int, last: int) -> bytes:
        return b"".join(b'{"n": %d, "noise": "%s"}\n' % (n, os.urandom(20).hex().encode()) for n in range(first, last))

    compressor = zlib.compressobj(wbits=31)
    half = compressor.compress(rows(1, 501)) + compressor.flush(zlib.Z_FULL_FLUSH)  # a block ends after row 500
    (tmp_path / "cut.jsonl.gz").write_bytes(half)
    (tmp_path / "flipped.jsonl.gz").write_bytes(half + b"\xff" * 1000)  # of no type that a block can have
    (tmp_path / "padded.jsonl.gz").write_bytes(gzip.compress(rows(1, 2)) + bytes(6000) + gzip.compress(rows(2, 3)))
    with serve(tmp_path) as client:
        for name, least in (("cut", 500), ("flipped", 400)):  # 2 kB in which a damage lies are not unpacked
            assert "Rows 1 to 50" in words_of(open_page(client, f"/files/0/{name}.jsonl.gz"))
            beyond = words_of(open_page(client, f"/files/0/{name}.jsonl.gz?row=990"))
            (last,) = re.findall(r"damaged or cut off after row (\d+):", beyond)
            assert least <= int(last) <= 500
            at_it = words_of(open_page(client, f"/files/0/{name}.jsonl.gz?row={last}"))
            assert f"n: {last}," in at_it and f"after row {last}:" in at_it
        assert "Rows 1 to 2 of 2" in words_of(open_page(client, "/files/0/padded.jsonl.gz"))


def test_packed_bomb_is_answered_in_bounded_time(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    with open(tmp_path / "bomb.jsonl.zst", "wb") as stream:
        for _ in range(64):
            stream.write(compressor.compress(bytes(64 << 20)))
        stream.write(compressor.flush())
    with serve(tmp_path) as client:
        start = time.process_time()
        assert "longer than" in words_of(open_page(client, "/files/0/bomb.jsonl.zst"))
        assert time.process_time() - start < 10


def test_parquet_is_paged_by_row_group_and_searched(client: Any) -> None:
    first = open_page(client, f"{CORPUS}/rows.parquet")
    words = words_of(first)
    assert "60 rows in 3 row groups, 4 columns" in words and "Rows 1 to 25" in words
    assert "2 bytes: 0001" in words and "binary" in words
    (following,) = {link for link in links_of(first) if "group=1" in link}
    assert "Rows 26 to 50" in words_of(open_page(client, following))
    assert "Rows 51 to 60" in words_of(open_page(client, f"{CORPUS}/rows.parquet?group=2"))
    found = words_of(open_page(client, f"{CORPUS}/rows.parquet?q=CAF%C3%89+number+413"))
    assert "1 found" in found and "Document 59 is" in found
    assert client.get(f"{CORPUS}/rows.parquet?group=99999&row=99999").status == 200


def test_parquet_of_times_that_python_cannot_hold_is_shown_and_searched(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    instant = 1_700_000_000_000_000_001
    table = {
        "at": pa.array([instant, None], pa.timestamp("ns")),
        "far": pa.array([2**60, 0], pa.timestamp("us", "UTC")),
        "within": pa.array([[{"at": instant}], []], pa.list_(pa.struct([("at", pa.timestamp("ns"))]))),
    }
    pq.write_table(pa.table(table), tmp_path / "times.parquet")
    with serve(tmp_path) as client:
        shown = words_of(open_page(client, "/files/0/times.parquet"))
        assert (
            "Rows 1 to 2" in shown and shown.count("2023-11-14 22:13:20.000000001") == 3
        )  # in its cell and twice in its row
        assert "1 found" in words_of(open_page(client, "/files/0/times.parquet?q=22:13:20.000000001"))


def test_parquet_columns_of_one_name_keep_their_own_values(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    pq.write_table(pa.table([pa.array([17]), pa.array([23])], names=["x", "x"]), tmp_path / "twice.parquet")
    with serve(tmp_path) as client:
        page = open_page(client, "/files/0/twice.parquet")
        assert re.findall(r"<td><bdi>(\d+)</bdi></td>", page) == ["17", "23"]
        assert "x : 17 x (2) : 23" in words_of(page)


def test_text_is_paged_by_bytes_at_line_ends_and_searched(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    lines = [f"line {number} grüße" for number in range(20_000)]
    (tmp_path / "long.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "one_line.txt").write_text("é" * 200_000)
    (tmp_path / "unnamed").write_text("text without an ending")
    with serve(tmp_path) as client:
        address, seen = "/files/0/long.log", []
        while address:
            page = open_page(client, address)
            (content,) = re.findall(r'<pre class="output whole"[^>]*>(.*?)</pre>', page, re.DOTALL)
            seen += content.splitlines()
            address = next((html.unescape(link) for link in re.findall(r'href="([^"]+)" rel="next"', page)), "")
        assert seen == lines
        end = open_page(client, "/files/0/long.log?at=end")
        assert "line 19999" in end and "line 0 " not in end
        address, seen = "/files/0/long.log?at=end", []
        while address:
            page = open_page(client, address)
            (content,) = re.findall(r'<pre class="output whole"[^>]*>(.*?)</pre>', page, re.DOTALL)
            seen = content.splitlines() + seen
            address = next((html.unescape(link) for link in re.findall(r'href="([^"]+)" rel="prev"', page)), "")
        assert seen == lines  # who reads from the end back misses none
        found = open_page(client, "/files/0/long.log?q=LINE+12345")
        assert "1 line found" in words_of(found)
        (place,) = [link for link in links_of(found) if "at=" in link]
        assert re.search(r'<pre class="output whole"[^>]*>line 12345 ', open_page(client, place))
        assert "�" not in open_page(client, "/files/0/one_line.txt?at=65537")
        assert "text without an ending" in open_page(client, "/files/0/unnamed")


def test_json_page_beyond_the_last_is_the_last(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps({f"key{number}": number for number in range(450)}))
    with serve(tmp_path) as client:
        for address, pages in (("/files/0/a.json?page=99", 3), ("/files/0/a.json?q=key&page=99", 5)):
            page = words_of(open_page(client, address))
            assert f"Page {pages} of {pages}" in page and "key449" in page and "No key or value" not in page
        assert "No key or value has “none”" in words_of(open_page(client, "/files/0/a.json?q=none&page=2"))


@pytest.mark.parametrize("ending", [b"", b"\n"])
@pytest.mark.parametrize("length", [16_001, 65_536, 65_537, 200_000])
def test_text_that_ends_with_a_very_long_line_shows_the_end_of_that_line(
    tmp_path: pathlib.Path, ending: bytes, length: int
) -> None:
    whole = b"first\n" + "é".encode() * (length // 2) + b"!" + ending
    (tmp_path / "progress.log").write_bytes(whole)
    with open(tmp_path / "progress.log", "rb", buffering=0) as file:
        assert text.tail(file, 16_000).rstrip("\n").endswith("é!") and "�" not in text.tail(file, 16_000)
        page = text.read_page_before(file, None)
        assert page.stop == len(whole) and page.text
        seen = [page.text]
        while page.start:
            later, page = page, text.read_page_before(file, page.start)
            assert page.stop == later.start
            seen.insert(0, page.text)
        assert "".join(seen) == whole.decode()


def test_text_search_in_lines_longer_than_a_block_finds_each_place(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    border = 1 << 20  # at which the file is read in blocks
    line = bytearray(b"x" * 3_500_000)
    for place in (border - 3, 3 * border - 100):
        line[place : place + 6] = b"needle"
    (tmp_path / "long.txt").write_bytes(bytes(line) + b"\nanother needle\n")
    with serve(tmp_path) as client:
        found = open_page(client, "/files/0/long.txt?q=NEEDLE")
        assert "3 lines found" in words_of(found)
        links = [link for link in links_of(found) if "at=" in link]
        assert links[-1].endswith(f"at={len(line) + 1}")
        assert all("needle" in open_page(client, link) for link in links)


def test_token_cache_is_decoded_paged_and_searched(client: Any, browser_prefix: Any) -> None:
    folder = open_page(client, CACHE)
    assert f"{CACHE}?view=tokens" in links_of(folder)
    page = open_page(client, f"{CACHE}?view=tokens")
    assert html.escape(browser_prefix.texts[0]) in page
    words = words_of(page)
    assert "60 documents" in words and "Documents 1 to 20" in words
    assert "/files/0/tokenizers/bpe-22222222/tokenizer.json" in links_of(page)
    assert "Documents 41 to 60" in words_of(open_page(client, f"{CACHE}?view=tokens&row=41"))
    found = words_of(open_page(client, f"{CACHE}?view=tokens&q=CAF%C3%89+number+413"))
    assert "1 found" in found and "Document 59 is" in found
    assert "Documents 1 to 20" in words_of(open_page(client, f"{CACHE}/train?view=tokens"))


def test_token_cache_without_its_tokenizer_shows_ids_and_a_damaged_one_a_reason(
    make_prefix: Callable[[], Any], serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    with serve(prefix.path) as client:
        tokenizer = prefix.path / prefix.tokenizer / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text() + " ")
        words = words_of(open_page(client, f"{CACHE}?view=tokens"))
        assert "another than the one that made this cache" in words and "Document 0" not in words
        tokenizer.unlink()
        assert "No tokenizer.json was found" in words_of(open_page(client, f"{CACHE}?view=tokens"))
        chunk = prefix.path / prefix.cache / "train" / "input_ids" / "data" / "c" / "0"
        chunk.write_bytes(chunk.read_bytes()[:-40])
        answer = client.get(f"{CACHE}?view=tokens")
        assert answer.status == 422 and str(prefix.path) not in words_of(answer.text).split("Read only")[0]
        chunk.unlink()
        chunk.symlink_to("/etc/passwd")
        assert client.get(f"{CACHE}?view=tokens").status == 403


def test_images_are_shown_and_all_else_is_only_given_as_a_download(client: Any) -> None:
    assert f'<img src="/raw/0{CORPUS[8:]}/picture.png"' in open_page(client, f"{CORPUS}/picture.png")
    for name, media_type in (
        ("picture.png", "image/png"),
        ("drawing.svg", "application/octet-stream"),
        ("weights.bin", "application/octet-stream"),
        ("train.jsonl", "application/octet-stream"),
    ):
        answer = client.get(f"/raw/0{CORPUS[8:]}/{name}")
        assert answer.status == 200
        assert answer.headers["content-type"] == media_type
        assert answer.headers["content-disposition"].startswith(f'attachment; filename="{name}"')
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
    assert "<img" not in open_page(client, f"{CORPUS}/drawing.svg")
    assert client.get(f"/raw/0{CORPUS[8:]}/weights.bin").body == bytes(range(256)) * 10
    head = client.get(f"/raw/0{CORPUS[8:]}/weights.bin", method="HEAD")
    assert head.headers["content-length"] == "2560" and head.body == b""


def test_broken_files_of_every_kind_give_a_reason_and_no_traceback(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    cases = {
        "a.json": (b'{"a": ', "It is not valid JSON"),
        "deep.json": (b"[" * 200_000, "nested too deeply"),
        "bytes.json": (b"\xff\xfe\x00", "It is not valid JSON"),
        "empty.json": (b"\n", "The file is empty"),
        "big.json": (b" " * 33_000_000, "above 32.0 MB it is not shown as a tree"),
        "a.parquet": (b"PAR1" + os.urandom(500) + b"PAR1", "not a readable Parquet file"),
        "empty.parquet": (b"", "not a readable Parquet file"),
        "empty.jsonl": (b"", "The file has no rows"),
        "empty.txt": (b"", "The file is empty"),
        "huge.json": (b"1" * 10_000, "It is not valid JSON"),
        "noise": (os.urandom(3000), "There is no view for this kind of file"),
    }
    for name, (content, _) in cases.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop").symlink_to("loop")
    with serve(tmp_path) as client:
        for name, (_, reason) in cases.items():
            answer = client.get(f"/files/0/{name}")
            assert reason in words_of(answer.text), name
            assert answer.status == 200 and f'href="/raw/0/{name}"' in answer.text  # the bytes can be had all the same
            assert "Traceback" not in answer.text
        assert client.get("/files/0/pipe.json").status == 400
        assert client.get("/raw/0/pipe.json").status == 400
        assert client.get("/files/0/loop").status == 404
        assert "pipe.json" in words_of(open_page(client, "/files/0"))
