"""What every page is made with: the template engine, the style that stands inside a page, and its security policy.

A page that opens from disk carries its style and allows it by its hash; every other one, and everything remote, is
forbidden. Values reach a page through the template engine's escaping only.
"""

import base64
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2

from marin.site import wording

_HERE = pathlib.Path(__file__).parent
TEMPLATES = _HERE / "templates"


def environment(
    templates: pathlib.Path | Sequence[pathlib.Path], filters: Mapping[str, Callable[..., Any]]
) -> jinja2.Environment:
    """A template engine that escapes, and in which a name that is not defined is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(filters)
    return made


@functools.cache
def static_text(name: str) -> str:
    """A style of this package."""
    return (_HERE / "static" / name).read_text(encoding="utf-8")


_FILTERS: Mapping[str, Callable[..., Any]] = {
    "clean": wording.clean,
    "count": wording.count,
    "text_size": wording.text_size,
    "score": wording.score,
    "whole": "{:,}".format,
}


def static_page(template: str, *, style: str, **values: Any) -> str:
    """A report that opens from disk; its template extends `report.html.j2`.

    Args:
        style: name of the file that follows those that all reports have.
    """
    style_text = "".join(static_text(name) for name in ("base.css", "sheet.css", style))
    policy = f"default-src 'none'; style-src '{_hash(style_text)}'; img-src 'self' file:; base-uri 'none'; form-action 'none'"
    template_file = environment(TEMPLATES, _FILTERS).get_template(template)
    return template_file.render(style=style_text, policy=policy, **values)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
