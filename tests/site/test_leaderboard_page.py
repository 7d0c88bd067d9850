"""The built site: complete, deterministic, self-contained, and inert whatever the files say."""

import csv
import html.parser
import io
import json
import os
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from marin.cli.main import dispatch
from marin.errors import ResultsError, StorageError
from marin.site.leaderboard_page import build_site


class _Page(html.parser.HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def _cells(path: pathlib.Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text())))


def _snapshot(site: pathlib.Path) -> dict[str, bytes]:
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def test_site_shows_every_run_and_every_broken_file(site: pathlib.Path) -> None:
    text = (site / "index.html").read_text()
    plain = re.sub(r"<wbr>|</?span[^>]*>", "", text)
    for name in ("family/size_0", "family/worse", "too_good", "hello", "broken/speedrun_results.json"):
        assert name in plain
    for expected in ("does not add up", "claimed", "cut short", "python_docs", "xz -9", "Return the value."):
        assert expected in text


def test_site_downloads_hold_every_row(site: pathlib.Path) -> None:
    rows = json.loads((site / "runs.json").read_text())
    header, *cells = _cells(site / "runs.csv")
    table = [dict(zip(header, row, strict=True)) for row in cells]
    assert len(rows["rows"]) == len(table) == 11
    assert [row["run_name"] for row in rows["rows"]] == [row["run_name"] for row in table]
    assert rows["unreadable"][0]["source"] == "broken/speedrun_results.json"
    held = next(row for row in table if row["run_name"] == "too_good")
    assert (held["rank"], held["on_frontier"]) == ("", "false")


def test_site_charts_are_inert_svg_in_two_schemes_and_two_shapes(site: pathlib.Path) -> None:
    charts = sorted((site / "charts").iterdir())
    assert len(charts) == 8
    for chart in charts:
        root = ElementTree.fromstring(chart.read_text())
        tags = {element.tag.rsplit("}", 1)[-1] for element in root.iter()}
        assert not tags & {"script", "foreignObject", "image", "a", "use"}
        assert "hardware FLOPs (log)" in chart.read_text()
        assert "bits per byte (lower is better)" in chart.read_text()


def test_site_built_again_from_the_same_files_has_the_same_bytes(
    results_dir: pathlib.Path, site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    build_site([results_dir], [], tmp_path)
    assert _snapshot(tmp_path) == _snapshot(site)


def test_site_rebuilt_with_fewer_sets_removes_its_own_stale_charts_only(
    results_dir: pathlib.Path, site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "pareto-9-wide-light.svg").write_text("stale")
    (tmp_path / "charts" / "notes.txt").write_text("mine")
    build_site([results_dir / "hello"], [], tmp_path)
    names = sorted(path.name for path in (tmp_path / "charts").iterdir())
    assert names[0] == "notes.txt"
    assert names[1:] == [
        f"pareto-1-{shape}-{scheme}.svg" for shape in ("narrow", "wide") for scheme in ("dark", "light")
    ]


def test_site_policy_allows_nothing_remote_and_no_inline_code_but_by_hash(site: pathlib.Path) -> None:
    page = _Page((site / "index.html").read_text())
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
        for name in ("src", "srcset"):
            assert not re.match(r"[a-z]+:|//", attrs.get(name) or "")
        assert tag != "link"


def test_site_table_is_accessible_without_scripts(site: pathlib.Path) -> None:
    page = _Page((site / "index.html").read_text())
    headers = [attrs for tag, attrs in page.tags if tag == "th"]
    assert all(attrs.get("scope") in ("col", "row") for attrs in headers)
    assert [attrs.get("aria-sort") for attrs in headers].count("ascending") == 2
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")


def test_site_of_hostile_files_contains_no_foreign_tag_attribute_or_link(hostile_site: pathlib.Path) -> None:
    page = _Page((hostile_site / "index.html").read_text())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 1
    assert tags.count("img") == len([name for name in os.listdir(hostile_site / "charts") if "wide-light" in name])
    for _, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")]
        href = attrs.get("href")
        assert href is None or href.startswith(("https://", "#")) or href in ("runs.csv", "runs.json")
    for chart in (hostile_site / "charts").iterdir():
        elements = {element.tag.rsplit("}", 1)[-1] for element in ElementTree.fromstring(chart.read_text()).iter()}
        assert not elements & {"script", "img", "foreignObject"}
    texts = [cell for row in _cells(hostile_site / "runs.csv") for cell in row]
    assert "'=HYPERLINK(1)" in texts
    assert not [text for text in texts if text.startswith(("=", "+", "-", "@"))]


def test_site_of_an_empty_directory_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "results").mkdir()
    build_site([tmp_path / "results"], [], tmp_path / "site")
    assert "No runs yet" in (tmp_path / "site" / "index.html").read_text()


def test_build_site_with_a_bad_path_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ResultsError, match="no such directory"):
        build_site([tmp_path / "none"], [], tmp_path / "site")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--output"):
        build_site([tmp_path], [], tmp_path / "file")


def test_leaderboard_command_builds_the_page_and_reports(
    results_dir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["leaderboard", "--results-dir", str(results_dir), "--output", str(tmp_path / "site")]) == 0
    printed = capsys.readouterr().out
    assert "11 runs" in printed
    assert "1 could not be read" in printed
    assert (tmp_path / "site" / "index.html").is_file()


def test_leaderboard_command_without_sources_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "marin", "leaderboard", "--output", str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: nothing to show")
    assert "Traceback" not in done.stderr


def test_reading_and_ranking_import_neither_jax_nor_charts() -> None:
    code = (
        "import sys, marin.site.leaderboard_page, marin.cli.leaderboard;"
        "print(sorted({'jax', 'altair', 'vl_convert', 'equinox', 'fsspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
