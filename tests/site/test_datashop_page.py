"""The datashop's page as a person uses it, in Chromium: from an upload over a tried prompt to the downloaded dataset.

Every page is checked for errors on the console, for requests that leave the server, and by axe-core in both colour schemes.
"""

import contextlib
import itertools
import json
import pathlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from chromium import wait_for_count, wait_for_text
from datashop_pages import Client, rows, shop_served
from datashop_runner import HOSTILE, STAGES

from marin.data.corpora.python_docs import extracted_documents, split_of
from marin.site.datashop import trying
from marin.site.datashop.wishes import BUILT_IN

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")


@contextlib.contextmanager
def _opened(browser: Any, client: Client, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page that came by the printed address, and what it complained of."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, base_url=client.url, reduced_motion="reduce", **options
    )
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(client.url) else problems.append(request.url))
    page.goto(client.entry)
    try:
        yield page, problems
    finally:
        context.close()


@pytest.fixture
def client(tmp_path: pathlib.Path) -> Iterator[Client]:
    with shop_served(tmp_path) as opened:
        yield opened


def _files(folder: pathlib.Path) -> dict[str, str]:
    """Files to upload, some of strangers."""
    found = {
        "pool": ("pool.jsonl", rows(40, f"pool {HOSTILE}")),
        "examples": ("<img src=x onerror=document.title='hit'>.jsonl", rows(25, HOSTILE)),
        "mixed": ("mixed.jsonl", rows(1, "one") + b'{"text": 1}\n{"text": ""}\n'),
        "picture": ("picture.jsonl", b"\x89PNG\r\n\x1a\n" + bytes(99)),
        "text": ("notes.txt", b"one\ntwo\n\n\xff\n"),
    }
    for key, (name, content) in found.items():
        (folder / key).mkdir()
        (folder / key / name).write_bytes(content)
    return {key: str(folder / key / name) for key, (name, _) in found.items()}


def _option(page: Any, legend: str, name: str) -> Any:
    return page.locator("fieldset.choose", has_text=legend).locator("label.option", has_text=name)


def test_files_beside_one_that_was_refused_are_in_the_form_whatever_is_pressed_next(
    browser: Any, client: Client, tmp_path: pathlib.Path
) -> None:
    files = _files(tmp_path)
    with _opened(browser, client) as (page, _):
        page.get_by_role("button", name="New dataset").click()
        page.get_by_label("Name of the dataset").fill("n")
        for count, (label, name) in enumerate(
            (("Upload files of the pool", "pool"), ("Upload examples", "examples")), 1
        ):
            page.get_by_label(label, exact=True).set_input_files([files["picture"], files[name]])
            wait_for_count(page.get_by_role("button", name="Go on with what was taken in"), count)
        page.get_by_role("button", name="Review and start").click()
        wait_for_text(page.locator("main"), "nothing is paid for")
        for name in ("pool.jsonl", "img-src-x-onerror-document-title-hit.jsonl"):
            assert name in page.locator("main").inner_text()


def test_leaving_while_a_file_is_sent_is_asked_about(browser: Any, client: Client, tmp_path: pathlib.Path) -> None:
    files = _files(tmp_path)
    with _opened(browser, client) as (page, _):
        page.route("**/uploads?*", lambda route: None)  # a long upload
        page.get_by_role("button", name="New dataset").click()
        page.get_by_label("Upload files of the pool").set_input_files(files["pool"])
        page.get_by_text("pool.jsonl: sending").wait_for()
        asked = []
        page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
        page.get_by_role("button", name="Review and start").click(no_wait_after=True)
        client.until(lambda: page.evaluate("1") and asked)
        assert asked == ["beforeunload"]
        assert "pool.jsonl: sending" in page.evaluate("document.querySelector('.reports').textContent")


