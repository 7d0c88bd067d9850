"""The data browser over a real server: listings, viewers, provenance, refusals, and what broken or hostile files do."""

import gzip
import html
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
import zstandard

from marin.site.browser import charts, graph, metrics

CORPUS, TOKENIZER = "/files/0/corpora/docs-11111111", "/files/0/tokenizers/bpe-22222222"
CACHE, RUN = "/files/0/tokenized/docs-33333333", "checkpoints/run-44444444"


def _words(page: str) -> str:
    """The text of a page as a person reads it."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))).split())


def _links(page: str) -> list[str]:
    return [html.unescape(address) for address in re.findall(r'href="([^"]+)"', page)]


def _open(client: Any, path: str) -> str:
    answer = client.get(path)
    assert answer.status == 200, f"{path}: {answer.status} {_words(answer.text)[:300]}"
    return str(answer.text)


# --- folders ------------------------------------------------------------------------------------------------------


def test_folder_lists_sizes_kinds_and_states_and_hides_attempts(client: Any) -> None:
    corpus = _words(_open(client, CORPUS))
    for words in ("weights.bin 2.56 kB", "rows.parquet", "Parquet", "JSON lines, zstd", "picture.png", "image"):
        assert words in corpus
    runs = _open(client, "/files/0/checkpoints")
    assert ".attempts" not in _words(runs)
    assert "run-44444444 / running" in _words(runs)
    assert ".attempts /" in _words(_open(client, "/files/0/checkpoints?all=1"))


def test_folder_of_ten_thousand_entries_is_listed_paged_and_filtered_in_half_a_second(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    for number in range(10_000):
        os.close(os.open(tmp_path / f"shard-{number}.jsonl", os.O_CREAT))
    with serve(tmp_path) as client:
        _open(client, "/")
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            first = _words(_open(client, "/files/0"))
            seconds.append(time.perf_counter() - start)
        assert min(seconds) < 0.5
        assert "10,000 entries" in first and "Page 1 of 100" in first
        assert "shard-99.jsonl" in first and "shard-100.jsonl" not in first  # numbers in their order
        last = _words(_open(client, "/files/0?page=100"))
        assert "shard-9999.jsonl" in last and "Next →" in last
        assert _words(_open(client, "/files/0?page=999999999")) == last
        found = _words(_open(client, "/files/0?q=SHARD-12"))
        assert "111 of 10,000 entries" in found and "shard-1299.jsonl" not in found  # on the second page
        assert "shard-1299.jsonl" in _words(_open(client, "/files/0?q=SHARD-12&page=2"))
        assert "Nothing here has" in _words(_open(client, "/files/0?q=nothing+like+this"))


# --- viewers ------------------------------------------------------------------------------------------------------


def test_json_is_shown_as_a_tree_in_parts_and_searched(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    value = {"rows": [{"n": n, "é/~": f"value {n}"} for n in range(450)], "deep": {"x": [None, True, 1.5]}}
    (tmp_path / "a.json").write_text(json.dumps(value))
    with serve(tmp_path) as client:
        whole = _open(client, "/files/0/a.json")
        assert "rows : [ 450 items ]" in _words(whole) and "… 350 more" in _words(whole)
        part = _words(_open(client, "/files/0/a.json?at=/rows&page=3"))
        assert "449 : { 2 keys }" in part and "Page 3 of 3" in part and "deep" not in part
        assert "value 7" in _words(_open(client, "/files/0/a.json?at=/rows/7"))
        found = _open(client, "/files/0/a.json?q=VALUE+44")
        assert "11 found" in _words(found)
        assert "/files/0/a.json?at=%2Frows%2F449" in _links(found)
        assert client.get("/files/0/a.json?at=/none").status == 404


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.jsonl.zst"])
def test_rows_are_paged_searched_and_folded(client: Any, name: str) -> None:
    first = _open(client, f"{CORPUS}/{name}")
    assert first.count('<details><summary><span class="row-number">') == 50
    assert "Document 49 is" in _words(first) and "Document 50 is" not in _words(first)
    (following,) = [link for link in _links(first) if "row=51" in link]
    second = _words(_open(client, following))
    assert "Rows 51 to 60 of 60" in second and "Document 59 is" in second and "End" in second
    found = _words(_open(client, f"{CORPUS}/{name}?q=CAF%C3%89+number+413"))  # written as \u00e9 in the file
    assert "1 row found" in found and "Document 59 is" in found
    assert "No row has" in _words(_open(client, f"{CORPUS}/{name}?q=zebra"))
    assert "There is no row 1000" in _words(_open(client, f"{CORPUS}/{name}?row=1000"))


def test_rows_of_a_large_plain_file_are_reached_again_at_once(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    with open(tmp_path / "big.jsonl", "w") as stream:
        for number in range(1, 200_001):
            stream.write(f'{{"n": {number}, "padding": "{"x" * 80}"}}\n')
    with serve(tmp_path) as client:
        _open(client, "/files/0/big.jsonl?row=199990")
        start = time.perf_counter()
        words = _words(_open(client, "/files/0/big.jsonl?row=150000"))
        assert time.perf_counter() - start < 0.3
        assert "Rows 150,000 to 150,049" in words and "n: 150000," in words
        assert "1 row found" in _words(_open(client, "/files/0/big.jsonl?q=%22n%22%3A+123456%2C"))


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
    (tmp_path / "none.jsonl.gz").write_bytes(b"this is no gzip")
    (tmp_path / "two.jsonl.zst").write_bytes(packed + zstandard.ZstdCompressor().compress(b'{"n": "second frame"}\n'))
    with serve(tmp_path) as client:
        bad = _words(_open(client, "/files/0/bad.jsonl"))
        assert "a: 1" in bad and "The row is not JSON: Expecting value" in bad and "The row is empty" in bad
        assert "nested too deeply" in bad and "The row has 3,000,001 bytes: only its first 1,000,000" in bad
        for name in ("cut.jsonl.zst", "cut.jsonl.gz"):
            assert "n: 0," in _words(_open(client, f"/files/0/{name}"))
            assert "damaged or cut off after row" in _words(_open(client, f"/files/0/{name}?q=nothing"))
        assert "damaged or cut off after row 0" in _words(_open(client, "/files/0/none.jsonl.gz"))
        assert "1 row found" in _words(_open(client, "/files/0/two.jsonl.zst?q=second+frame"))


def test_packed_bomb_is_answered_in_bounded_time(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    with open(tmp_path / "bomb.jsonl.zst", "wb") as stream:
        for _ in range(64):
            stream.write(compressor.compress(bytes(64 << 20)))
        stream.write(compressor.flush())
    with serve(tmp_path) as client:
        start = time.perf_counter()
        assert "longer than" in _words(_open(client, "/files/0/bomb.jsonl.zst"))
        assert time.perf_counter() - start < 10


def test_parquet_is_paged_by_row_group_and_searched(client: Any) -> None:
    first = _open(client, f"{CORPUS}/rows.parquet")
    words = _words(first)
    assert "60 rows in 3 row groups, 4 columns" in words and "Rows 1 to 25" in words
    assert "2 bytes: 0001" in words and "binary" in words
    (following,) = {link for link in _links(first) if "group=1" in link}
    assert "Rows 26 to 50" in _words(_open(client, following))
    assert "Rows 51 to 60" in _words(_open(client, f"{CORPUS}/rows.parquet?group=2"))
    found = _words(_open(client, f"{CORPUS}/rows.parquet?q=CAF%C3%89+number+413"))
    assert "1 found" in found and "Document 59 is" in found
    assert client.get(f"{CORPUS}/rows.parquet?group=99999&row=99999").status == 200


def test_text_is_paged_by_bytes_at_line_ends_and_searched(tmp_path: pathlib.Path, serve: Callable[..., Any]) -> None:
    lines = [f"line {number} grüße" for number in range(20_000)]
    (tmp_path / "long.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "one_line.txt").write_text("é" * 200_000)
    (tmp_path / "unnamed").write_text("text without an ending")
    with serve(tmp_path) as client:
        address, seen = "/files/0/long.log", []
        while address:
            page = _open(client, address)
            (content,) = re.findall(r'<pre class="output whole"[^>]*>(.*?)</pre>', page, re.DOTALL)
            seen += content.splitlines()
            address = next((html.unescape(link) for link in re.findall(r'href="([^"]+)" rel="next"', page)), "")
        assert seen == lines
        end = _open(client, "/files/0/long.log?at=end")
        assert "line 19999" in end and "line 0 " not in end
        found = _open(client, "/files/0/long.log?q=LINE+12345")
        assert "1 line found" in _words(found)
        (place,) = [link for link in _links(found) if "at=" in link]
        assert re.search(r'<pre class="output whole"[^>]*>line 12345 ', _open(client, place))
        assert "�" not in _open(client, "/files/0/one_line.txt?at=65537")
        assert "text without an ending" in _open(client, "/files/0/unnamed")


def test_token_cache_is_decoded_paged_and_searched(client: Any, browser_prefix: Any) -> None:
    folder = _open(client, CACHE)
    assert f"{CACHE}?view=tokens" in _links(folder)
    page = _open(client, f"{CACHE}?view=tokens")
    assert html.escape(browser_prefix.texts[0]) in page
    words = _words(page)
    assert "60 documents" in words and "Documents 1 to 20" in words
    assert "/files/0/tokenizers/bpe-22222222/tokenizer.json" in _links(page)
    assert "Documents 41 to 60" in _words(_open(client, f"{CACHE}?view=tokens&row=41"))
    found = _words(_open(client, f"{CACHE}?view=tokens&q=CAF%C3%89+number+413"))
    assert "1 found" in found and "Document 59 is" in found
    assert "Documents 1 to 20" in _words(_open(client, f"{CACHE}/train?view=tokens"))


def test_token_cache_without_its_tokenizer_shows_ids_and_a_damaged_one_a_reason(
    make_prefix: Callable[[], Any], serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    with serve(prefix.path) as client:
        tokenizer = prefix.path / prefix.tokenizer / "tokenizer.json"
        tokenizer.write_text(tokenizer.read_text() + " ")
        words = _words(_open(client, f"{CACHE}?view=tokens"))
        assert "another than the one that made this cache" in words and "Document 0" not in words
        tokenizer.unlink()
        assert "No tokenizer.json was found" in _words(_open(client, f"{CACHE}?view=tokens"))
        chunk = prefix.path / prefix.cache / "train" / "input_ids" / "data" / "c" / "0"
        chunk.write_bytes(chunk.read_bytes()[:-40])
        answer = client.get(f"{CACHE}?view=tokens")
        assert answer.status == 422 and str(prefix.path) not in _words(answer.text).split("Read only")[0]
        chunk.unlink()
        chunk.symlink_to("/etc/passwd")
        assert client.get(f"{CACHE}?view=tokens").status == 403


def test_images_are_shown_and_all_else_is_only_given_as_a_download(client: Any) -> None:
    assert f'<img src="/raw/0{CORPUS[8:]}/picture.png"' in _open(client, f"{CORPUS}/picture.png")
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
    assert "<img" not in _open(client, f"{CORPUS}/drawing.svg")
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
            assert reason in _words(answer.text), name
            assert answer.status == (422 if "Parquet" in reason else 200)
            assert "Traceback" not in answer.text
        assert client.get("/files/0/pipe.json").status == 400
        assert client.get("/raw/0/pipe.json").status == 400
        assert client.get("/files/0/loop").status == 404
        assert "pipe.json" in _words(_open(client, "/files/0"))


# --- experiments, steps, provenance -------------------------------------------------------------------------------


def test_front_page_has_experiments_newest_first_and_steps_by_state(client: Any) -> None:
    page = _open(client, "/")
    words = _words(page)
    assert words.index("main-abc123") < words.index("older-abc456")
    assert "The main one" in words and "3 success" in words and "1 not run" in words
    assert {"/steps?state=success", "/steps?state=running", "/steps?state=failed"} <= set(_links(page))
    running = _words(_open(client, "/steps?state=running"))
    assert "1 step" in running and "checkpoints/run" in running and "tokenizers/bpe" not in running
    assert "tokenizers/bpe" in _words(_open(client, "/steps?q=BPE"))


def test_experiment_page_draws_every_step_with_its_state_and_link(client: Any, browser_prefix: Any) -> None:
    page = _open(client, "/experiment/0/main-abc123.json")
    (drawing,) = re.findall(r'<svg class="graph".*?</svg>', page, re.DOTALL)
    outputs = [browser_prefix.corpus, browser_prefix.tokenizer, browser_prefix.cache, browser_prefix.run,
               browser_prefix.report, browser_prefix.failed]  # fmt: skip
    assert _links(drawing) == [f"/step/0/{output}" for output in outputs]
    states = re.findall(r'class="node ([a-z-]+)"', drawing)
    assert states == ["success", "success", "success", "running", "not-run", "failed"]
    assert drawing.count("<path") == 7  # the edges, but for the one that leads out of the prefix
    assert client.get("/experiment/0/none.json").status == 404


def test_step_page_has_config_provenance_log_error_and_attempts(client: Any, browser_prefix: Any) -> None:
    failed = _words(_open(client, f"/step/0/{browser_prefix.failed}"))
    assert "ValueError: the reason <b>why</b>" in failed
    assert "the end of bad-66666666" in failed and "line 0 of" not in failed
    assert "/elsewhere/data-1" in failed and "Attempt 2 failed" in failed
    corpus = _words(_open(client, f"/step/0/{browser_prefix.corpus}"))
    assert "learning_rate : 0.01" in corpus and "1.23 MB in 4 files" in corpus and "12.5 s" in corpus
    for key in json.loads((browser_prefix.path / browser_prefix.corpus / ".executor_info").read_text()):
        assert key in corpus or key in ("config", "version", "dependencies"), key
    waiting = _words(_open(client, f"/step/0/{browser_prefix.report}"))
    assert "not run" in waiting and "the step has not begun" in waiting and "learning_rate : 0.01" in waiting


def test_every_file_links_to_its_maker_and_its_readers(client: Any, browser_prefix: Any) -> None:
    page = _open(client, f"{CORPUS}/train.jsonl.zst")
    made, read = page.split("Made by")[1].split("Read by")
    assert f"/step/0/{browser_prefix.corpus}" in _links(made)
    assert {
        f"/step/0/{reader}" for reader in (browser_prefix.tokenizer, browser_prefix.cache, browser_prefix.failed)
    } <= set(_links(read))
    inner = _open(client, f"{CACHE}/train/input_ids/data/zarr.json")
    assert f"/step/0/{browser_prefix.run}" in _links(inner.split("Read by")[1])
    assert "Made by" not in _open(client, "/files/0/experiments/main-abc123.json")


def test_prefix_that_was_copied_elsewhere_keeps_its_provenance(
    make_prefix: Callable[[], Any], tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    prefix.path.rename(tmp_path / "moved")
    with serve(tmp_path / "moved") as client:
        page = _open(client, f"{TOKENIZER}/tokenizer.json")
        assert f"/step/0/{prefix.tokenizer}" in _links(page) and f"/step/0/{prefix.run}" in _links(page)
        assert f"/step/0/{prefix.report}" in _links(_open(client, "/experiment/0/main-abc123.json"))
        assert "Documents 1 to 20" in _words(_open(client, f"{CACHE}?view=tokens"))


def test_index_follows_what_happens_to_the_prefix(make_prefix: Callable[[], Any], serve: Callable[..., Any]) -> None:
    prefix = make_prefix()
    with serve(prefix.path) as client:
        address = f"/live/step/0/{prefix.run}"
        assert "9 of 50" not in _open(client, address) and "8 of 50" in _open(client, address)
        prefix.add_training_step(8, loss=1.234)
        assert "9 of 50" in _open(client, address) and "1.234" in _open(client, address)
        assert 'data-running="yes"' in _open(client, address)
        for beat in (prefix.path / "checkpoints" / ".attempts").rglob("*.json"):
            os.utime(beat, (1, 1))
        assert "interrupted" in _words(_open(client, address))
        prefix.finish()
        assert 'data-running="no"' in _open(client, address)
        done = prefix.path / prefix.report
        done.mkdir(parents=True)
        record = json.loads((prefix.path / "experiments" / "main-abc123.json").read_text())
        (done / ".executor_info").write_text(json.dumps(record["steps"][4]))
        (done / ".executor_status").write_text('{"status": "WAITING"}\n{"status": "SUCCESS"}\n')  # the older form
        (prefix.path / "experiments" / "broken-000000.json").write_text("{")
        time.sleep(1.1)
        assert "5 success" in _words(_open(client, "/"))
        assert "It is no readable experiment record" in _words(_open(client, "/"))


def test_older_layout_with_a_lock_in_the_output_is_running_while_the_lock_is_renewed(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    output = tmp_path / "train-12345678"
    output.mkdir()
    (output / ".executor_info").write_text(
        json.dumps({"name": "train", "output_path": str(output), "dependencies": []})
    )
    (output / ".executor_status").write_text("RUNNING")
    (output / ".executor_status.lock").write_text("{}")
    with serve(tmp_path) as client:
        assert "a process is at work" in _words(_open(client, "/step/0/train-12345678"))
        os.utime(output / ".executor_status.lock", (1, 1))
        assert "interrupted" in _words(_open(client, "/step/0/train-12345678"))


def test_curves_leave_out_superseded_steps_and_draw_odd_values(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    def step(number: int, loss: object) -> dict[str, object]:
        return {"event": "step", "step": number, "tokens": 10, "step_time": 0.1, "loss": loss}

    events = [{"event": "start", "from_step": 0}, *(step(n, 5.0) for n in range(100)),
              {"event": "start", "from_step": 50}, step(50, "nan"), step(51, 1e308), step(52, 4.5),
              {"event": "evaluation", "step": 52, "bits_per_byte": 1.5}]  # fmt: skip
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "metrics.jsonl").write_text(lines + 'not json\n[1]\n{"event": "step", "step": 53, "lo')
    (tmp_path / ".executor_info").write_text("{}")
    with serve(tmp_path) as client:
        words = _words(_open(client, "/step/0"))
        assert "Steps 53" in words and "Tokens 530" in words and "Loss 4.5" in words
        assert "2 line(s) of the metrics could not be read" in words
        assert "1 value not finite" in words and "bits_per_byte, evaluated 1.5" in words


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (3.9, 9.1), (-5, 5), (1e-9, 2e-9), (0, 1e15), (2, 2), (-1e-300, 1e-300), (0.999999, 1.000001)],
)
def test_axis_marks_are_few_round_and_cover_the_values(low: float, high: float) -> None:
    marks = charts.ticks(low, high, 5)
    assert (marks[0] <= low and marks[-1] >= high) or low == high
    assert len(marks) <= 8 and marks == sorted(set(marks))


def test_long_series_keep_their_extremes_when_thinned() -> None:
    points = [(float(n), 1.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    points[77_777] = (77_777.0, -99.0)
    kept = charts.thinned(points, 400)
    assert len(kept) <= 400 and kept == sorted(kept)
    assert {(54_321.0, 99.0), (77_777.0, -99.0)} <= set(kept)
    series = metrics.Series()
    for x, y in points:
        series.steps.append(x)
        series.values.append(y)
    assert len(charts.draw("loss", series).svg) < 60_000


def test_graph_puts_each_step_after_what_it_reads_and_survives_circles() -> None:
    assert graph.layers_of([(), (0,), (0, 1), (2,), ()]) == [0, 1, 2, 3, 0]
    circle = [graph.Node(f"n{n}", f"/{n}", "failed", "failed", ((n + 1) % 3,)) for n in range(3)]
    assert graph.draw(circle).count("<rect") == 6
    wide = [
        graph.Node("a", "/", "success", "success", ()),
        *(graph.Node("b", "/", "success", "success", (0,)) for _ in range(300)),
    ]
    assert graph.draw(wide).count("<path") == 300


# --- refusals -----------------------------------------------------------------------------------------------------

TRAVERSALS = (
    "/files/0/../secret.txt", "/files/0/a/../../secret.txt", "/files/0/%2e%2e/secret.txt", "/files/0/%2E%2E%2Fsecret.txt",
    "/files/0/..%2fsecret.txt", "/files/0/%252e%252e/secret.txt", "/files/0/%252e%252e%252fsecret.txt",
    "/files/0/..%5csecret.txt", "/files/0/..\\secret.txt", "/files/0//etc/passwd", "/files/0/%2fetc%2fpasswd",
    "/files/0/a%00/../secret.txt", "/files/0/%00", "/files/0/a/%2e/b", "/files/0/%c0%ae%c0%ae/secret.txt",
    "/files/0/link_out", "/files/0/link_out_dir/secret.txt", "/files/0/a/link_up/secret.txt", "/files/0/..;/secret.txt",
    "/files/0/a/link_absolute", "/files/0/" + "a/" * 2000, "/files/0/" + "x" * 300, "/files/1/secret.txt", "/files/-1/x",
    "/files/00000000000000000000000009/x", "/../secret.txt", "/%2e%2e/secret.txt", "/static/../app.py",
    "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/experiment/0/../secret.txt", "/experiment/0/%2e%2e%2fsecret.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder beside a secret, with links that lead out and links that stay inside."""
    base = tmp_path_factory.mktemp("fenced")
    (base / "secret.txt").write_text("the secret\n")
    (base / "root_sibling").mkdir()
    (base / "root_sibling" / "secret.txt").write_text("the secret\n")
    root = base / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "inside.txt").write_text("inside\n")
    (root / "link_out").symlink_to("../secret.txt")
    (root / "link_out_dir").symlink_to("../root_sibling")
    (root / "a" / "link_up").symlink_to("../..")
    (root / "a" / "link_absolute").symlink_to(base / "secret.txt")
    (root / "link_in").symlink_to("a/inside.txt")
    (root / "link_in_dir").symlink_to("a")
    return root


