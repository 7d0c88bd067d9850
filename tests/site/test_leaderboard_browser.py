"""The site in a real browser, served as a host would: both widths, both schemes, every control, hostile files, no scripts.

Every page is checked for errors on the console and for requests that leave the server.
"""

import contextlib
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from example_runs import run_info
from leaderboard_pages import opened, serving

from marin.site.leaderboard import track_page
from marin.site.leaderboard.build import build_site, write_site
from marin.site.leaderboard.output import SiteWriter
from marin.speedrun.board.leaderboard import build_board
from marin.speedrun.board.rows import rows_of
from marin.speedrun.importers.nanochat import LEADERBOARD

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

TRACK = "tracks/fineweb-edu.html"
PAGES = ("index.html", TRACK, "tracks/time-to-gpt2.html", "about.html", "unreadable.html", "compare.html")
Opens = Callable[..., contextlib.AbstractContextManager[tuple[Any, list[str]]]]


@pytest.fixture(scope="module")
def address(site: pathlib.Path) -> Iterator[str]:
    with serving(site) as base:
        yield base


@pytest.fixture(scope="module")
def hostile_address(hostile_site: pathlib.Path) -> Iterator[str]:
    with serving(hostile_site) as base:
        yield base


def _entries(site: pathlib.Path) -> list[str]:
    return [f"entries/{path.name}" for path in sorted((site / "entries").iterdir())]


def _column(page: Any, name: str) -> list[str]:
    return [text.strip() for text in page.locator(f"#board tbody .c-{name}").all_inner_texts()]


def _violations(page: Any, rules: dict[str, Any]) -> list[str]:
    found = axe.Axe().run(page, options=rules).response["violations"]
    return [f"{item['id']}: {node['html'][:160]}" for item in found for node in item["nodes"]]


def _wait_for_charts(page: Any) -> None:
    """For all that a page fetches by itself: half a second sooner than when the browser calls the network idle."""
    assert page.evaluate("""async () => {
      const isMade = () => [...document.querySelectorAll(".drawn")].every((place) => place.querySelector("svg"));
      for (let frame = 0; frame < 600 && !isMade(); frame += 1) await new Promise(requestAnimationFrame);
      return isMade();
    }""")


def test_pages_have_no_axe_violation_no_error_and_fit_their_width(
    browser: Any, address: str, site: pathlib.Path
) -> None:
    paths = [
        *PAGES,
        next(path for path in _entries(site) if "hello" in path),
        next(path for path in _entries(site) if "too-good" in path),
    ]
    for width, scheme, other in ((1440, "light", "dark"), (375, "dark", "light")):
        # axe-core is put into the page by a script, which the page's own policy rightly refuses.
        with opened(browser, address, width, scheme, bypass_csp=True) as (page, problems):
            for path in paths:
                page.goto(path)
                _wait_for_charts(page)
                assert page.evaluate("document.documentElement.scrollWidth") == width, (path, width)
                page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
                assert _violations(page, {}) == [], (path, width, scheme)
                page.emulate_media(color_scheme=other)  # in which colours alone differ
                assert _violations(page, {"runOnly": ["color-contrast"]}) == [], (path, width, other)
                page.emulate_media(color_scheme=scheme)
            assert problems == []


def test_table_made_by_scripts_says_what_the_page_said(browser: Any, address: str) -> None:
    with opened(browser, address, java_script_enabled=False) as (page, _):
        page.goto(TRACK)
        built = {
            row.get_attribute("data-key"): row.locator("th, td").all_inner_texts()
            for row in page.locator("#board tbody tr").all()
        }
        assert not page.locator("#tools").is_visible()
        assert page.locator("figure img").first.is_visible()
    with opened(browser, address) as (page, problems):
        page.goto(f"{TRACK}?sort=rank.down")
        made = {
            row.get_attribute("data-key"): row.locator("th, td").all_inner_texts()
            for row in page.locator("#board tbody tr").all()
        }
        assert made == built
        assert len(made) == 10
        assert problems == []


