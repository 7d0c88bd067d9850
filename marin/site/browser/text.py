"""Text and logs, paged by bytes: a page begins and ends at a line's end where there is one within reach."""

import dataclasses
import io
import os
import time

PAGE_BYTES = 64 * 1024
MATCHES = 100
_LINE = 2000
# As much as one search of a file reads, and as long as it looks, whatever the file is.
SEARCH_BYTES = 512_000_000
SEARCH_SECONDS = 4.0


@dataclasses.dataclass(frozen=True)
class TextPage:
    """Bytes `start` to `stop` of a file of `size`."""

    text: str
    start: int
    stop: int
    size: int

    @property
    def following(self) -> int | None:
        return self.stop if self.stop < self.size else None


@dataclasses.dataclass(frozen=True)
class Match:
    """A line with the query: the byte at which it starts, or where it is long the one at which the query stands."""

    offset: int
    text: str


def read_page(file: io.FileIO, start: int) -> TextPage:
    """The page that holds byte `start`."""
    size = os.fstat(file.fileno()).st_size
    begin = min(max(start, 0), size)
    if begin:
        begin = _line_start(file, begin)
    file.seek(begin)
    data = file.read(PAGE_BYTES) or b""
    if begin + len(data) < size:
        cut = data.rfind(b"\n") + 1
        data = data[:cut] if cut else _whole_characters(data)
    return TextPage(data.decode(errors="replace"), begin, begin + len(data), size)


def read_page_before(file: io.FileIO, stop: int | None) -> TextPage:
    """The page that ends at byte `stop`, so that who pages back misses no line; the last page for None."""
    size = os.fstat(file.fileno()).st_size
    stop = size if stop is None else min(max(stop, 0), size)
    data = _whole_lines_at_end(file, stop, PAGE_BYTES)
    return TextPage(data.decode(errors="replace"), stop - len(data), stop, size)


def tail(file: io.FileIO, limit: int) -> str:
    """The last lines, at most `limit` bytes of them; of a last line that is longer, its end."""
    return _whole_lines_at_end(file, os.fstat(file.fileno()).st_size, limit).decode(errors="replace")


def search(file: io.FileIO, query: str, start: int = 0) -> tuple[list[Match], int | None]:
    """Lines that hold `query`, whatever the case, from byte `start` on, and where to search on; None at the end.

    It stops at `MATCHES` lines, 4 seconds or 512 MB. A line longer than a block is searched in pieces, so memory stays bounded;
    each piece counts as a line.
    """
    wanted = query.casefold()
    found: list[Match] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    file.seek(start)
    offset, carry = start, b""
    overlap = 4 * len(query)  # the most bytes that the query can have
    while len(found) < MATCHES:
        block = file.read(1 << 20)
        if not block and not carry:
            return found, None
        lines = (carry + (block or b"")).split(b"\n")
        is_piece = bool(block) and len(lines) == 1
        carry = lines.pop() if block and not is_piece else b""
        for line in lines:
            text = line.decode(errors="replace")
            is_found = wanted in text.casefold()
            if is_found:
                found.append(_match(text, wanted, offset))
            if is_piece:  # what begins at its end and goes on in the next piece is looked for there again
                carry = b"" if is_found else line[-overlap:]
                offset += len(line) - len(carry)
            else:
                offset += len(line) + 1
            if len(found) == MATCHES:
                return found, offset
        if not block:
            return found, None
        if time.monotonic() > deadline or offset - start > SEARCH_BYTES:
            return found, offset
    return found, offset


def _match(text: str, wanted: str, offset: int) -> Match:
    if len(text) <= _LINE:
        return Match(offset, text)
    place = max(0, text.casefold().find(wanted) - _LINE // 2)
    cut = ("…" if place else "") + text[place : place + _LINE] + ("…" if place + _LINE < len(text) else "")
    return Match(offset + len(text[:place].encode()), cut)


def _line_start(file: io.FileIO, begin: int) -> int:
    """The start of the line that holds byte `begin`, or `begin` at a character's start if the line is very long."""
    reach = min(begin, PAGE_BYTES // 4)
    file.seek(begin - reach)
    before = file.read(reach) or b""
    cut = before.rfind(b"\n")
    if cut >= 0:
        return begin - reach + cut + 1
    if reach == begin:
        return 0
    file.seek(begin)
    return begin + _continued(file.read(4) or b"")


def _whole_lines_at_end(file: io.FileIO, stop: int, limit: int) -> bytes:
    """The lines that end at byte `stop`, at most `limit` bytes of them; of a last line that is longer, its end."""
    begin = max(0, stop - limit)
    file.seek(begin)
    data = file.read(stop - begin) or b""
    if not begin:
        return data
    return data[data.find(b"\n", 0, len(data) - 1) + 1 or _continued(data) :]


def _continued(data: bytes) -> int:
    """The number of bytes at the start that belong to a character that began before."""
    return next((index for index, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _whole_characters(data: bytes) -> bytes:
    for length in range(len(data), max(0, len(data) - 4), -1):
        if data[length - 1] & 0xC0 != 0x80:  # the last character's first byte
            return data[: length - 1] if data[length - 1] >= 0xC0 else data
    return data