@pytest.mark.parametrize("page", ["files", "raw", "step", "live/step"])
def test_paths_that_lead_out_of_the_folder_are_refused(
    fenced: pathlib.Path, serve: Callable[..., Any], page: str
) -> None:
    with serve(fenced) as client:
        for path in TRAVERSALS:
            asked = path.replace("/files/", f"/{page}/", 1)
            answer = client.get(asked)
            assert answer.status in (403, 404), asked
            assert b"the secret" not in answer.body and b"root:" not in answer.body
            assert "Traceback" not in answer.text and str(fenced.parent) not in answer.text.split("<footer>")[0]


def test_links_that_stay_inside_are_followed_and_others_are_listed_without_a_link(
    fenced: pathlib.Path, serve: Callable[..., Any]
) -> None:
    with serve(fenced) as client:
        assert "inside" in _open(client, "/files/0/link_in_dir/inside.txt")
        assert client.get("/raw/0/link_in").body == b"inside\n"
        page = _open(client, "/files/0")
        assert "leads out of the folder" in _words(page)
        assert not [link for link in _links(page) if "link_out" in link]


def test_link_that_is_swapped_in_while_a_file_is_opened_leads_nowhere(fenced: pathlib.Path) -> None:
    from starlette.exceptions import HTTPException

    from marin.site.browser import roots

    (root,) = roots.make_roots([str(fenced)])
    target = fenced / "a" / "swapped.txt"
    target.write_text("inside\n")
    place = roots.resolve(root, ("a", "swapped.txt"))
    target.unlink()
    target.symlink_to(fenced.parent / "secret.txt")
    with pytest.raises(HTTPException):
        roots.open_file(place)
    target.unlink()


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "", "[::1]", "a@127.0.0.1:{port}"],
)
def test_requests_under_another_host_name_are_refused(client: Any, host: str) -> None:
    answer = client.get("/", host=host.format(port=client.port))
    assert answer.status == 421 and "Experiments" not in answer.text