def test_table_sorts_by_any_column_with_unknown_values_last(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        for name in ("Bits per byte", "Hardware FLOPs", "Date", "Entry", "Verified", "Author"):
            page.locator("#board thead").get_by_role("button", name=name, exact=True).click()
            assert page.locator("#board th[aria-sort]").all_inner_texts() == [name]
        page.locator("#board thead").get_by_role("button", name="Bits per byte").click()
        ascending = [float(text.split()[0]) for text in _column(page, "quality")]
        assert ascending == sorted(ascending)
        page.keyboard.press("Enter")
        assert [float(text.split()[0]) for text in _column(page, "quality")] == ascending[::-1]
        for _ in range(2):
            page.locator("#board thead").get_by_role("button", name="Rank").click()
            assert _column(page, "rank")[-1].startswith("—")
        assert problems == []


def test_table_searches_and_filters_and_keeps_its_state_in_the_address(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        page.get_by_label("Search entries").fill("author FAMILY/")
        assert len(_column(page, "name")) == 8
        assert page.locator(".shown").inner_text() == "8 of 10 entries"
        page.get_by_text("Filters", exact=True).click()
        page.get_by_label("Author", exact=True).select_option("Author 3")
        page.get_by_label("frontier only").check()
        page.get_by_label("From", exact=True).fill("2026-01-02")
        assert page.locator("#board .c-name a").all_inner_texts() == ["family/size_3"]
        shared = page.url
        assert "author=Author+3" in shared and "q=author" in shared
        page.get_by_label("Search entries").fill("nothing has this")
        assert "No entry fits" in page.locator("#board tbody").inner_text()
        page.goto(shared)
        assert page.locator("#board .c-name a").all_inner_texts() == ["family/size_3"]
        assert page.get_by_label("Author", exact=True).input_value() == "Author 3"
        page.get_by_role("button", name="Clear filters").click()
        assert len(_column(page, "name")) == 10
        for label, value, left in (
            ("Parameters", "0-3e7", 10),
            ("Family", "family", 9),
            ("Rung passed", "log", 0),
            ("Hardware", "A100", 10),
        ):
            page.get_by_label(label, exact=True).select_option(value)
            assert page.locator("#board tbody tr[data-key]").count() == left, label
            page.get_by_label(label, exact=True).select_option("")
        assert problems == []


_ROWS_HEAD, _ROWS_TAIL = "marin.addRows(", ");\n"


def _rows_of(site: pathlib.Path) -> dict[str, Any]:
    """What the track's table is made of where scripts run."""
    text = (site / "assets" / "rows-fineweb-edu.js").read_text()
    found: dict[str, Any] = json.loads(text.removeprefix(_ROWS_HEAD).removesuffix(_ROWS_TAIL))
    return found


def _give_rows(page: Any, rows: dict[str, Any]) -> None:
    """The page gets these rows in place of its own."""
    body = _ROWS_HEAD + json.dumps(rows) + _ROWS_TAIL
    address = "**/assets/rows-fineweb-edu.js"
    page.route(address, lambda route: route.fulfill(content_type="text/javascript", body=body))


def _many(rows: Any, copies: int, name: str = "") -> Any:
    """So many times the rows, with keys and names of their own."""
    if isinstance(rows, dict):
        return {key: _many(part, copies, key) for key, part in rows.items()}
    if not isinstance(rows, list):
        return rows
    named = name in ("key", "name")
    return [f"{value}-copy{number}" if named else value for number in range(copies) for value in rows]


@pytest.mark.parametrize("num_authors", [400, 401, 1230])
def test_filter_of_many_authors_says_which_it_lists_and_search_and_addresses_find_the_others(
    num_authors: int, browser: Any, address: str, site: pathlib.Path
) -> None:
    rows = _many(_rows_of(site), 123)
    rows["author"] = [f"Person {min(number, num_authors - 1):04d}" for number in range(len(rows["key"]))]
    said = f"The first 400 of {num_authors:,}: search finds the others."
    last = f"Person {num_authors - 1:04d}"
    with opened(browser, address, bypass_csp=True) as (page, problems):
        _give_rows(page, rows)
        page.goto(TRACK)
        page.get_by_text("Filters", exact=True).click()
        listed = page.get_by_label("Author", exact=True)
        notes = page.locator(".filters .fields span")
        assert notes.all_inner_texts() == ([] if num_authors == 400 else [said])
        assert listed.evaluate("select => [...select.options].map((option) => option.value)") == [
            "", *(f"Person {number:04d}" for number in range(400)),
        ]  # fmt: skip
        assert _violations(page, {}) == []
        page.get_by_label("Search entries").fill(last)
        found = f"{rows['author'].count(last):,} of 1,230 entries"
        assert page.locator(".shown").inner_text() == found
        page.goto(f"{TRACK}?author={last.replace(' ', '+')}")
        assert page.locator(".shown").inner_text() == found
        assert page.get_by_label("Author", exact=True).input_value() == last
        assert problems == []


_INTERRUPTED_SORT = """
async () => {
  const body = document.querySelector("#board tbody");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const press = (column) => document.querySelector(`#board thead [data-column="${column}"] button`).click();
  press("name");
  await frame();
  press("quality");
  const early = [...body.rows].map((row) => row.dataset.key);
  for (let frames = 0; body.rows.length < 100 && frames < 600; frames += 1) await frame();
  await frame();
  return [early, [...body.rows].map((row) => row.dataset.key)];
}
"""


def test_table_of_many_rows_shows_those_in_sight_at_once_the_rest_soon_and_finds_what_a_loop_would(
    browser: Any, address: str, site: pathlib.Path
) -> None:
    made = _many(_rows_of(site), 13)
    count = len(made["key"])
    with opened(browser, address) as (page, problems):
        _give_rows(page, made)
        page.goto(TRACK)
        early, late = page.evaluate(_INTERRUPTED_SORT)
        figures = made["measures"]["bits_per_byte"]
        known = sorted((k for k in range(count) if figures[k] is not None), key=lambda k: (figures[k], k))
        expected = [made["key"][k] for k in (*known, *(k for k in range(count) if figures[k] is None))][:100]
        assert len(early) < 100
        assert (early, late) == (expected[: len(early)], expected)
        fields = ("name", "author", "hardware", "optimizer", "date", "rung", "state")
        texts = [" ".join(str(made[field][k] or "") for field in fields).lower() for k in range(count)]
        for query in (
            "author",
            "AUTHOR 3",
            "copy12",
            "size_7 size_1",
            "2026-01-0 copy1",
            "arithmetic else",
            "-copy1 ",
            "7",
        ):
            page.get_by_label("Search entries").fill(query)
            fits = sum(all(word in text for word in query.lower().split()) for text in texts)
            said = f"{count} entries" if fits == count else f"{fits} of {count} entries"
            assert page.locator(".shown").inner_text() == said, query
        assert problems == []


@pytest.fixture(scope="module")
def nanochat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = tmp_path_factory.mktemp("nanochat")
    build_site([], [LEADERBOARD], site)
    with serving(site) as base:
        yield base


def test_time_to_gpt2_table_has_the_contest_s_columns_with_and_without_scripts(browser: Any, nanochat: str) -> None:
    page_of_track = "tracks/time-to-gpt2.html"
    with opened(browser, nanochat, java_script_enabled=False) as (page, _):
        page.goto(page_of_track)
        built = [row.locator("th, td").all_inner_texts() for row in page.locator("#board tr").all()]
    heads = "Rank Entry CORE|Training time|Bits per byte|Description|Hardware|Author|Date|Commit|Verified"
    assert built[0] == heads.replace(" ", "|", 2).split("|")
    assert built[1][3:6] == ["1.65 h", "0.7180", "settings found by agents, second round, ratio 8"]
    assert built[1][9] == "a825e63"
    with opened(browser, nanochat) as (page, problems):
        page.goto(page_of_track + "?sort=date.up")
        rows = page.locator("#board tbody tr")
        assert [row.locator("th, td").all_inner_texts() for row in rows.all()] == built[:0:-1]
        page.get_by_role("searchbox").fill("climbmix")
        assert _column(page, "name") == ["nanochat/4"]
        page.get_by_text("Filters", exact=True).click()
        page.get_by_role("button", name="Clear filters").click()
        assert page.evaluate("document.activeElement.type") == "search"
        budget = page.get_by_label("Best under")
        said = page.locator(".best-under")
        for typed, words in (
            ("1.7 h", "nanochat/6"),
            ("110min", "nanochat/5, 0.2690 for 1.80 h"),
            ("2 parsecs", "such as 2 h"),
        ):
            budget.fill(typed)
            assert words in said.inner_text()
        assert "gate 0.256525" in page.locator(".plot").text_content()
        ticks = [text for text in page.locator(".plot text").all_text_contents() if text.endswith(" h")]
        assert len(ticks) >= 4 and "2 h" in ticks
        assert problems == []


def test_a_track_on_paper_has_all_columns_charts_and_points_where_its_axes_say(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        _wait_for_charts(page)
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 within its margins
        assert page.evaluate("document.documentElement.scrollWidth") == 718
        for hidden in ("#tools", ".controls", ".downloads", ".bar nav"):
            assert not page.locator(hidden).first.is_visible()
        cut = "(boxes) => boxes.map((box) => [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight])"
        assert [over for over in page.locator(".scroll:visible").evaluate_all(cut) if max(over) > 1] == []
        assert page.locator("#board .c-rung").last.is_visible()
        shape = "(plot) => [plot.clientWidth / plot.clientHeight, plot.querySelector('canvas').width / plot.querySelector('canvas').height]"
        shown, drawn = page.locator(".plot").evaluate(shape)
        assert shown == pytest.approx(drawn, rel=0.02)
        assert all(
            image.evaluate("(image) => image.complete && image.naturalWidth > 0")
            for image in page.locator("figure img").all()
        )
        assert problems == []


def test_entries_are_chosen_and_compared_up_to_eight(browser: Any, address: str) -> None:
    from playwright.sync_api import expect

    with opened(browser, address) as (page, problems):
        page.goto(TRACK)
        boxes = page.locator("#board tbody input[type=checkbox]")
        for number in range(9):
            boxes.nth(number).click()
        assert page.locator("#board tbody input:checked").count() == 8
        page.get_by_role("link", name="Compare", exact=True).last.click()
        page.wait_for_selector(".compare-table")
        heads = page.locator(".compare-table").first.locator("thead th")
        expect(heads).to_have_count(9)
        assert "No setting differs." in page.locator("#compare").inner_text()
        page.get_by_role("button", name=re.compile("^Remove")).first.click()
        expect(heads).to_have_count(8)
        page.get_by_label("Add an entry").fill("hello")
        page.locator(".found button").first.click()
        expect(heads).to_have_count(9)
        assert page.url.count(",") == 7
        rows = page.locator(".compare-table").first.locator("tbody tr")
        tracks = set(
            rows.filter(has=page.get_by_role("rowheader", name="Track", exact=True)).locator("td").all_inner_texts()
        )
        quality = rows.filter(has=page.get_by_role("rowheader", name="Bits per byte", exact=True))
        # Of entries that were scored on one text the best is marked; different tracks are said, and none is best.
        assert quality.locator(".best").count() == (1 if len(tracks) == 1 else 0)
        assert page.get_by_text("These entries are of different tracks").count() == (0 if len(tracks) == 1 else 1)
        assert problems == []


def test_what_was_chosen_stands_in_one_line_on_a_phone(browser: Any, address: str) -> None:
    with opened(browser, address, 375) as (page, problems):
        page.goto(TRACK)
        for place in range(2):
            page.locator("#board .pick input").nth(place).check()
        assert page.locator(".basket").bounding_box()["height"] < 60
        assert problems == []


def test_what_was_chosen_and_which_page_is_shown_outlast_the_pages_of_a_table(
    browser: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track_page, "PAGE_SIZE", 2)
    rows = []
    for number in range(5):  # without a cost there is no chart to draw
        figures = {"eval/paloma/c4_en/bpb": 1.0 + number, "training_time": None}
        run = run_info(tokenized_dataset="fineweb-edu", **figures)
        rows += rows_of(run, f"size_{number}", f"size_{number}/speedrun_results.json")
    write_site(build_board(rows), SiteWriter(str(tmp_path)))
    with serving(tmp_path) as base, opened(browser, base) as (page, problems):
        basket, current = page.locator(".basket"), page.locator("#pages [aria-current]")
        page.goto(TRACK)
        page.get_by_label("Compare size_0").check()
        for number, name in ((2, "size_2"), (3, "size_4")):
            page.get_by_role("link", name=f"page {number}").click()
            page.wait_for_url(f"**/fineweb-edu.page-{number}.html?pick=*")
            page.get_by_label(f"Compare {name}").check()
            assert basket.inner_text().startswith(f"{number} of up to 8 chosen")
        page.locator("#board thead .c-quality button").click()
        page.locator("#board thead .c-rank button").click()
        for _ in range(2):
            assert (current.inner_text(), _column(page, "rank")[1:]) == ("1", ["2"])
            assert basket.inner_text().startswith("3 of up to 8 chosen")
            page.reload()  # the address says what is shown, though it was built as page 3
        page.get_by_role("button", name="page 2").click()
        page.reload()
        assert current.inner_text() == "2" and page.get_by_label("Compare size_2").is_checked()
        assert problems == []


def test_site_opens_from_disk(browser: Any, site: pathlib.Path) -> None:
    with opened(browser, "file:") as (page, problems):
        page.goto((site / "index.html").as_uri())
        page.get_by_role("heading", name="FineWeb-Edu").get_by_role("link").click()
        page.locator("#board thead").get_by_role("button", name="Bits per byte").click()
        assert "sort=quality" in page.url
        assert page.locator("#board tbody tr").count() == 10
        assert problems == []


def test_site_of_hostile_files_runs_none_of_it(browser: Any, hostile_address: str, hostile_site: pathlib.Path) -> None:
    paths = [path.relative_to(hostile_site).as_posix() for path in sorted(hostile_site.rglob("*.html"))]
    with opened(browser, hostile_address) as (page, problems):
        for path in paths:
            page.goto(path)
            _wait_for_charts(page)
            page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
            assert "hit" not in page.title() or "onerror" in page.title(), path
            if page.locator("#board thead button").count():
                page.locator("#board thead").get_by_role("button", name="Entry").click()
                page.locator("#board tbody tr").first.hover()
                page.locator("#board tbody input").first.check()
        keys = ",".join(path.removeprefix("entries/").removesuffix(".html") for path in _entries(hostile_site))
        page.goto(f"compare.html?runs={keys},<img src=x onerror=alert(1)>,../../etc")
        page.wait_for_selector(".compare-table")
        page.get_by_label("Add an entry").fill("<")
        assert page.title() == "Compare · Marin Speedrun"
        assert problems == []
    with opened(browser, hostile_address, 375, "dark", bypass_csp=True) as (page, problems):
        for path in paths:
            page.goto(path)
            _wait_for_charts(page)
            assert page.evaluate("document.documentElement.scrollWidth") == 375, path
            assert _violations(page, {}) == [], path
        assert problems == []


def test_server_sends_the_policy_as_a_header_and_serves_nothing_else(
    site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    import http.client

    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    (tmp_path / "secret.txt").write_text("secret")
    (copy / "link.txt").symlink_to(tmp_path / "secret.txt")
    with serving(copy) as base:
        port = int(base.rstrip("/").rpartition(":")[2])

        def ask(path: str, method: str = "GET", host: str | None = None) -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host or f"127.0.0.1:{port}")
            connection.endheaders()
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer

        front = ask("/")
        assert front.status == 200
        policy = front.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert len(front.headers.get_all("content-security-policy")) == 1
        assert ask("/data/feed.atom").headers["content-type"] == "application/atom+xml"
        assert [ask(path).status for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/link.txt", "/none.html")] == [
            404
        ] * 4
        assert (ask("/", "POST").status, ask("/", host="evil.example").status) == (405, 421)
