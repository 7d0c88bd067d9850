"""The datashop's page: how fast files come in, how fast a run's page answers, and a picture of it.

    python -m benchmarks.datashop_page                                               # about a minute on two cores
    python -m benchmarks.datashop_page --screenshot docs/images/datashop-page.png    # some minutes: a whole run, in Chromium

Prints one JSON line a figure. A file of 50 MB of JSON lines is uploaded over HTTP, which includes reading each of its documents in
a process of its own; beside it stands the time of `taking.take` alone in this process. Then the page of a run is asked for again and
again. `--screenshot` makes a dataset from docstrings of Python's standard library, wanted: those of asyncio, with the real pipeline,
and takes the picture of the run's page when it is finished.
"""

import argparse
import ast
import contextlib
import http.client
import json
import pathlib
import random
import statistics
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from benchmarks.data import print_figure
from marin.site.datashop import taking
from marin.site.datashop.app import build_app
from marin.site.datashop.shop import Shop, open_shop
from marin.web.listen import bind, make_server, port_of

_BYTES = 50_000_000
_WANTED = "asyncio"
_REQUESTS = 50


@contextlib.contextmanager
def serving(prefix: pathlib.Path) -> Iterator[tuple[Shop, int]]:
    """A page over the prefix, and its port."""
    listener = bind(0)
    port = port_of(listener)
    shop = open_shop(str(prefix), [], port)
    server = make_server(build_app(shop, port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield shop, port
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def ask(shop: Shop, port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    own = {"Cookie": f"marin_datashop_{port}={shop.access.key}", "X-Token": shop.access.token}
    connection.request(method, path, body, own | headers)
    with contextlib.closing(connection):
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def post(shop: Shop, port: int, path: str, **fields: Any) -> str:
    form = urlencode({"token": shop.access.token} | fields, doseq=True).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    status, headers, body = ask(shop, port, "POST", path, form, **kind)
    assert status == 303, (status, body)
    return str(headers["location"])


def upload(shop: Shop, port: int, name: str, content: bytes) -> str:
    status, _, body = ask(shop, port, "POST", f"/uploads?{urlencode({'name': name})}", content)
    assert status == 200, body
    return str(json.loads(body)["id"])


def rows(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def measure(folder: pathlib.Path) -> None:
    chance = random.Random(1)
    words = [f"{chance.getrandbits(24):x}" for _ in range(5000)]
    texts, size = [], 0
    while size < _BYTES:
        texts.append(" ".join(chance.choices(words, k=300)))
        size += len(texts[-1])
    content = rows(texts)
    with serving(folder) as (shop, port):
        start = time.perf_counter()
        pool = upload(shop, port, "pool.jsonl", content)
        whole = time.perf_counter() - start
        (folder / "raw").write_bytes(content)
        (folder / "made").mkdir()
        start = time.perf_counter()
        taking.take(folder / "raw", "pool.jsonl", folder / "made")
        alone = time.perf_counter() - start
        megabytes = len(content) / 1e6
        print_figure(
            "upload", megabytes / whole, "MB/s", 1, megabytes=megabytes, reading_alone=round(megabytes / alone, 3)
        )
        run = post(shop, port, "/runs")
        post(shop, port, run, action="save", name="a", pool=[pool])
        times = []
        for _ in range(_REQUESTS):
            start = time.perf_counter()
            assert ask(shop, port, "GET", run)[0] == 200
            times.append(time.perf_counter() - start)
        print_figure("form_page", 1e3 * statistics.median(times), "ms", _REQUESTS)


def docstrings() -> dict[bool, list[str]]:
    """Docstrings of the standard library of more than a line: those of the wanted package, and all others."""
    found: dict[bool, list[str]] = {True: [], False: []}
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if parts[0] in ("site-packages", "test", "idlelib", "lib2to3") or "tests" in parts or "test" in parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) > 120:
                    found[parts[0] == _WANTED].append(text)
    return found


def screenshot(folder: pathlib.Path, target: pathlib.Path) -> None:
    import shutil

    from playwright.sync_api import sync_playwright

    found = docstrings()
    examples, planted = found[True][::2], found[True][1::2]
    with serving(folder) as (shop, port):
        pool = upload(shop, port, "stdlib.jsonl", rows(found[False] + planted))
        wanted = upload(shop, port, "asyncio.jsonl", rows(examples))
        run = post(shop, port, "/runs")
        fields = {"name": "async-docs", "pool": [pool], "positives": [wanted], "way": "examples", "keep_percent": "5"}
        post(shop, port, run, action="review", vocab_size="2048", deduplicate="exact", **fields)
        start = time.perf_counter()
        post(shop, port, run, action="start")
        while b"Download dataset" not in (page := ask(shop, port, "GET", run)[2]):
            if b">Resume<" in page:
                sys.exit("the run failed:\n" + (shop.runs.folder / run[6:] / "output.txt").read_text()[-3000:])
            time.sleep(1)
        documents = len(found[False]) + len(planted)
        print_figure("whole_run", time.perf_counter() - start, "s", 1, documents=documents, examples=len(examples))
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            shown = browser.new_page(viewport={"width": 1180, "height": 1000}, color_scheme="light")
            shown.goto(f"http://127.0.0.1:{port}/?key={shop.access.key}")
            shown.goto(f"http://127.0.0.1:{port}{run}")
            shown.wait_for_load_state("networkidle")
            target.parent.mkdir(parents=True, exist_ok=True)
            shown.screenshot(path=str(target))
            browser.close()
    print(f"wrote {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--screenshot", type=pathlib.Path, metavar="PATH")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.screenshot:
            screenshot(pathlib.Path(folder), args.screenshot)
        else:
            measure(pathlib.Path(folder))


if __name__ == "__main__":
    main()
