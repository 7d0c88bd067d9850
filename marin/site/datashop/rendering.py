"""From values to answers: this page's own templates and files beside those of the data browser."""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from starlette.responses import HTMLResponse

from marin.site.browser import rendering as browser

_HERE = pathlib.Path(__file__).parent


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from a template of this package; the data browser's templates give the parts that both share."""
    return browser.page_of(browser.environment_of(_HERE / "templates", browser.TEMPLATES), template, status, values)


@functools.cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Styles, scripts and icon: name -> (content, media type)."""
    return {**browser.static_files(), **browser.files_of(_HERE / "static")}
