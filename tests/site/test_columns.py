"""Columns of the leaderboard's tables: figures stand below their titles, and a phone's narrow ones break well."""

import pathlib
from typing import Any

from leaderboard_pages import opened, serving

from marin.site.leaderboard.build import build_site
from marin.speedrun.importers.nanochat import LEADERBOARD


def test_figures_end_below_the_end_of_their_column_s_title(browser: Any, site: pathlib.Path) -> None:
    entry = next((site / "entries").glob("family-size-3-*"))
    with serving(site) as base, opened(browser, base) as (page, _):
        page.goto(f"entries/{entry.name}")
        ends = page.evaluate("""() => [...document.querySelectorAll("th.num")].map((title) => {
          const figure = title.closest("table").tBodies[0].rows[0].cells[title.cellIndex];
          return [title, figure].map((cell) => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return range.getBoundingClientRect().right;
          });
        })""")
        assert len(ends) >= 6 and all(abs(title - figure) < 1 for title, figure in ends), ends


def test_date_below_an_author_on_a_phone_begins_with_no_dot(browser: Any, site: pathlib.Path) -> None:
    read = """(parts) => parts.map((sub) => {
      const [author, day] = [...sub.children].map((part) => part.getBoundingClientRect().top);
      return [day > author + 4, getComputedStyle(sub.children[1], "::before").content.startsWith('"·')];
    })"""
    with serving(site) as base, opened(browser, base) as (page, _):
        for width, expected in ((1440, [False, True]), (375, [True, False])):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto("index.html")
            found = page.locator(".card .sub:has(.day)").evaluate_all(read)
            assert found and all(one == expected for one in found), (width, found)


def test_how_far_an_entry_was_checked_is_in_sight_at_the_width_of_a_tablet(
    browser: Any, site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    build_site([], [LEADERBOARD], tmp_path / "listed")
    read = """(board) => {
      const [cell, author] = [board.querySelector("tbody .c-rung"), board.querySelector("tbody .sub")].map((part) => part.getBoundingClientRect());
      const { left, right } = board.closest(".scroll").getBoundingClientRect();
      return [cell.width > 0 && left <= cell.left && cell.right <= right + 1, author.height > 0];
    }"""
    for built, track in ((site, "fineweb-edu"), (tmp_path / "listed", "time-to-gpt2")):
        with serving(built) as base, opened(browser, base) as (page, problems):
            for width in (720, 790, 791, 930, 931, 1140, 1141, 1200, 1201, 1280, 1281):
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"tracks/{track}.html")
                page.get_by_label("Compare ").first.wait_for()
                is_shown, has_author = page.locator("#board").evaluate(read)
                assert (is_shown, has_author) == (True, width <= 1140), (track, width)
                assert page.locator(".sort-by").is_visible() == (width <= 1140)
            assert problems == []


def test_compared_entries_have_their_track_s_title_and_none_that_is_held_is_best(
    browser: Any, site: pathlib.Path
) -> None:
    keys = [
        path.stem
        for name in ("family-size-0-*", "worse-*", "family-worse-*", "too-good-*")
        for path in (site / "entries").glob(name)
    ]
    with serving(site) as base, opened(browser, base) as (page, problems):
        page.goto(f"compare.html?runs={','.join(keys)}")
        page.locator(".compare-table").first.wait_for()
        rows = {
            row.locator("th").inner_text(): row
            for row in page.locator(".compare-table").first.locator("tbody tr").all()
        }
        assert set(rows["Track"].locator("td").all_inner_texts()) == {"FineWeb-Edu"}
        states = rows["State"].locator("td").all_inner_texts()
        assert "held" in states and states.count("ranked") >= 2
        best = (
            rows["Bits per byte"]
            .locator("td")
            .evaluate_all("(cells) => cells.map((cell) => cell.className === 'best')")
        )
        assert [state for state, is_best in zip(states, best, strict=True) if is_best] == ["ranked"]
        assert problems == []
