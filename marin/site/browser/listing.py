"""Directories, one page at a time.

Names are read with one scan, which says what is a directory without looking at each entry; only the entries on the page
are looked at one by one. Folders come first, and with them links, which in a prefix are the outputs of running steps;
numbers in names count as numbers, so that shard-2 stands before shard-10.
"""

import dataclasses
import os
import re
import stat

from starlette.exceptions import HTTPException

from marin.execution.status import ATTEMPTS_NAME
from marin.site.browser import kinds, roots
from marin.site.browser.rendering import page_within
from marin.site.browser.roots import Place

PAGE = 100


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line. `url` is None for what cannot be opened, and `note` says why."""

    name: str
    url: str | None
    kind: str
    size: int | None
    modified: float | None
    is_dir: bool
    note: str = ""
    place: Place | None = None


@dataclasses.dataclass(frozen=True)
class Listing:
    """A page of a directory: `matching` of `total` entries have the words of the query, `hidden` are left out."""

    entries: tuple[Entry, ...]
    total: int
    matching: int
    hidden: int
    page: int
    pages: int


def list_directory(place: Place, query: str = "", page: int = 1, show_all: bool = False) -> Listing:
    """The entries whose names hold every word of `query`, whatever the case; `.attempts` only with `show_all`."""
    words = query.casefold().split()
    folders: list[str] = []
    others: list[str] = []
    total = hidden = 0
    with roots.open_dir(place) as descriptor:
        with os.scandir(descriptor) as scan:
            for entry in scan:
                if entry.name == ATTEMPTS_NAME and not show_all:
                    hidden += 1
                    continue
                total += 1
                if words and not _has_all(entry.name, words):
                    continue
                is_folder = entry.is_symlink() or entry.is_dir(follow_symlinks=False)
                (folders if is_folder else others).append(entry.name)
        names = sorted(folders, key=_natural) + sorted(others, key=_natural)
        page, pages = page_within(page, len(names), PAGE)
        entries = [_entry(place, descriptor, name) for name in names[(page - 1) * PAGE : page * PAGE]]
    return Listing(tuple(entries), total, len(names), hidden, page, pages)


def _has_all(name: str, words: list[str]) -> bool:
    folded = name.casefold()
    return all(word in folded for word in words)


def _natural(name: str) -> list[tuple[int, str]]:
    # Each run of digits without its zeros by its length, then its digits: the order of the numbers, however long.
    parts = [part.lstrip("0") if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", name))]
    order = [(len(part) if index % 2 else -1, part.casefold()) for index, part in enumerate(parts)]
    return [*order, (0, name)]


def _entry(parent: Place, descriptor: int, name: str) -> Entry:
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except OSError:
        return Entry(name, None, "gone", None, None, False, "removed while the folder was read")
    if not roots.is_addressable(name):
        return Entry(
            name, None, "file", found.st_size, found.st_mtime, False, "a name with a backslash is not opened here"
        )
    try:
        place = roots.resolve(parent.root, (*parent.parts, name))
        if stat.S_ISLNK(found.st_mode):
            found = place.status
    except HTTPException as refused:
        kind = "link" if stat.S_ISLNK(found.st_mode) else "file"
        return Entry(name, None, kind, None, found.st_mtime, False, str(refused.detail))
    if stat.S_ISDIR(found.st_mode):
        return Entry(name, place.url(), "folder", None, found.st_mtime, True, place=place)
    if not stat.S_ISREG(found.st_mode):
        return Entry(name, None, "special", None, found.st_mtime, False, "a pipe, socket or device is not opened")
    return Entry(name, place.url(), kinds.kind_of(name).words, found.st_size, found.st_mtime, False, place=place)


def breadcrumbs(place: Place) -> list[tuple[str, str]]:
    """(name, address) of the root and of every folder down to `place`."""
    steps = [place.parts[:depth] for depth in range(len(place.parts) + 1)]
    return [(parts[-1] if parts else place.root.label, roots.url_of(place.root, parts)) for parts in steps]
