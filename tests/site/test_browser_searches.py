"""What a search through rows finds and where it goes on, parts of JSON under odd keys, and axes whose ticks can be told apart."""

import gzip
import html
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser_pages import links_of, open_page, words_of

from marin.site.browser import charts, metrics, rows, tables
from marin.site.leaderboard import curves


def test_a_search_for_what_json_escapes_finds_the_row_that_shows_it(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    texts = ['He said "no" twice.', "one\nline and\tanother", "a path C:\\temp", "café"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text, 'key "k"': 1}) + "\n" for text in texts))
    with serve(tmp_path) as client:
        for query, count in (('said "no"', 1), ("C:\\temp", 1), ("CAFÉ", 1), ('key "k"', 4), ('said "yes"', 0)):
            found = words_of(open_page(client, f"/files/0/rows.jsonl?q={quote(query)}"))
            assert ("No row has" in found) if count == 0 else f"{count} row" in found, query
        later = words_of(open_page(client, "/files/0/rows.jsonl?q=twice&row=3"))
        assert "No row from 3 on has “twice”" in later and "· clear" not in later


def test_a_search_late_in_a_packed_file_goes_on_after_each_request(
    tmp_path: pathlib.Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200_000
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1, "text": "nothing to see"}\n' * count, 1))
    # Less than it takes to come to the row where the search goes on, as in a file that is as large for four seconds.
    monkeypatch.setattr(rows, "SEARCH_SECONDS", 0.02)
    with serve(tmp_path) as client:
        page = open_page(client, f"/files/0/rows.jsonl.gz?q=needle&row={count // 2}")
        following = [int(found) for link in links_of(page) for found in re.findall(r"row=(\d+)", link)]
        assert not following or max(following) > count // 2 + 500


def test_a_search_late_in_a_row_group_goes_on_after_each_request(
    tmp_path: pathlib.Path, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 400_000
    pq.write_table(pa.table({"n": pa.array(range(count), pa.int64())}), tmp_path / "rows.parquet", row_group_size=count)
    monkeypatch.setattr(tables, "SEARCH_SECONDS", 0.02)
    with serve(tmp_path) as client:
        page = open_page(client, f"/files/0/rows.parquet?q=needle&row={count // 2}")
        following = [int(found) for link in links_of(page) for found in re.findall(r"row=(\d+)", link)]
        assert not following or max(following) > count // 2 + 500


def test_parts_of_json_under_keys_with_white_space_and_long_ones_open(
    tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    many = {str(number): number for number in range(150)}
    (tmp_path / "odd.json").write_text(json.dumps({"trailing ": many, "\tleading": many, "l" * 5000: many}))
    with serve(tmp_path) as client:
        links = [link for link in links_of(open_page(client, "/files/0/odd.json")) if "at=" in link]
        assert len(links) == 3
        for link in links:
            page, following = link, words_of(open_page(client, link))
            assert "149" in following, page[:80]


def test_ticks_of_an_axis_can_be_told_apart() -> None:
    series = metrics.Series()
    for number in range(5):
        series.steps.append(100_000 + 10 * number)
        series.values.append(1.0021 + 0.00002 * number)
    drawn = str(charts.draw("loss", series).svg)
    axes = {css: re.findall(rf'<text class="tick {css}"[^>]*>([^<]+)<', drawn) for css in ("end", "middle")}
    assert axes["end"] == ["1.0021", "1.00212", "1.00214", "1.00216", "1.00218"]
    assert axes["middle"] == ["100k", "100.01k", "100.02k", "100.03k", "100.04k"]
    curve = curves.draw_curve("Loss", [(int(step), value) for step, value in zip(series.steps, series.values)])
    for ticks in (curve.x_ticks, curve.y_ticks):
        assert len({tick.text for tick in ticks}) == len(ticks) > 2


def test_curve_of_a_long_run_ends_at_its_last_value_and_its_average_is_that_of_all_values() -> None:
    series = metrics.Series()
    for step in range(50_003):
        series.steps.append(step)
        series.values.append(10.0 if step % 10 == 0 else 1.0 + 0.001 * (step % 7))
    chart = charts.draw("loss", series)
    last = series.values[-1]
    assert chart.latest == f"{last:.5g}"
    assert f"{last:.5g} at step 50,002, lowest 1, highest 10" in str(chart.svg)
    x, _, step, average = json.loads(html.unescape(re.findall(r'data-points="([^"]+)"', str(chart.svg))[0]))[-1]
    assert (x, step) == (430.0, "50,002")
    assert float(average) == pytest.approx(sum(series.values) / len(series.values), rel=0.02)
    # A few values far off are left out of the scale, and each of them is counted.
    for step in range(0, 50_003, 25_000):
        for near in range(3):
            series.values[step + near] = 1000.0
    assert "9 values beyond the scale" in charts.draw("loss", series).note