def test_own_names_are_answered_and_only_get_and_head_are_allowed(client: Any) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST"):
        assert client.get("/", host=f"{name}:{client.port}").status == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert client.get("/", method=method).status == 405
    assert client.get("/", method="HEAD").body == b""


def test_every_answer_carries_the_policy(client: Any) -> None:
    for path in ("/", "/steps", CORPUS, "/none", "/files/0/none", "/static/browser.js", f"/step/0/{RUN}"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


def test_hostile_names_and_contents_are_escaped_and_made_visible(client: Any, browser_prefix: Any) -> None:
    listing = _open(client, "/files/0/hostile")
    words = _words(listing)
    assert "new\\nline.log" in words and "rtl \\u202egnp.txt" in words and "zero\\u200bwidth.txt" in words
    assert "bytes \\udcff\\udcfe.txt" in words and "{{7*7}}${7*7}.txt" in words
    addresses = [link for link in _links(listing) if link.startswith("/files/0/hostile/")]
    assert len(addresses) == 12  # all but the one with a backslash
    pages = [listing, _open(client, "/"), _open(client, "/steps"), _open(client, "/step/0/hostile/step-77777777")]
    pages += [_open(client, address) for address in addresses]
    pages.append(
        _open(client, f"/experiment/0/{quote(next((browser_prefix.path / 'experiments').glob('<img*')).name)}")
    )
    for query in ("<script>alert(1)</script>", "\"'><img src=x>"):
        pages += [
            _open(client, f"{path}?q={quote(query)}") for path in ("/", "/steps", CORPUS, f"{CORPUS}/train.jsonl")
        ]
    for page in pages:
        assert "<script>" not in page and "<img" not in page and 'onerror="' not in page
        assert "\u202e" not in page and "\x1b" not in page
        assert not re.search(r"<[^>]* style=|<style|javascript:", page)
    assert client.get("/raw/0/hostile/new%0Aline.log").headers["content-disposition"].count("\n") == 0
    assert client.get("/files/0/hostile/back%5Cslash.txt").status == 403


def test_pages_load_nothing_from_elsewhere(client: Any, browser_prefix: Any) -> None:
    for path in ("/", "/steps", CORPUS, f"/step/0/{browser_prefix.run}", "/experiment/0/main-abc123.json"):
        page = _open(client, path).replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert re.findall(r'(?:src|href|action)="(?!/|#|\?)[^"]*"', page) == []
        assert "http" not in page.split("<footer>")[0]


# --- the command --------------------------------------------------------------------------------------------------


def _browse(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "marin", "browse", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_command_prints_its_address_and_stops_cleanly_on_ctrl_c(browser_prefix: Any) -> None:
    process = _browse(
        "--prefix", str(browser_prefix.path), "--port", "0", "--root", str(browser_prefix.path / "hostile")
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == f"showing {browser_prefix.path}\n"
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", lines[2])
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10) as connection:
        connection.sendall(f"GET /files/1 HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode())
        assert b"200 OK" in connection.recv(100)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_command_refuses_what_it_cannot_show_with_one_message(browser_prefix: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        cases = [
            (["--prefix", str(browser_prefix.path), "--port", port], f"port {port} on 127.0.0.1 is in use"),
            (["--prefix", str(tmp_path / "none")], "is not there: run an experiment first"),
            (["--prefix", str(tmp_path / "file")], "is a file, not a folder"),
            (["--prefix", "gs://bucket/x"], "is not on this machine"),
            (["--prefix", str(tmp_path), "--port", "70000"], "use a number from 0 to 65535"),
        ]
        started = [(_browse(*arguments, cwd=tmp_path), message) for arguments, message in cases]
        for process, message in started:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 2 and out == ""
            assert err.startswith("error: ") and message in err and err.count("\n") == 1
