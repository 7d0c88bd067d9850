"""The page in a real browser, from disk: both widths, both colour schemes, sorting, filtering, and no foreign script."""

import pathlib
from typing import Any

import pytest


@pytest.fixture
def index(site: pathlib.Path) -> str:
    return (site / "index.html").as_uri()


def _open(
    browser: Any, address: str, width: int = 1440, scheme: str = "light", **options: Any
) -> tuple[Any, list[str]]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    page.goto(address)
    return page, problems


def _column(page: Any, number: int) -> list[str]:
    cells = page.locator(f"#set-1 tbody tr:not([hidden]) > :nth-child({number})")
    return [text.strip() for text in cells.all_inner_texts()]


@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_renders_without_errors_requests_or_sideways_scrolling(
    browser: Any, index: str, width: int, scheme: str
) -> None:
    page, problems = _open(browser, index, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for image in page.locator("figure img").all():
        image.scroll_into_view_if_needed()
        assert image.bounding_box()["height"] > 200
        shown = image.evaluate("image => [image.naturalWidth, image.currentSrc]")
        assert shown[0] > 0
        assert shown[1].endswith(f"{'narrow' if width < 641 else 'wide'}-{scheme}.svg")
    light_text = page.evaluate("getComputedStyle(document.body).color") == "rgb(230, 234, 238)"
    assert light_text is (scheme == "dark")
    assert problems == []


def test_page_sorts_by_any_column_with_missing_values_last(browser: Any, index: str) -> None:
    page, problems = _open(browser, index)
    button = page.locator("#set-1 thead").get_by_role("button", name="Bits per byte")
    button.click()
    ascending = _column(page, 3)
    assert ascending == sorted(ascending, key=float)
    assert page.locator("#set-1 th[aria-sort]").get_attribute("aria-sort") == "ascending"
    button.focus()
    page.keyboard.press("Enter")
    assert _column(page, 3) == ascending[::-1]
    assert page.locator("#set-1 th[aria-sort]").all_inner_texts() == ["Bits per byte"]
    for _ in range(2):
        page.locator("#set-1 thead").get_by_role("button", name="Rank").click()
        assert _column(page, 1)[-1].startswith("—")
    assert problems == []


def test_page_filters_by_text_and_frontier(browser: Any, index: str) -> None:
    page, problems = _open(browser, index)
    page.get_by_label("Filter").first.fill("independent FAMILY/")
    assert len(_column(page, 1)) == 9
    assert "9 of 10 runs" in page.locator("#set-1 .shown").inner_text()
    page.locator("#set-1 .only-frontier").check()
    assert len(_column(page, 1)) == 8
    page.get_by_label("Filter").first.fill("nothing has this")
    assert _column(page, 1) == []
    assert problems == []


def test_page_without_scripts_is_a_complete_table(browser: Any, index: str) -> None:
    page, _ = _open(browser, index, java_script_enabled=False)
    assert page.locator("#set-1 tbody tr").count() == 10
    assert not page.locator("#set-1 .filter").is_visible()
    page.locator("#set-1 tr.held .figures summary").click()
    assert page.locator("#set-1 tr.held .findings").is_visible()


def test_page_of_hostile_files_runs_none_of_it(browser: Any, hostile_site: pathlib.Path) -> None:
    page, problems = _open(browser, (hostile_site / "index.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.locator("#set-1 thead").get_by_role("button", name="Run").click()
    assert page.title() == "Marin Speedrun leaderboard"
    assert problems == []
