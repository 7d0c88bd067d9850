"""From values to answers: the template engine with our filters, and HTML that is valid whatever characters it holds."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from marin.site import pages, wording
from marin.site.browser import shown

_HERE = pathlib.Path(__file__).parent
_LARGEST = 10**15


@functools.cache
def _environment() -> jinja2.Environment:
    names = ("name", "path", "line", "content", "size", "clock", "ago", "number")
    filters = {f"show_{name}": getattr(shown, name) for name in names}
    environment = pages.environment(_HERE / "templates", filters | {"duration": wording.duration})
    environment.globals["with_query"] = with_query
    return environment


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template of this package."""
    html = _environment().get_template(template).render(**values)
    # Half of a surrogate pair, which JSON and file names can hold, has no UTF-8; as a reference it shows as U+FFFD.
    return HTMLResponse(html.encode("utf-8", "xmlcharrefreplace"), status)


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
    types = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
    own = {path.name: (path.read_bytes(), types[path.suffix]) for path in (_HERE / "static").iterdir()}
    return own | {"base.css": (pages.static_text("base.css").encode(), types[".css"])}
