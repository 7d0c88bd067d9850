"""Columns of the leaderboard's tables: figures stand below their titles, and a phone's narrow ones break well."""

import pathlib
from typing import Any

from leaderboard_pages import opened, serving


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