@pytest.mark.parametrize("is_last_refused", [False, True])
def test_upload_that_ends_waits_for_those_that_are_still_on_their_way(
    client: Client, browser: Any, tmp_path: pathlib.Path, is_last_refused: bool
) -> None:
    files = _files(tmp_path)
    held: list[Any] = []
    with _opened(browser, client) as (page, problems):
        asked: list[str] = []
        page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
        page.route("**/uploads?name=mixed.jsonl*", lambda route: held.append(route))
        page.get_by_role("button", name="New dataset").click()
        # A person sees it when the script is there; Playwright would choose before that, and the second choice replace the first.
        page.get_by_label("Upload files of the pool").wait_for()
        page.get_by_label("Upload files of the pool").set_input_files(files["mixed"])
        page.get_by_label("Upload files of the pool").set_input_files(files["pool"])  # more for the same list
        page.get_by_label("Upload examples", exact=True).set_input_files(files["examples"])
        page.get_by_text("pool.jsonl: 40 documents").wait_for(timeout=60_000)
        page.get_by_text(".jsonl: 25 documents").wait_for(timeout=60_000)
        assert page.get_by_text("mixed.jsonl: sending").is_visible() and asked == []
        (route,) = held
        if is_last_refused:
            route.fulfill(status=422, json={"problem": "it is odd"})
            page.get_by_text("mixed.jsonl was refused: it is odd").wait_for()
            assert page.get_by_text("pool.jsonl: 40 documents").is_visible()
            page.get_by_role("button", name="Go on with what was taken in").first.click()
        else:
            route.continue_()
        wait_for_count(page.locator(".choose .option input:checked"), 2 if is_last_refused else 3)
        assert asked == [] and [text for text in problems if "422" not in text] == []


def test_person_uploads_starts_watches_stops_resumes_looks_and_downloads(
    browser: Any, client: Client, tmp_path: pathlib.Path
) -> None:
    files = _files(tmp_path)
    with _opened(browser, client) as (page, problems):
        assert page.url == f"{client.url}/"  # the key is in no address that stays
        page.get_by_role("button", name="New dataset").click()
        page.get_by_label("Name of the dataset").fill("Math docs")
        page.get_by_label("Upload files of the pool").set_input_files([files["mixed"], files["picture"]])
        page.get_by_text("picture.jsonl was refused: it holds no document").wait_for(timeout=60_000)
        assert "mixed.jsonl: 1 document, 2 rows left out\n" in page.locator(".reports").first.inner_text()
        page.get_by_label("Upload files of the pool").set_input_files([files["pool"], files["picture"]])
        page.get_by_text("pool.jsonl: 40 documents").wait_for(timeout=60_000)
        page.get_by_text("picture.jsonl was refused: it holds no document").wait_for(timeout=60_000)
        page.get_by_role("button", name="Go on with what was taken in").click()
        _option(page, "The pool of documents", "pool.jsonl").wait_for()
        # The first upload was not gone on with, and what was taken in of it is there all the same.
        assert _option(page, "The pool of documents", "mixed.jsonl").get_by_role("checkbox").is_checked()
        page.get_by_label("Upload examples", exact=True).set_input_files(files["examples"])
        _option(page, "Examples of what is wanted", "img-src-x-onerror-document-title-hit.jsonl").wait_for(
            timeout=60_000
        )
        assert _option(page, "The pool of documents", "pool.jsonl").get_by_role("checkbox").is_checked()
        page.get_by_role("button", name="Review and start").click()
        assert "Give a name of small letters" in page.get_by_role("alert").inner_text()
        page.locator("#problems:focus").wait_for()
        page.get_by_role("link", name="Give a name of small letters").click()
        page.get_by_label("Name of the dataset").fill("math-docs")
        with page.expect_navigation():
            page.keyboard.press("Enter")  # saves, and starts nothing
        assert page.locator("h1").inner_text() == "math-docs" and "/review" not in page.url
        page.get_by_role("button", name="Review and start").click()
        wait_for_text(page.locator("main"), "nothing is paid for")
        page.get_by_text("The config file that this makes").click()
        assert "experiment_name='math-docs'" in page.get_by_role("region", name="Config file").inner_text()
        page.get_by_role("button", name="Start").click()

        live = page.locator("#live")
        client.go("pool")
        live.get_by_text("25 of 100").wait_for(timeout=20_000)
        assert "1 of 6 stages" in live.inner_text() and "the log of labels" in live.inner_text()
        live.get_by_role("button", name="Stop").click()
        live.get_by_role("button", name="Resume").wait_for(timeout=20_000)
        live.get_by_role("button", name="Resume").click()
        client.go(*STAGES)
        live.get_by_role("link", name="Download dataset and card").wait_for(timeout=30_000)
        assert "6 of 6 stages" in live.inner_text() and live.locator("picture img").count() == 2
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        with page.expect_download() as saved:
            live.get_by_role("link", name="Download dataset and card").click()
        assert saved.value.suggested_filename == "math-docs.zip"

        live.get_by_role("link", name="Kept and dropped").click()
        kept, dropped = page.get_by_role("region", name="Kept"), page.get_by_role("region", name="Dropped")
        wait_for_count(kept.locator("article"), 10)
        wait_for_count(dropped.locator("article"), 10)
        # Side by side; asked for at one moment, since the page may still move.
        one, other = page.evaluate(
            "both => both.map((box) => box.getBoundingClientRect())", [kept.element_handle(), dropped.element_handle()]
        )
        assert one["right"] <= other["left"] and one["y"] == other["y"]
        assert "<img src=x" in kept.inner_text() and page.title().endswith("· Marin")
        for name in ("Next", "at random"):
            with page.expect_navigation():
                page.get_by_role("link", name=name).click()
        wait_for_count(kept.locator("article"), 8)
        page.go_back(), page.go_back(), page.go_back()
        with page.expect_navigation():
            page.get_by_role("link", name="Report").click()
        assert page.title() == "Report"
        # What the console tells: that a file was refused (422), and that the report's markup of strangers, which the
        # runner does not escape, may run nothing and finds no picture (404).
        expected = ("422", "404", "Content Security Policy")
        assert [text for text in problems if not any(word in text for word in expected)] == []


