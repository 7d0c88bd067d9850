"""The report on a data preparation: its figures are those of the stages, it says why, and it opens in a browser."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from marin.data.cache import write_cache
from marin.data.documents import Document, Dropped
from marin.data.mixture import Mixture
from marin.data.shards import DocumentSet, transform_shards, write_shards
from marin.errors import DataError
from marin.site.data_report import DataReportConfig, read_stage, write_data_report


def drop_some(index: int, documents: Iterator[Document]) -> Iterator[Document | Dropped]:
    for document in documents:
        number = int(document.id.split("-")[1])
        if number % 4 == 0:
            yield Dropped(document.id, "<script>alert(1)</script>", "hostile")
        elif number % 4 == 1:
            yield Document(document.id, "shorter", document.source)
        else:
            yield document


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    base = tmp_path_factory.mktemp("prepared")
    made = (Document(f"d-{number}", "a longer text " * 10, "web") for number in range(400))
    write_shards(str(base / "read"), made, stage="import", settings={})
    transform_shards(str(base / "read"), str(base / "clean"), drop_some, stage="drop some", settings={}, num_workers=1)
    for name, rows in (("one", 300), ("other", 100)):
        write_cache(str(base / name), [[0, *range(1, 50)]] * rows, tokenizer_digest="0" * 64, vocab_size=64)
    mixture = Mixture({"one": str(base / "one"), "other": str(base / "other")}, {"one": 1, "other": 1})
    config = DataReportConfig(
        "A <b>title</b>", {"read": str(base / "read"), "clean": str(base / "clean")}, mixture, 100
    )
    write_data_report(DataReportConfig(config.title, config.stages, mixture, 100, str(base / "report")))
    return base / "report"


def test_report_states_what_each_stage_kept_and_why_the_rest_went(report: pathlib.Path) -> None:
    value = json.loads((report / "report.json").read_text())
    read, clean = value["stages"]
    assert (read["documents_in"], read["documents_kept"], read["bytes_kept"]) == (400, 400, 56_000)
    assert (clean["documents_in"], clean["documents_kept"], clean["documents_changed"]) == (400, 300, 100)
    assert (clean["bytes_in"], clean["bytes_kept"]) == (56_000, 200 * 140 + 100 * 7)
    ((reason, number, examples),) = clean["dropped"]
    assert (reason, number, examples[:2]) == ("<script>alert(1)</script>", 100, ["d-0", "d-4"])


def test_report_counts_what_the_mixture_draws(report: pathlib.Path) -> None:
    one, other = json.loads((report / "report.json").read_text())["components"]
    assert (one["documents"], one["tokens"], other["tokens"]) == (300, 15_000, 5_000)
    assert one["share"] == pytest.approx(0.5, abs=0.01) and other["share"] == pytest.approx(0.5, abs=0.01)
    assert one["epochs"] == pytest.approx(2 / 3, abs=0.02) and other["epochs"] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (375, "dark")])
def test_report_page_shows_the_figures_and_runs_nothing(
    report: pathlib.Path, browser: Any, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    page.goto((report / "index.html").as_uri())
    words = " ".join(page.locator("body").inner_text().split())
    assert "A <b>title</b>" in words and "<script>alert(1)</script>" in words
    assert "clean 400 300 100 100 28.7 kB 51.2 %" in words
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert problems == []
    context.close()


def test_report_has_no_axe_violation(report: pathlib.Path, browser: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page = browser.new_page()
    page.goto((report / "index.html").as_uri())
    found = axe.Axe().run(page).response["violations"]
    assert [violation["id"] for violation in found] == []
    page.close()


def test_stage_that_is_unfinished_or_damaged_is_refused(report: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DataError, match="unfinished|no finished"):
        read_stage("none", str(tmp_path))
    write_shards(str(tmp_path / "set"), [Document("a", "text", "web")], stage="made", settings={})
    assert (
        read_stage("made", str(tmp_path / "set")).documents_kept
        == DocumentSet.open(str(tmp_path / "set")).num_documents
    )
    (tmp_path / "set" / "report.json").write_text('{"stage": "made"}')
    with pytest.raises(DataError, match="run the step that writes it again"):
        read_stage("made", str(tmp_path / "set"))
