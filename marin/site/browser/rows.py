"""JSON lines, plain or packed (`marin.data.compression`), streamed: no file is ever held as a whole.

A page is named by the number of its first row. In a plain file the places of rows that were passed once are remembered,
so a later page costs one seek; in a packed file the rows before the page are unpacked again. Every request has a limit
on bytes and seconds, so that neither a huge file nor a packed bomb keeps the server busy; what was found so far is shown
with a link to go on. Only the first MB of a row is kept.
"""

import bisect
import collections
import dataclasses
import io
import json
import math
import os
import threading
import time
from collections.abc import Generator
from typing import Any

from marin.data.compression import BlockStream, unpacked
from marin.site.browser import json_view
from marin.site.browser.kinds import packing_of
from marin.site.browser.text import SEARCH_BYTES, SEARCH_SECONDS

PAGE = 50
_ROW_BYTES = 1_000_000
_PAGE_BYTES = 4_000_000
_SKIP_SECONDS = 20.0
_MARK_EVERY = 1000
_MARKED_FILES = 32


@dataclasses.dataclass(frozen=True)
class Row:
    """Line `number`, from 1; `value` is its JSON, or `problem` says why there is none, and `flaw` the same in a word or two."""

    number: int
    text: str
    value: Any
    problem: str
    length: int
    flaw: str = ""


@dataclasses.dataclass(frozen=True)
class RowPage:
    """`following` is the row to go on at, None at the end, where `total` counts the file's rows; `problem` is why the file could
    not be read further."""

    rows: tuple[Row, ...]
    first: int
    following: int | None
    total: int | None
    problem: str = ""


_marks: "collections.OrderedDict[tuple[int, ...], list[int]]" = collections.OrderedDict()
_lock = threading.Lock()


def read_rows(file: io.FileIO, name: str, first: int = 1, query: str = "") -> RowPage:
    """The rows from number `first` on that hold `query`, whatever the case."""
    rows: list[Row] = []
    number, kept, problem = first - 1, 0, ""
    limit = _Limit()
    lines = _lines(file, name, first, limit)
    try:
        for number, line, length in lines:
            if query and not _holds(line, query):
                if limit.is_used_up(length):
                    return RowPage(tuple(rows), first, number + 1, None)
                continue
            if len(rows) == PAGE or kept > _PAGE_BYTES:
                return RowPage(tuple(rows), first, number, None)
            rows.append(_parse(number, line, length))
            kept += len(line)
    except _UNREADABLE as error:
        problem = _problem(error, limit)
    finally:
        lines.close()
    return RowPage(tuple(rows), first, None, None if problem else limit.rows_passed, problem)


def read_rows_before(file: io.FileIO, name: str, stop: int) -> RowPage:
    """The rows that end before number `stop`, as many as a page has, so that who pages back misses none of any length."""
    rows: collections.deque[Row] = collections.deque()
    kept, following, problem = 0, None, ""
    limit = _Limit()
    lines = _lines(file, name, max(1, stop - PAGE), limit)
    try:
        for number, line, length in lines:
            if number >= stop:
                following = stop
                break
            rows.append(_parse(number, line, length))
            kept += len(line)
            while kept > _PAGE_BYTES and len(rows) > 1:
                kept -= min(rows.popleft().length, _ROW_BYTES)
    except _UNREADABLE as error:
        problem = _problem(error, limit)
    finally:
        lines.close()
    first = rows[0].number if rows else max(1, stop - PAGE)
    return RowPage(tuple(rows), first, following, None if following or problem else limit.rows_passed, problem)


class _TooFar(Exception):
    """The rows before the page take longer than a request may."""


_UNREADABLE = (_TooFar, OSError, EOFError, ValueError)


def _problem(error: Exception, limit: "_Limit") -> str:
    if isinstance(error, _TooFar):
        return str(error)
    return f"The file is damaged or cut off after row {limit.rows_passed}: {str(error) or type(error).__name__}."


