"""Pages about folders and files, and files as downloads."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from marin.errors import DataError
from marin.site.browser import json_view, kinds, listing, rendering, roots, rows, shown, tables, text, tokens
from marin.site.browser.records import EXPERIMENTS
from marin.site.browser.rendering import number_of, text_of, with_query
from marin.site.browser.roots import Place
from marin.site.browser.site import Site
from marin.web.guard import FILE_POLICY

_BLOCK = 1 << 18
_SNIFFED = 8192
_FIRST_LINE = 1_000_000
_MOST_READERS = 20


def show(site: Site, request: Request) -> Response:
    """The page of the folder or file that the path names."""
    place = site.place(request)
    return _show_folder(site, place, request) if place.is_dir else _show_file(site, place, request)


def download(site: Site, request: Request) -> Response:
    """The bytes of a file. A browser saves them: it is told never to show them, but for an image within our page."""
    place = site.place(request)
    if place.is_dir:
        raise HTTPException(400, "This is a folder: only files can be downloaded.")
    kind = kinds.kind_of(place.name)
    file = roots.open_file(place)
    length = place.status.st_size
    ascii_name = shown.name(place.name).encode("ascii", "replace").decode().replace("?", "_")
    ascii_name = "".join("_" if character in '"\\/%' else character for character in ascii_name)
    encoded = roots.url_of(place.root, place.parts[-1:] or (place.root.label,)).rpartition("/")[2]
    headers = {
        "content-disposition": f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{encoded}",
        "content-security-policy": FILE_POLICY,
        "content-length": str(length),
    }
    if request.method == "HEAD":
        file.close()
        return Response(headers=headers, media_type=kind.media_type)
    return StreamingResponse(_blocks(file, length), headers=headers, media_type=kind.media_type)


def _blocks(file: io.FileIO, length: int) -> Iterator[bytes]:
    """Exactly the bytes that were announced, though the file may grow meanwhile."""
    with file:
        while length > 0 and (block := file.read(min(_BLOCK, length))):
            length -= len(block)
            yield block


def _show_folder(site: Site, place: Place, request: Request) -> Response:
    cache = tokens.cache_at(place)
    if cache is not None and text_of(request, "view") == "tokens":
        return _show_tokens(site, place, cache, request)
    query, everything = text_of(request, "q"), bool(text_of(request, "all"))
    found = listing.list_directory(place, query, number_of(request, "page", 1), everything)
    records = site.records(place)
    states = {}
    for entry in found.entries:
        if entry.is_dir and entry.place is not None:
            state = records.state(entry.place.parts)
            if state.word != "not run":
                states[entry.name] = state
    return rendering.page(
        "folder.html.j2",
        **_frame(site, place),
        listing=found,
        states=states,
        q=query,
        everything=everything,
        page_link=lambda number: with_query(place.url(), q=query, page=number, all="1" if everything else ""),
        tokens_link=with_query(place.url(), view="tokens") if cache else None,
    )


def _show_file(site: Site, place: Place, request: Request) -> Response:
    kind = kinds.kind_of(place.name)
    if kind is kinds.BINARY:
        start = roots.read_start(place, _SNIFFED)
        if start is not None and kinds.looks_like_text(start):
            kind = kinds.TEXT
    viewer = "text" if kind.viewer in ("json", "rows") and text_of(request, "view") == "text" else kind.viewer
    views: dict[str, Callable[[Place, Request], tuple[str, dict[str, Any]]]] = {
        "json": _json_view,
        "rows": _rows_view,
        "table": _table_view,
        "text": _text_view,
    }
    file = place.status
    template, values = views[viewer](place, request) if viewer in views else ("file.html.j2", {"problem": ""})
    if viewer == "none":
        roots.open_file(place).close()  # refuses what is no regular file
    return rendering.page(
        template,
        **_frame(site, place),
        **values,
        kind=kind,
        viewer=viewer,
        file_size=file.st_size,
        modified=file.st_mtime,
        raw=place.url("raw"),
        experiment=_experiment_address(site, place),
        is_packed=bool(kinds.packing_of(place.name)),
    )


def _experiment_address(site: Site, place: Place) -> str | None:
    if len(place.parts) != 2 or place.parts[0] != EXPERIMENTS:
        return None
    found = site.records(place).experiment(place.name)
    return roots.url_of(place.root, (place.name,), "experiment") if found else None


def _json_view(place: Place, request: Request) -> tuple[str, dict[str, Any]]:
    if _is_json_lines(place):
        return _rows_view(place, request)
    query, pointer, number = (
        text_of(request, "q"),
        request.query_params.get("at", ""),
        max(1, number_of(request, "page", 1)),
    )
    values: dict[str, Any] = {"q": query, "at": pointer, "number": number, "pages": 1, "problem": "", "matches": None}
    values["page_link"] = lambda wanted: with_query(place.url(), at=pointer, q=query, page=wanted)
    if place.status.st_size > json_view.MAX_BYTES:
        problem = f"The file has {shown.size(place.status.st_size)}; above {shown.size(json_view.MAX_BYTES)} it is not shown as a tree."
        return "json.html.j2", values | {"problem": problem, "tree": ""}
    with roots.open_file(place) as file:
        data = file.read() or b""
    if not data.strip():
        return "json.html.j2", values | {"problem": "The file is empty.", "tree": ""}
    try:
        value = json.loads(data)
        part = json_view.find(value, pointer)
    except RecursionError:
        return "json.html.j2", values | {"problem": "It is nested too deeply to be shown as a tree.", "tree": ""}
    except KeyError:
        raise HTTPException(404, "The file has no such part.") from None
    except ValueError as error:
        return "json.html.j2", values | {"problem": f"It is not valid JSON: {error}.", "tree": ""}
    if query:
        matches, count = json_view.search(part, query, number)
        pages = -(-count // json_view.MATCHES) or 1
        if number > pages:  # the file had more when the address was made
            number = pages
            matches, count = json_view.search(part, query, number)
        shown_matches = [(match, with_query(place.url(), at=pointer + match.parent)) for match in matches]
        found = {"matches": shown_matches, "count": count, "tree": "", "number": number, "pages": pages}
        return "json.html.j2", values | found
    tree, pages = json_view.tree(part, lambda inner: with_query(place.url(), at=inner), pointer, number)
    return "json.html.j2", values | {"tree": tree, "number": min(number, pages), "pages": pages}


def _is_json_lines(place: Place) -> bool:
    """Whether a file that is called JSON holds an object on each line, as those of many data sets do."""
    first, _, rest = (roots.read_start(place, _FIRST_LINE) or b"").partition(b"\n")
    try:
        return bool(rest.strip()) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _rows_view(place: Place, request: Request) -> tuple[str, dict[str, Any]]:
    query, first = text_of(request, "q"), max(1, number_of(request, "row", 1))
    before = number_of(request, "before", 0)
    with roots.open_file(place) as file:
        if before > 1 and not query:
            found = rows.read_rows_before(file, place.name, before)
        else:
            found = rows.read_rows(file, place.name, first, query)
    lines = [
        (
            row,
            json_view.preview(row.value) if not row.problem else shown.line(row.text, 160),
            json_view.tree(row.value)[0],
        )
        for row in found.rows
    ]
    return "rows.html.j2", {"q": query, "found": found, "lines": lines}


def _table_view(place: Place, request: Request) -> tuple[str, dict[str, Any]]:
    query = text_of(request, "q")
    try:
        with roots.open_file(place) as file:
            found = tables.read_table(file, number_of(request, "group", 0), number_of(request, "row", 0), query)
    except DataError as error:
        return "file.html.j2", {"problem": str(error)}
    trees = [json_view.tree(row.value)[0] for row in found.rows]
    values = {"q": query, "found": found, "trees": trees, "columns": found.columns[: tables.COLUMNS]}
    return "table.html.j2", values


def _text_view(place: Place, request: Request) -> tuple[str, dict[str, Any]]:
    query, position = text_of(request, "q"), text_of(request, "at")
    with roots.open_file(place) as file:
        if query:
            matches, following = text.search(file, query, number_of(request, "at", 0))
            return "text.html.j2", {"q": query, "matches": matches, "following": following, "found": None}
        before = number_of(request, "before", 0)
        if position == "end" or before:
            found = text.read_page_before(file, before or None)
        else:
            found = text.read_page(file, number_of(request, "at", 0))
    return "text.html.j2", {"q": query, "matches": None, "following": None, "found": found}


def _show_tokens(site: Site, place: Place, cache: Place, request: Request) -> Response:
    query, first = text_of(request, "q"), number_of(request, "row", 1)
    found = tokens.read_documents(cache, site.tokenizers(cache), first, query)
    maker = site.maker(found.tokenizer) if found.tokenizer else None
    return rendering.page(
        "tokens.html.j2", **_frame(site, place), found=found, q=query, tokenizer_step=maker, page_size=tokens.PAGE
    )


def _frame(site: Site, place: Place) -> dict[str, Any]:
    readers = site.readers(place)
    return {
        "site": site,
        "place": place,
        "crumbs": listing.breadcrumbs(place),
        "maker": site.maker(place),
        "readers": readers[:_MOST_READERS],
        "num_more_readers": max(0, len(readers) - _MOST_READERS),
        "own_address": place.url(),
    }
