"""JSON as a tree that folds, in parts: what does not fit on a page is a link to a page of its own.

A part is named by a JSON pointer (RFC 6901). The tree is built as escaped markup here, not by a template, because it nests
as deeply as the file does.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import markupsafe

from marin.site.browser import shown
from marin.site.browser.rendering import page_within

PAGE = 200
MATCHES = 100
MAX_BYTES = 32_000_000
_CHILDREN = 100
_NODES = 3000
_DEPTH = 24
_OPEN_DEPTH = 2
_TEXT = 4000

Link = Callable[[str], str]
"""The address of the page that shows the part with this pointer."""


class _Tree:
    def __init__(self, link: Link | None) -> None:
        self._link = link
        self._left = _NODES

    def node(self, key: str | int | None, value: Any, pointer: str, depth: int) -> markupsafe.Markup:
        self._left -= 1
        label = _label(key)
        if not isinstance(value, dict | list):
            return markupsafe.Markup("<li>{}{}</li>").format(label, leaf(value))
        summary = _summary(value)
        if not value:
            return markupsafe.Markup('<li>{}<span class="punctuation">{}</span></li>').format(label, summary)
        if depth >= _DEPTH or self._left <= 0:
            return markupsafe.Markup("<li>{}{}</li>").format(label, self._further(pointer, summary))
        is_open = depth < _OPEN_DEPTH and len(value) <= 40
        return markupsafe.Markup(
            '<li><details{}><summary>{}<span class="punctuation">{}</span></summary>{}</details></li>'
        ).format(markupsafe.Markup(" open") if is_open else "", label, summary, self.children(value, pointer, depth))

    def children(
        self, value: Any, pointer: str, depth: int, first: int = 0, count: int = _CHILDREN
    ) -> markupsafe.Markup:
        parts = []
        for index, (key, child) in enumerate(_items(value)):
            if index < first:
                continue
            if index >= first + count:
                break
            if self._left <= 0 and depth >= 0:  # the page's own children have no other place
                count = index - first
                break
            parts.append(self.node(key, child, f"{pointer}/{escape_pointer(str(key))}", depth + 1))
        left = len(value) - first - count
        if left > 0 and depth >= 0:
            parts.append(markupsafe.Markup("<li>{}</li>").format(self._further(pointer, f"{left:,} more")))
        return markupsafe.Markup("<ul>{}</ul>").format(markupsafe.Markup("").join(parts))

    def _further(self, pointer: str, text: str) -> markupsafe.Markup:
        if self._link is None:
            return markupsafe.Markup('<span class="punctuation">… {}</span>').format(text)
        return markupsafe.Markup('<a href="{}">… {}</a>').format(self._link(pointer), text)


def tree(value: Any, link: Link | None = None, pointer: str = "", page: int = 1) -> tuple[markupsafe.Markup, int]:
    """`value` as markup, and the number of pages that its own children take."""
    builder = _Tree(link)
    if not isinstance(value, dict | list) or not value:
        text = leaf(value) if not isinstance(value, dict | list) else _summary(value)
        return markupsafe.Markup('<div class="tree">{}</div>').format(text), 1
    page, pages = page_within(page, len(value), PAGE)
    inner = builder.children(value, pointer, -1, (page - 1) * PAGE, PAGE)
    return markupsafe.Markup('<div class="tree">{}</div>').format(inner), pages


def leaf(value: Any) -> markupsafe.Markup:
    """A value without parts, coloured by its type."""
    if isinstance(value, str):
        text = shown.content(value[: _TEXT + 1])
        cut = f"… ({len(value):,} characters)" if len(value) > _TEXT else ""
        if "\n" in text:
            markup = '<span class="text block">{}</span><span class="punctuation">{}</span>'
            return markupsafe.Markup(markup).format(text[:_TEXT] if cut else text, cut)
        quoted = text.replace('"', '\\"')
        return markupsafe.Markup('<span class="text">"{}"</span><span class="punctuation">{}</span>').format(
            quoted, cut
        )
    if value is None or isinstance(value, bool):
        return markupsafe.Markup('<span class="word">{}</span>').format(json.dumps(value))
    if isinstance(value, int | float):
        try:
            text = repr(value)
        except ValueError:  # Python refuses to write integers of thousands of digits
            text = f"an integer of {value.bit_length():,} bits" if isinstance(value, int) else "?"
        return markupsafe.Markup('<span class="number">{}</span>').format(text)
    return markupsafe.Markup('<span class="text">{}</span>').format(shown.content(str(value)[:_TEXT]))


def preview(value: Any, limit: int = 160) -> str:
    """`value` on one line, cut at `limit` characters."""
    if isinstance(value, dict):
        parts, length = [], 0
        for key, item in value.items():
            parts.append(f"{shown.name(str(key), 40)}: {preview(item, 80)}")
            length += len(parts[-1])
            if length > limit:
                break
        text = ", ".join(parts)
    elif isinstance(value, list):
        inner = ", ".join(preview(item, 24) for item in value[:12])
        text = f"[{inner}{', …' if len(value) > 12 else ''}]"
    elif isinstance(value, str):
        text = shown.line(value, limit)
    else:
        text = str(leaf(value).striptags())
    return text if len(text) <= limit else text[:limit] + "…"


def find(value: Any, pointer: str) -> Any:
    """The part of `value` that a JSON pointer names.

    Raises:
        KeyError: there is no such part.
    """
    for token in pointer.split("/")[1:] if pointer else []:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 12 and int(key) < len(value):
            value = value[int(key)]
        else:
            raise KeyError(key)
    return value


def escape_pointer(key: str) -> str:
    """One token of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclasses.dataclass(frozen=True)
class Match:
    """A leaf whose key or value has the query; `parent` is the pointer of what holds it."""

    path: str
    parent: str
    value: markupsafe.Markup


def search(value: Any, query: str, page: int = 1) -> tuple[list[Match], int]:
    """A page of the leaves whose path or value holds `query`, whatever the case, and the number of all of them."""
    wanted, count = query.casefold(), 0
    found = []
    for pointer, item in _leaves(value):
        if wanted in pointer.casefold() or wanted in (item if isinstance(item, str) else _plain(item)).casefold():
            count += 1
            if (page - 1) * MATCHES < count <= page * MATCHES:
                found.append(Match(shown.name(pointer.lstrip("/")), pointer.rpartition("/")[0], leaf(item)))
    return found, count


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    waiting = [("", value)]
    while waiting:
        pointer, item = waiting.pop()
        if isinstance(item, dict | list) and item:
            children = [(f"{pointer}/{escape_pointer(str(key))}", child) for key, child in _items(item)]
            waiting.extend(reversed(children))
        else:
            yield pointer, item


def texts(value: Any) -> Iterator[str]:
    """Every key and every text in `value`, as a person reads it."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _plain(value: Any) -> str:
    try:
        return json.dumps(value)
    except ValueError:
        return ""


def _items(value: Any) -> Iterator[tuple[str | int, Any]]:
    return iter(value.items()) if isinstance(value, dict) else iter(enumerate(value))


def _label(key: str | int | None) -> markupsafe.Markup:
    if key is None:
        return markupsafe.Markup("")
    kind = "index" if isinstance(key, int) else "key"
    return markupsafe.Markup('<span class="{}">{}</span><span class="punctuation">: </span>').format(
        kind, shown.name(str(key))
    )


def _summary(value: Any) -> str:
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    what = ("key" if isinstance(value, dict) else "item") + ("s" if len(value) != 1 else "")
    return f"{opening} {len(value):,} {what} {closing}" if value else opening + closing
