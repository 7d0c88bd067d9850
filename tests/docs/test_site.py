"""The documentation site: it builds without a warning, every link in it leads somewhere, and no page asks anybody for anything."""

import contextlib
import functools
import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium

from marin.errors import ConfigError
from scripts import docs

ROOT = Path(__file__).resolve().parents[2]
# The documents that the project was begun with, under their names.
BEGINNINGS = [
    *(f"tutorials/{name}" for name in ("installation", "first-experiment", "submitting-speedrun", "add-optimizer")),
    *(
        f"explanations/{name}"
        for name in ("speedrun", "speedrun-flops-accounting", "marin-prefix", "experiments", "executor")
    ),
    "reports/index",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built as `make docs` does; a warning or a broken link ends it here."""
    pytest.importorskip("zensical", reason="Zensical, which builds the site, is not installed")
    folder = tmp_path_factory.mktemp("docs")
    docs.build(ROOT, folder / "docs", folder / "site")
    return folder / "site"


def test_site_has_every_document_under_its_name(built: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(BEGINNINGS) <= pages
    assert [page for page in (*sorted(pages), "index", "CHANGELOG") if not (built / f"{page}.html").is_file()] == []
    assert len(re.findall(r"<h1", (built / "tutorials" / "installation.html").read_text())) == 1


def test_navigation_has_every_document_once() -> None:
    def paths(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for item in node.values() if isinstance(node, dict) else node:
                yield from paths(item)

    listed = [path for path in paths(docs.navigation(ROOT / "docs")) if path not in ("index.md", "CHANGELOG.md")]
    assert sorted(listed) == sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    )


def test_faults_of_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="https://example.org">4</a>'
        '<a href="../out.html">5</a><img src="missing.png"><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<h2 id="there">x</h2><link rel="canonical" href="https://example.org/b.html">')
    (tmp_path / "s.css").write_text("@import 'https://example.org/s.css'; a { background: url(//example.org/a.png) }")
    found = docs.faults(tmp_path)
    assert [fault.partition(": ")[2].split()[0] for fault in found] == ["b.html#gone", "c.html", "../out.html", "missing.png", "loads", "loads", "loads"]  # fmt: skip


def _small_root(folder: Path) -> Path:
    root = folder / "root"
    (root / "docs" / "tutorials").mkdir(parents=True)
    shutil.copy(ROOT / docs.CONFIG, root)
    (root / "README.md").write_text("# Home\n[a](docs/tutorials/a.md#x) ![p](docs/p.png)\n")
    (root / "CHANGELOG.md").write_text("# Changes\n")
    for name in ("architecture", "changing", "coverage", "LOG"):
        (root / "docs" / f"{name}.md").write_text("# Page\n")
    page = "# A\n[code](../../marin/x.py) [home](../../README.md) [top](#a) [web](https://example.org)\n```\n[kept](../../y.py)\n```\n"
    (root / "docs" / "tutorials" / "a.md").write_text(page)
    return root


def test_links_that_leave_the_documents_lead_to_the_repository(tmp_path: Path) -> None:
    docs.stage(_small_root(tmp_path), tmp_path / "stage")
    staged = (tmp_path / "stage" / "pages" / "tutorials" / "a.md").read_text()
    assert (
        "[code](https://github.com/marin-community/marin/blob/main/marin/x.py) [home](../index.md) [top](#a)" in staged
    )
    assert "[kept](../../y.py)" in staged
    assert (tmp_path / "stage" / "pages" / "index.md").read_text().endswith("[a](tutorials/a.md#x) ![p](p.png)\n")


# --- in a browser -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


def test_site_below_a_path_has_a_404_page_whose_links_lead_there_and_none_where_that_is_unknown(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="Zensical, which builds the site, is not installed")
    root, published = _small_root(tmp_path), tmp_path / "host"
    for name in ("docs/p.png", "docs/site.css"):
        (root / name).touch()
    page = root / "docs" / "tutorials" / "a.md"
    page.write_text("# A\n\n## X\n")
    docs.build(root, tmp_path / "docs", published / "marin", docs.check_url("https://example.org/marin"))
    with _served(published) as address, chromium() as browser:
        shown = browser.new_page()
        missing: list[str] = []
        shown.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
        shown.goto(f"{address}/marin/404.html")
        shown.wait_for_load_state("networkidle")
        assert missing == []
        links = shown.locator("a[href*='.html']").evaluate_all("(links) => links.map((link) => link.pathname)")
        assert "/marin/tutorials/a.html" in links
        assert [link for link in links if not (published / link.lstrip("/")).is_file()] == []
    assert "https://example.org/marin/tutorials/a.html" in (published / "marin" / "sitemap.xml").read_text()
    docs.build(root, tmp_path / "docs", published / "marin")
    assert not (published / "marin" / "404.html").exists()


def test_addresses_of_no_site_are_refused() -> None:
    for url in ("example.org/marin", "ftp://example.org", "https://", "https://example.org/?a=1"):
        with pytest.raises(ConfigError, match="give the address of the site's folder"):
            docs.check_url(url)


def test_names_in_tables_are_not_cut_in_two(built: Path) -> None:
    cut = """(codes) => codes.filter((code) => !/\\s/.test(code.textContent) && code.getClientRects().length > 1).length"""
    with chromium() as browser, _served(built) as base:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{base}/reference/configs.html")
        names = page.locator("td:first-child code")
        assert names.count() > 50 and names.evaluate_all(cut) == 0


def test_pages_work_in_both_schemes_with_search_and_without_foreign_requests(built: Path) -> None:
    asked: list[str] = []
    with _served(built) as address, chromium() as browser:
        backgrounds = {}
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 800})
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{address}/explanations/experiments.html")
            backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.keyboard.press("/")
            page.keyboard.type("tokenizer")
            page.wait_for_function("document.body.innerText.toLowerCase().includes('results')", timeout=20_000)
            page.close()
        narrow = browser.new_page(viewport={"width": 375, "height": 700})
        narrow.goto(f"{address}/tutorials/add-dataset.html")
        assert narrow.evaluate("document.documentElement.scrollWidth") <= 375
    assert [url for url in asked if not url.startswith(("data:", "blob:", address))] == []
    assert backgrounds["light"] != backgrounds["dark"]


@pytest.mark.parametrize(("kind", "said"), [("folder", "holds files that are"), ("file", "is a file that is")])
def test_site_replaces_nothing_that_is_no_site(
    tmp_path: Path, kind: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "mine"
    kept = place / "thesis.txt" if kind == "folder" else place
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    # Whatever else a build would need is there, and would be used first.
    monkeypatch.setattr(docs, "stage", lambda *_: pytest.fail("it began to build"))
    with pytest.raises(ConfigError, match=f"{place} {said} no site made by this command"):
        docs.build(ROOT, tmp_path / "build" / "docs", place)
    assert kept.read_text() == "years of work"


def test_site_may_go_where_a_site_or_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    docs.check_replaceable(tmp_path / "site")
    (tmp_path / "site" / "index.html").touch()
    (tmp_path / "site" / docs.MARK).touch()
    docs.check_replaceable(tmp_path / "site")
    docs.check_replaceable(tmp_path / "not" / "there")