class _Grader(BaseHTTPRequestHandler):
    """Grades documents by their number; some answers have no score, and every third is refused once."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked = body["messages"][0]["content"]
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        answer = f"About it: {HOSTILE}\nFinal Score: {len(asked) % 6}"
        if len(self.server.asked) == 4:  # type: ignore[attr-defined]
            answer = "I would rather not say."
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        data = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def grader() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Grader)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_prompt_is_tried_on_ten_documents_and_its_cost_is_told_before_paying(
    browser: Any, client: Client, grader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.upload("pool.jsonl", rows(40, HOSTILE))
    with _opened(browser, client) as (page, problems):
        page.get_by_role("button", name="New dataset").click()
        page.get_by_label("Prompt", exact=True).wait_for(state="hidden")
        page.get_by_text("A prompt", exact=True).click()
        page.get_by_label("Name of the dataset").fill("graded")
        _option(page, "The pool of documents", "pool.jsonl").click()
        page.get_by_label("Prompt", exact=True).fill("Grade this.")
        page.get_by_role("button", name="Try on ten documents").click()
        assert "Write {example}" in page.get_by_role("alert").inner_text() and grader.asked == []
        page.get_by_label("Prompt", exact=True).fill("Grade this: {example}")
        page.get_by_label("Model", exact=True).fill("grader")
        page.get_by_label("Endpoint").fill(f"http://127.0.0.1:{grader.server_address[1]}/v1")
        page.get_by_label("Documents to label").fill("1,000")
        page.get_by_label("$ per million tokens read").fill("1")
        page.get_by_label("$ per million tokens written").fill("2")
        page.get_by_role("button", name="Save", exact=True).click()
        wait_for_text(page.locator("#trial"), "At most")
        assert grader.asked == []
        page.get_by_role("button", name="Try on ten documents").click()
        page.locator(".trials").wait_for(timeout=30_000)
        assert page.locator(".trials > li").count() == 10 == len(grader.asked)
        assert page.locator(".trials .badge.success").count() == 9
        assert page.get_by_text("the answer has no score").count() == 1
        # The pool has no more than 40. Ten answers of 120 tokens each, so the interval has no width.
        assert (
            "40 documents should take about 4,800 tokens (4,800 to 4,800), about $0.00560"
            in page.locator(".estimate").inner_text()
        )
        assert page.title().endswith("· Marin") and page.locator("main img").count() == 0
        page.get_by_role("button", name="Review and start").click()
        for said in ("about $0.00560", "no limit"):
            wait_for_text(page.locator("main"), said)
        page.get_by_role("link", name="Change it").click()
        page.get_by_label("Prompt", exact=True).fill("Another: {example}")
        page.get_by_role("button", name="Review and start").click()
        wait_for_text(page.locator("main"), "was not tried yet")
        assert len(grader.asked) == 10
        page.get_by_role("link", name="Change it").click()
        monkeypatch.setattr(trying, "_PATIENCE", 0.5)
        page.get_by_label("Endpoint").fill("http://127.0.0.1:1/v1")
        page.get_by_role("button", name="Try on ten documents").click()
        page.get_by_text("The trial was not finished.").wait_for(timeout=90_000)
        assert page.locator(".trials").count() == 0
        assert problems == []


def test_prompt_is_tried_on_the_built_in_text_before_any_run_has_written_it(client: Client, grader: Any) -> None:
    draft = client.post("/runs")[1]["location"]
    endpoint = f"http://127.0.0.1:{grader.server_address[1]}/v1"
    fields = {
        "way": "prompt",
        "name": "n",
        "pool": [BUILT_IN],
        "prompt": "{example}",
        "model": "m",
        "endpoint": endpoint,
    }
    for _ in range(2):
        client.post(draft, action="try", **fields)
        page = client.get(draft)
        assert "The trial was not finished." not in page and page.count('<div class="grade">') == 10
    assert len(grader.asked) == 10  # the same ten, whose answers are kept
    documents = {document.text: document.id for document in itertools.islice(extracted_documents(), 2000)}
    assert {split_of(documents[asked]) for asked in grader.asked} == {"train"}


def test_address_at_which_nobody_listens_is_told_while_a_person_waits(client: Client) -> None:
    pool = client.upload("pool.jsonl", rows(20))["id"]
    draft = client.post("/runs")[1]["location"]
    endpoint = "http://127.0.0.1:1/v1"
    fields = {"way": "prompt", "name": "n", "pool": [pool], "prompt": "{example}", "model": "m", "endpoint": endpoint}
    started = time.monotonic()
    client.post(draft, action="try", **fields)
    assert time.monotonic() - started < 15
    assert "no connection to http://127.0.0.1:1/v1" in client.get(draft)


def test_trial_without_any_label_is_warned_of_before_starting(client: Client, grader: Any) -> None:
    pool = client.upload("pool.jsonl", rows(20))["id"]
    draft = client.post("/runs")[1]["location"]
    endpoint = f"http://127.0.0.1:{grader.server_address[1]}/v1"
    fields = {"way": "prompt", "name": "n", "pool": [pool], "prompt": "{example}", "model": "m", "endpoint": endpoint}
    for processor, is_warned in (("finalscore0-5", False), ("medu", True)):  # the grader answers with a number
        client.post(draft, action="try", processor_type=processor, **fields)
        for page in (client.get(draft), client.get(f"{draft}/review")):
            assert ("No answer of the trial gave a label." in page) == is_warned
            assert ("such as “Final Score: Good”" in page) == is_warned


def test_prompt_for_a_target_text_is_written_to_be_read_and_changed(client: Client, grader: Any) -> None:
    corpus = client.upload("target.txt", b"What is 3 + 4?\n\nProve that 2 is prime.")["id"]
    draft = client.post("/runs")[1]["location"]
    endpoint = f"http://127.0.0.1:{grader.server_address[1]}/v1"
    fields = {"way": "corpus", "corpus": [corpus], "model": "grader", "endpoint": endpoint}
    refused = client.post(draft, action="write", **fields | {"corpus": []})
    assert refused[1]["location"].endswith("?check=write#problems") and grader.asked == []
    assert client.post(draft, action="write", **fields)[1]["location"].endswith("#prompt")
    (asked,) = grader.asked
    assert "Prove that 2 is prime." in asked
    run = client.shop.runs.get(draft[6:])
    assert run is not None and (run.wish.way, run.wish.processor_type) == ("prompt", "medu")
    assert "{example}" in run.wish.prompt and "About it:" in run.wish.prompt
    page = client.get(draft)
    assert "About it: &lt;/script&gt;" in page and "<script>document" not in page


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_every_page_has_no_axe_violation_and_fits_its_width(browser: Any, client: Client, scheme: str) -> None:
    pool = client.upload("pool.jsonl", rows(40, HOSTILE) + b"bad row\n")["id"]
    draft = client.post("/runs")[1]["location"]
    client.post(draft, action="save", name="Bad name", pool=[pool], way="prompt", price_input="x")
    folder = client.shop.runs.folder / draft[6:]
    trial = {
        "id": "a",
        "example": HOSTILE,
        "answer": HOSTILE,
        "input_tokens": 5,
        "output_tokens": 6,
        "cost_dollars": 0.001,
    }
    trials = [trial | {"label": 3.0, "why_null": None}, trial | {"label": None, "why_null": "the answer has no score"}]
    estimate = {"num_documents": 2000, "num_trials": 2, "tokens": [10, 9, 11], "dollars": [1.0, 0.9, 1.1]}
    (folder / "trial.json").write_text(
        json.dumps({"wish": "old", "trials": trials, "estimate": estimate, "problem": HOSTILE})
    )
    run, working = (client.post("/runs")[1]["location"] for _ in range(2))
    for address, name in ((run, "done"), (working, "working")):
        client.post(address, action="review", name=name, pool=[pool], positives=[pool], way="examples")
    review = client.get(f"{run}/review")
    assert "Start done?" in review
    pages = {
        "home": "/",
        "files": "/files",
        "draft": f"{draft}?check=all",
        "review": f"{working}/review",
        "nothing": "/none",
    }
    with _opened(browser, client, bypass_csp=True, color_scheme=scheme) as (page, _):
        for address in pages.values():
            _check(page, address, scheme)
        client.post(run, action="start")
        client.go("pool")
        client.until(lambda: "25 of 100" in client.get(run))
        _check(page, run, scheme)
        client.go(*STAGES)
        client.until(lambda: "Download dataset" in client.get(run))
        (client.store / "fail-classifier").touch()
        for address in (run, f"{run}/samples", "/"):
            _check(page, address, scheme)
        client.post(working, action="start")
        client.until(lambda: "What it said last" in client.get(working))
        _check(page, working, scheme)


def _check(page: Any, address: str, scheme: str) -> None:
    """axe-core in full at desk width in light colours; the same markup for contrast at phone width in dark ones."""
    width, rules = {"light": (1440, {}), "dark": (375, {"runOnly": ["color-contrast"]})}[scheme]
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    found = axe.Axe().run(page, options=rules | {"resultTypes": ["violations"]}).response["violations"]
    assert [(item["id"], [node["target"] for node in item["nodes"]][:3]) for item in found] == [], address
    assert page.evaluate("document.documentElement.scrollWidth") == width, address
    assert page.title().endswith("· Marin")


@pytest.mark.slow
def test_page_works_without_scripts_and_by_keyboard(browser: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pool.jsonl").write_bytes(rows(30))
    with shop_served(tmp_path, (str(tmp_path / "data"),)) as client:
        examples = client.upload("examples.jsonl", rows(30))["id"]
        with _opened(browser, client, java_script_enabled=False) as (page, _):
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")  # skips to the content
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")  # New dataset
            page.get_by_label("Name of the dataset").fill("plain")
            page.get_by_label("Or a path").fill(str(tmp_path / "data" / "*.jsonl"))
            assert not page.get_by_label("Upload examples", exact=True).is_visible()
            page.locator(f"input[name=positives][value='{examples}']").focus()
            page.keyboard.press("Space")
            page.get_by_role("button", name="Review and start").focus()
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Start").focus()
            page.keyboard.press("Enter")
            client.go(*STAGES)
            page.get_by_role("link", name="Download dataset and card").wait_for(timeout=30_000)  # it loads itself again
