"""The data browser as a person uses it, in a real browser: to browse, search, follow provenance and watch a live run.

Every page of these tests is checked for errors on the console and for requests that leave the server, and each kind of page
by axe-core in both colour schemes.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from chromium import wait_for_count, wait_for_text

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

CORPUS = "/files/0/corpora/docs-11111111"
PAGES = {
    "experiments": "/",
    "steps": "/steps",
    "experiment": "/experiment/0/main-abc123.json",
    "running step": "/step/0/checkpoints/run-44444444",
    "failed step": "/step/0/filter/bad-66666666",
    "hostile step": "/step/0/hostile/step-77777777",
    "folder": CORPUS,
    "folder of odd names": "/files/0/hostile",
    "json": "/files/0/experiments/main-abc123.json",
    "json search": "/files/0/experiments/main-abc123.json?q=learning",
    "rows": f"{CORPUS}/train.jsonl.zst?row=56",
    "parquet": f"{CORPUS}/rows.parquet?group=2&row=5",
    "text": "/files/0/filter/bad-66666666/.executor_log.txt",
    "text search": "/files/0/filter/bad-66666666/.executor_log.txt?q=line+199",
    "tokens": "/files/0/tokenized/docs-33333333?view=tokens&row=56",
    "image": f"{CORPUS}/picture.png",
    "download": f"{CORPUS}/weights.bin",
    "nothing there": "/files/0/none",
}


@contextlib.contextmanager
def _opened(browser: Any, base: str, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=base, **options)
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(f"{base}/") else problems.append(request.url))
    try:
        yield page, problems
    finally:
        context.close()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_every_kind_of_page_has_no_axe_violation_and_fits_its_width(browser: Any, client: Any, scheme: str) -> None:
    # The other scheme has the same markup in other colours.
    width, rules = {"light": (1440, {}), "dark": (375, {"runOnly": ["color-contrast"]})}[scheme]
    # axe-core is put into the page by a script, which the page's own policy rightly refuses.
    with _opened(browser, client.url, color_scheme=scheme, bypass_csp=True) as (page, _):
        page.set_viewport_size({"width": width, "height": 900})
        for name, address in PAGES.items():
            page.goto(address)
            page.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
            found = axe.Axe().run(page, options=rules | {"resultTypes": ["violations"]}).response["violations"]
            assert [(item["id"], [node["target"] for node in item["nodes"]][:3]) for item in found] == [], name
            assert page.evaluate("document.documentElement.scrollWidth") == width, name


def test_person_browses_searches_and_follows_provenance(browser: Any, client: Any) -> None:
    with _opened(browser, client.url) as (page, problems):
        page.goto("/")
        page.get_by_role("link", name="main-abc123").click()
        page.locator("svg.graph").get_by_role("link", name="corpora/docs").click()
        wait_for_text(page.locator("h1"), "corpora/docs")
        page.get_by_role("link", name="Files", exact=True).last.click()
        page.get_by_role("searchbox").fill("jsonl zst")
        page.keyboard.press("Enter")
        page.wait_for_url("**/*?q=*")
        wait_for_count(page.locator("table tbody tr"), 1)
        page.get_by_role("link", name="train.jsonl.zst").click()
        page.get_by_role("searchbox").fill("café number 413")
        page.get_by_role("button", name="Search").click()
        row = page.locator("ol.rows > li")
        wait_for_count(row, 1)
        assert not row.locator(".tree").is_visible()
        row.locator("summary").first.click()
        wait_for_text(row.locator(".tree"), "It has café number 413.")
        page.get_by_role("list", name="Steps that read this output").get_by_role("link", name="tokenized/docs").click()
        wait_for_text(page.locator("h1"), "tokenized/docs")
        page.get_by_role("link", name="Files", exact=True).last.click()
        page.get_by_role("link", name="Documents as text").click()
        wait_for_text(page.locator("ol.rows pre").first, "Document 0 is about matrices.")
        page.get_by_role("link", name="tokenizers/bpe", exact=True).click()
        page.get_by_role("list", name="Outputs that this step reads").get_by_role("link", name="corpora/docs").click()
        wait_for_text(page.locator("h1"), "corpora/docs")
        assert problems == []


def test_person_watches_a_run_until_it_ends(
    browser: Any, make_prefix: Callable[[], Any], serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    with serve(prefix.path) as client, _opened(browser, client.url) as (page, problems):
        page.goto(f"/step/0/{prefix.run}")
        line = page.locator(".chart-figure", has_text="Training loss").locator("polyline.line")
        before = line.get_attribute("points")
        assert "8 of 50" in page.locator("#live").inner_text()
        page.locator(".chart-figure", has_text="Training loss").get_by_text("Values").click()
        for step in range(8, 12):
            prefix.add_training_step(step)
        with open(prefix.path / prefix.run / ".executor_log.txt", "a") as log:
            log.write("a line that was just written\n")
        prefix.beat()
        page.get_by_text("12 of 50").wait_for(timeout=60_000)
        assert line.get_attribute("points") != before
        assert "a line that was just written" in page.locator("#live").inner_text()
        assert (
            page.locator(".chart-figure", has_text="Training loss").locator("details").get_attribute("open") is not None
        )
        page.locator("svg.chart").first.hover()
        assert "at step" in page.locator("svg.chart").first.locator(".reading").text_content()
        prefix.add_training_step(12, loss=0.125)
        prefix.finish()
        page.locator("#live .status .badge.success").wait_for(timeout=60_000)
        assert page.locator(".chart-figure", has_text="Training loss").locator("figcaption b").inner_text() == "0.125"
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(2600)
        assert asked == []  # a finished run is not asked for again
        assert problems == []


def test_what_a_person_opened_scrolled_and_focused_stays_when_other_parts_come(
    browser: Any, make_prefix: Callable[[], Any], serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    with serve(prefix.path) as client, _opened(browser, client.url) as (page, problems):
        page.goto(f"/step/0/{prefix.run}")
        speed = page.locator(".chart-figure", has_text="Tokens per second")
        speed.get_by_text("Values").click()
        log = page.get_by_role("region", name="The last lines of the log")
        log.evaluate("log => { log.scrollTop = 200; }")
        speed.locator("summary").focus()
        attempt = prefix.path / prefix.run
        (attempt / ".executor_error.txt").write_text("of an earlier attempt\n" * 100)
        with open(attempt / "metrics.jsonl", "a") as stream:
            stream.write('{"event": "evaluation", "step": 7, "val_bpb": 1.25}\n')
        page.locator(".chart-figure", has_text="val_bpb, evaluated").wait_for(timeout=60_000)
        assert page.locator(".charts details[open]").count() == 1
        assert speed.locator("details[open]").count() == 1 and speed.locator("summary:focus").count() == 1
        assert log.evaluate("log => log.scrollTop") == 200
        page.get_by_role("region", name="The error's text").focus()
        (attempt / ".executor_error.txt").unlink()
        page.get_by_role("region", name="The error's text").wait_for(state="detached", timeout=60_000)
        assert page.evaluate("document.activeElement.id") == "content"  # and no other control
        assert problems == []


def test_lines_of_each_script_begin_on_their_own_side(
    browser: Any, tmp_path: pathlib.Path, serve: Callable[..., Any]
) -> None:
    (tmp_path / "text.txt").write_text("مرحبا بالعالم\nfirst on the left\n")
    with serve(tmp_path) as client, _opened(browser, client.url) as (page, problems):
        page.goto("/files/0/text.txt")
        starts = page.evaluate(
            """() => {
              const pre = document.querySelector("pre.output"), text = pre.firstChild, box = pre.getBoundingClientRect();
              return [0, text.data.indexOf("first")].map((at) => {
                const range = document.createRange();
                range.setStart(text, at); range.setEnd(text, at + 5);
                return (range.getBoundingClientRect().left - box.left) / box.width;
              });
            }"""
        )
        assert starts[0] > 0.8 and starts[1] < 0.1 and problems == []


def test_page_of_a_run_says_when_the_server_is_gone(
    browser: Any, make_prefix: Callable[[], Any], serve: Callable[..., Any]
) -> None:
    prefix = make_prefix()
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(serve(prefix.path))
        page, _ = stack.enter_context(_opened(browser, client.url))
        page.goto(f"/step/0/{prefix.run}")
        page.route("**/live/**", lambda route: route.abort())
        page.get_by_text("does not answer").wait_for(timeout=60_000)
        assert page.get_by_text("does not answer").is_visible()
        page.unroute("**/live/**")
        page.get_by_text("does not answer").wait_for(state="detached", timeout=60_000)
        assert page.get_by_text("does not answer").count() == 0


def test_hostile_names_and_contents_run_nothing(browser: Any, client: Any, browser_prefix: Any) -> None:
    names = sorted(path.name for path in (browser_prefix.path / "hostile").iterdir() if "\\" not in path.name)
    record = next(path.name for path in (browser_prefix.path / "experiments").iterdir() if "<img" in path.name)
    with _opened(browser, client.url) as (page, problems):
        page.goto("/files/0/hostile")
        links = page.locator("table tbody th a")
        addresses = [link.get_attribute("href") for link in links.all()]
        assert len(addresses) == len(names)
        others = ["/", "/steps", "/step/0/hostile/step-77777777", f"/experiment/0/{quote(record)}"]
        others += [
            f"{path}?q={quote('<img src=x onerror=document.title=1>')}"
            for path in ("/", "/steps", "/files/0/hostile/rows.jsonl")
        ]
        for address in [*addresses, *others]:
            assert page.goto(address).status == 200, address
            page.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
            assert page.title().endswith("· Marin"), address
            assert page.locator("main script, main img, main iframe, main style").count() == 0
        page.goto("/step/0/hostile/step-77777777")
        page.locator("svg.chart").first.hover()
        assert page.title().endswith("· Marin")
        assert problems == []


def test_file_with_markup_is_saved_and_never_shown(browser: Any, client: Any) -> None:
    with _opened(browser, client.url) as (page, problems):
        page.goto(f"{CORPUS}/drawing.svg")
        with page.expect_download() as saved:
            page.get_by_role("link", name="Download").click()
        assert saved.value.suggested_filename == "drawing.svg"
        assert page.url.endswith("drawing.svg") and problems == []


def test_pages_work_without_scripts_and_by_keyboard(browser: Any, client: Any) -> None:
    with _opened(browser, client.url, java_script_enabled=False) as (page, _):
        page.goto("/step/0/checkpoints/run-44444444")
        assert page.locator("svg.chart").count() == 5
    with _opened(browser, client.url) as (page, problems):
        page.goto("/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert page.evaluate("document.activeElement.closest('main') !== null") and outline == "solid"
        assert problems == []


def test_every_kind_of_page_is_whole_on_paper(browser: Any, client: Any) -> None:
    with _opened(browser, client.url) as (page, _):
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 718, "height": 1000})  # A4 within its margins
        for name, address in PAGES.items():
            page.goto(address)
            assert page.evaluate("document.documentElement.scrollWidth") <= 718, name
