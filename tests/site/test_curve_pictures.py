"""Curves of a log, on an entry's page and side by side: what is written in them can be read at every width."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from example_runs import run_info
from leaderboard_pages import opened, serving

from marin.site.leaderboard.build import build_site
from marin.speedrun.results import write_results

WIDTHS = (1440, 1024, 768, 375)
# Of each text of the pictures: its size on the screen, and how far it reaches out of the picture's frame.
TEXTS = """() => [...document.querySelectorAll("figure svg text")].map((text) => {
  const [place, frame] = [text.getBoundingClientRect(), text.closest("figure").getBoundingClientRect()];
  const scale = text.getScreenCTM().a;
  return [parseFloat(getComputedStyle(text).fontSize) * scale, Math.max(frame.left - place.left, place.right - frame.right)];
})"""


@pytest.fixture(scope="module")
def with_curves(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("curves")
    for number, largest in enumerate((9e11, 5.0)):
        folder = root / "results" / f"size_{number}"
        write_results(folder / "speedrun_results.json", run_info(seed=number))
        steps = ({"event": "step", "step": step, "loss": largest / (step + 1)} for step in range(100))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    build_site([root / "results"], [], root / "site")
    return root / "site"


@pytest.fixture(scope="module")
def pages(browser: Any, with_curves: pathlib.Path) -> Iterator[tuple[Any, list[str], list[str]]]:
    keys = [path.stem for path in sorted((with_curves / "data" / "entries").glob("*.json"))]
    with serving(with_curves) as base, opened(browser, base) as (page, problems):
        yield page, keys, problems


def _check(page: Any) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        texts = page.evaluate(TEXTS)
        assert len(texts) >= 5
        assert all(9 <= size <= 16 and beyond <= 0 for size, beyond in texts), (width, texts)


def test_texts_of_an_entry_s_curves_have_the_size_of_small_text_at_every_width(pages: Any) -> None:
    page, keys, problems = pages
    page.goto(f"entries/{keys[0]}.html")
    _check(page)
    assert problems == []


def test_texts_of_compared_curves_can_be_read_at_every_width_and_colours_are_named_beside_them(pages: Any) -> None:
    page, keys, problems = pages
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"compare.html?runs={','.join(keys)}")
    page.wait_for_selector("figure svg")
    assert page.locator("figure figcaption").inner_text().split() == ["size_0", "size_1"]
    _check(page)
    assert problems == []


def test_what_a_row_of_a_comparison_is_stays_in_sight_beside_the_last_entry(pages: Any) -> None:
    page, keys, _ = pages
    page.set_viewport_size({"width": 320, "height": 900})
    page.goto(f"compare.html?runs={','.join(keys)}")
    row = page.locator(".compare-table tbody th").first
    before = row.bounding_box()["x"]
    page.locator(".scroll").first.evaluate("(place) => place.scrollTo(9999, 0)")
    assert page.locator(".scroll").first.evaluate("(place) => place.scrollLeft") > 0
    assert row.bounding_box()["x"] == before
