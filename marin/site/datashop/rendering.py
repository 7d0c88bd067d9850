"""From values to answers: the template engine with our filters, and the page's own files beside those of the data browser."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jinja2
from starlette.responses import HTMLResponse

from marin.site import pages, wording
from marin.site.browser import rendering as browser
from marin.site.browser import shown

_HERE = pathlib.Path(__file__).parent
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


@functools.cache
def _environment() -> jinja2.Environment:
    names = ("name", "path", "line", "content", "size", "clock", "ago", "number")
    filters = {f"show_{name}": getattr(shown, name) for name in names} | {"duration": wording.duration}
    # The data browser's templates give the parts that both share.
    folders = [_HERE / "templates", pathlib.Path(browser.__file__).parent / "templates"]
    environment = pages.environment(folders, filters)
    environment.globals["with_query"] = browser.with_query
    return environment


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template of this package."""
    html = _environment().get_template(template).render(**values)
    return HTMLResponse(html.encode("utf-8", "xmlcharrefreplace"), status)


@functools.cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Styles, scripts and icon: name -> (content, media type)."""
    own = {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in (_HERE / "static").iterdir()}
    return {**browser.static_files(), **own}
