"""A built site behind a server as a host would be, and its pages in a browser, with all that went wrong on them."""

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from local_server import answering

from marin.site.leaderboard.serve import make_app


@contextlib.contextmanager
def serving(site: pathlib.Path) -> Iterator[str]:
    with answering(lambda port: make_app(site, port)) as port:
        yield f"http://127.0.0.1:{port}/"


@contextlib.contextmanager
def opened(
    browser: Any, base: str, width: int = 1440, scheme: str = "light", **options: Any
) -> Iterator[tuple[Any, list[str]]]:
    # Without reduced motion the page glides to what has the focus, and a place that was asked for is elsewhere a moment later.
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",
        base_url=base,
        **options,
    )
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith(base) else problems.append(request.url))
    try:
        yield page, problems
    finally:
        context.close()


def snapshot(site: pathlib.Path) -> dict[str, bytes]:
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def words_of(path: pathlib.Path) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", path.read_text().replace("<wbr>", "")).split())