class _Limit:
    def __init__(self) -> None:
        self.rows_passed = 0  # also those before the page
        self._bytes = 0
        self._deadline = math.inf

    def begin(self) -> None:
        """The page's first row is reached: what was passed before has a limit of its own, or a late search would never go on."""
        if self._deadline == math.inf:
            self._deadline = time.monotonic() + SEARCH_SECONDS

    def is_used_up(self, length: int) -> bool:
        self._bytes += length
        return self._bytes > SEARCH_BYTES or time.monotonic() > self._deadline


def _lines(file: io.FileIO, name: str, first: int, limit: _Limit) -> Generator[tuple[int, bytes, int], None, None]:
    """(number, the first MB, whole length) of each line from `first` on."""
    packed = packing_of(name)
    found = os.fstat(file.fileno())
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    number, offset = 0, 0
    if not packed:
        number, offset = _nearest_mark(key, first)
        file.seek(offset)
    with _unpacked(file, packed) as stream:
        deadline = time.monotonic() + _SKIP_SECONDS
        while line := stream.readline(_ROW_BYTES):
            length, ending = len(line), line.endswith(b"\n")
            if number + 1 >= first:
                limit.begin()
            while not ending and (more := stream.readline(_ROW_BYTES)):
                length, ending = length + len(more), more.endswith(b"\n")
                if packed and number + 1 >= first and limit.is_used_up(len(more)):
                    raise _TooFar(f"Row {number + 1} is longer than {length:,} bytes, so it is not read to its end.")
            if not packed and number % _MARK_EVERY == 0:
                _mark(key, number // _MARK_EVERY, offset)
            number, offset = number + 1, offset + length
            limit.rows_passed = number
            if number >= first:
                yield number, line.rstrip(b"\r\n"), length
            elif number % 256 == 0 and time.monotonic() > deadline:
                raise _TooFar(
                    f"Row {first} lies too far into the file: {number} rows were passed in {_SKIP_SECONDS:.0f} s. Unpack the "
                    f"file to look at rows so far back."
                )


def _unpacked(file: io.FileIO, packing: str) -> io.BufferedReader:
    if not packing:
        return io.BufferedReader(file, 1 << 16)
    # The libraries' own readers take a zstd frame that is cut off for one that has ended, and give nothing of the 64 kB of a
    # gzip file before its damage. At most 64 MB come out of one piece, however it was packed.
    blocks = unpacked(file, packing, piece=2048, max_window=1 << 27)
    return io.BufferedReader(BlockStream(blocks), 1 << 16)


def _holds(line: bytes, query: str) -> bool:
    wanted = query.casefold()
    text = line.decode(errors="replace")
    if wanted in text.casefold():
        return True
    if "\\" not in text:  # nothing is written as an escape, so the line is what a person sees
        return False
    try:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False)
        return any(wanted in part.casefold() for part in (written, *json_view.texts(value)))
    except (ValueError, RecursionError):
        return False


def _parse(number: int, line: bytes, length: int) -> Row:
    text = line.decode(errors="replace")
    if number == 1:
        text = text.removeprefix("\ufeff")  # a byte order mark is no part of the row
    if length > len(line) + 2:
        return Row(
            number, text, None, f"The row has {length:,} bytes: only its first {len(line):,} are shown.", length, "cut"
        )
    if not text.strip():
        return Row(number, text, None, "The row is empty.", length, "empty")
    try:
        return Row(number, text, json.loads(text), "", length)
    except RecursionError:
        return Row(number, text, None, "The row is nested too deeply to be shown as a tree.", length, "too deep")
    except ValueError as error:
        return Row(number, text, None, f"The row is not JSON: {error}.", length, "not JSON")


def _nearest_mark(key: tuple[int, ...], first: int) -> tuple[int, int]:
    with _lock:
        offsets = _marks.get(key)
        if not offsets:
            return 0, 0
        index = min((first - 1) // _MARK_EVERY, len(offsets) - 1)
        return index * _MARK_EVERY, offsets[index]


def _mark(key: tuple[int, ...], index: int, offset: int) -> None:
    with _lock:
        offsets = _marks.setdefault(key, [])
        _marks.move_to_end(key)
        if index == len(offsets):
            bisect.insort(offsets, offset)
        while len(_marks) > _MARKED_FILES:
            _marks.popitem(last=False)
