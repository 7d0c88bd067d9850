"""From values to answers: the template engine with our filters, and HTML that is valid whatever characters it holds."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from marin.site import pages, wording
from marin.site.browser import shown

_HERE = pathlib.Path(__file__).parent
TEMPLATES = _HERE / "templates"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_LARGEST = 10**15


@functools.cache
def environment_of(*folders: pathlib.Path) -> jinja2.Environment:
    """The template engine for templates of these folders, with the filters and functions of the data browser."""
    names = ("name", "path", "line", "content", "size", "clock", "ago", "number")
    filters = {f"show_{name}": getattr(shown, name) for name in names}
    environment = pages.environment(folders, filters | {"duration": wording.duration, "score": wording.score})
    environment.globals["with_query"] = with_query
    return environment


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template of this package."""
    return page_of(environment_of(TEMPLATES), template, status, values)


def page_of(environment: jinja2.Environment, template: str, status: int, values: Mapping[str, Any]) -> HTMLResponse:
    """A page from a template of `environment`."""
    html = environment.get_template(template).render(values)
    # Half of a surrogate pair, which JSON and file names can hold, has no UTF-8; as a reference it shows as U+FFFD.
    return HTMLResponse(html.encode("utf-8", "xmlcharrefreplace"), status)


def page_within(wanted: int, count: int, size: int) -> tuple[int, int]:
    """The page that is wanted, or the nearest that there is, and how many there are; `size` things of `count` are on each."""
    pages = max(1, -(-count // size))
    return min(max(wanted, 1), pages), pages


def file_answer(files: Mapping[str, tuple[bytes, str]], name: str) -> Response:
    """One of our own files, of which `files` says content and media type.

    Raises:
        HTTPException: 404, if there is none of this name.
    """
    if name not in files:
        raise HTTPException(404, "There is no such file.")
    content, media_type = files[name]
    return Response(content, media_type=media_type)


def error_answers(
    page: Callable[..., Response],
    titles: Mapping[int, str],
    of_ours: str,
    *,
    beside: Callable[[Request], Mapping[str, Any]] = lambda request: {},
) -> dict[Any, Any]:
    """How an app answers errors, for Starlette's `exception_handlers`.

    Args:
        page: makes an answer of an HTTP status, a `title` and a `detail`.
        titles: by status.
        of_ours: the detail of an error that we did not foresee.
        beside: what else a page says of an error that we did foresee; called in a thread, as it may read files.
    """

    async def explain(request: Request, error: HTTPException) -> Response:
        title = titles.get(error.status_code, "This did not work")
        more = await run_in_threadpool(beside, request)
        return page(error.status_code, title=title, detail=str(error.detail), **more)

    async def apologize(request: Request, error: Exception) -> Response:
        return page(500, title="Something broke", detail=of_ours)

    return {HTTPException: explain, Exception: apologize}


def with_query(address: str, **values: Any) -> str:
    """`address` with those of `values` as its query that say anything."""
    query = urlencode({key: value for key, value in values.items() if value not in (None, "", False)}, errors="replace")
    return f"{address}?{query}" if query else address


def text_of(request: Request, name: str, limit: int = 500) -> str:
    """A text of the query, without white space around it."""
    return request.query_params.get(name, "")[:limit].strip()


def number_of(request: Request, name: str, otherwise: int) -> int:
    """A natural number of the query; `otherwise` for anything else."""
    text = request.query_params.get(name, "")
    return min(int(text), _LARGEST) if text.isascii() and text.isdigit() and len(text) < 20 else otherwise


@functools.cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Styles, script and icon: name -> (content, media type)."""
    return files_of(_HERE / "static") | {"base.css": (pages.static_text("base.css").encode(), _TYPES[".css"])}


def files_of(folder: pathlib.Path) -> dict[str, tuple[bytes, str]]:
    """The styles, scripts and icons in a folder: name -> (content, media type)."""
    return {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in folder.iterdir()}
