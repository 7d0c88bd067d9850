"""Rows of text and JSON files, one at a time.

    text    the whole file is one row with the field `text`; a byte order mark at its start is no part of it
    jsonl   one JSON object a line; blank lines are no rows
    json    JSON lines again, or one array of objects, or one object that is the whole file

Each row has its number, so that a message can name the place: the line in JSON lines, the position in an array. A row
that cannot be read is a `BadRow`, for the caller to refuse or to count. What makes the rest of a file unreadable (a
damaged or cut archive, an array that is no JSON) is a `DataError`. Memory is bounded by the longest row.
"""

import codecs
import dataclasses
import itertools
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any, BinaryIO, Literal, get_args

from marin.data.compression import decompressed
from marin.data.inputs import InputFile, format_of, opened_unchanged
from marin.errors import ConfigError, DataError

OnBadRow = Literal["refuse", "skip"]
"""Whether the first row that cannot be read ends the work, or such rows are dropped and counted."""
_MARK = codecs.BOM_UTF8
_SHOWN = 80
_LONGEST_TOKEN = 16  # characters of JSON that mean nothing until all are there, but for strings
# `json.dumps` with these settings makes an encoder for each row.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclasses.dataclass(frozen=True)
class Row:
    """One row: its number in the file from 1, and its fields."""

    number: int
    fields: Mapping[str, Any]

    def instead_of(self, expected: str, name: str, chosen_by: str = "") -> str:
        """What is in the field `name`, which the setting `chosen_by` chose, and should hold what is expected; for a message."""
        if name not in self.fields:
            another = f"; `{chosen_by}` names another" if chosen_by else ""
            return f"there is no field `{name}` (fields: {', '.join(map(str, self.fields)) or 'none'}{another})"
        value = self.fields[name]
        found = "null" if value is None else "an empty list" if value == [] else type(value).__name__
        return f"field `{name}` holds {found}, expected {expected}"


@dataclasses.dataclass(frozen=True)
class BadRow:
    """A row that cannot be read: which rule it breaks (one of few, as reports count by it), and how."""

    number: int
    reason: str
    detail: str

    def refused(self, path: str) -> DataError:
        """The error of whoever was told to refuse such rows."""
        return DataError(
            f'{path}:{self.number}: {self.reason}: {self.detail}; mend the row, or set on_bad_row="skip" to drop such rows and'
            " count them"
        )


def check_on_bad_row(value: str) -> None:
    """Raises:
    ConfigError: it is no `OnBadRow`.
    """
    if value not in get_args(OnBadRow):
        raise ConfigError(f'config field `on_bad_row` is {value!r}: use "refuse" or "skip"')


def text_rows(file: InputFile, stream: BinaryIO) -> Iterator[Row | BadRow]:
    """The one row of a text file; none if the file is empty."""
    content = b"".join(decompressed(stream, file.compression, lambda: file.path)).removeprefix(_MARK)
    if content:
        try:
            yield Row(1, {"text": content.decode()})
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            yield BadRow(line, "not_utf8", _not_utf8(error, content))


def json_line_rows(file: InputFile, stream: BinaryIO) -> Iterator[Row | BadRow]:
    """The rows of a file of JSON lines."""
    for number, line in _lines(_blocks(file, stream)):
        if not line.isspace():
            yield _json_row(number, line)


def rows_of_json_lines(path: str) -> Generator[Row | BadRow, None, None]:
    """The rows of the JSON lines at `path`, packed as its name says.

    Raises:
        DataError: the file cannot be opened or read, or was changed meanwhile.
    """
    with opened_unchanged(path) as stream:
        yield from json_line_rows(InputFile(path, path, "jsonl", format_of(path)[1]), stream)


def json_line(fields: Mapping[str, Any]) -> bytes:
    """A row as a line of a file of JSON lines.

    Raises:
        UnicodeEncodeError: a text holds a lone surrogate.
    """
    return _encode(fields).encode() + b"\n"


def json_rows(file: InputFile, stream: BinaryIO) -> Iterator[Row | BadRow]:
    """The rows of a `.json` file of any of the three kinds.

    Raises:
        DataError: an array, or an object over several lines, is no JSON: where its next row starts cannot be known.
    """
    blocks = _blocks(file, stream)
    start = b""
    while not start.removeprefix(_MARK).strip() and (block := next(blocks, None)) is not None:
        start += block
    blocks = itertools.chain([start.removeprefix(_MARK)], blocks)
    if start.removeprefix(_MARK).lstrip().startswith(b"["):
        yield from _array_rows(file, blocks)
        return
    not_blank = ((number, line) for number, line in _lines(blocks) if not line.isspace())
    first = next(not_blank, None)
    if first is None:
        return
    lines = itertools.chain([first], not_blank)
    if isinstance(row := _json_row(*first), Row) or row.reason != "not_json":
        yield from (_json_row(number, line) for number, line in lines)
    else:
        whole = _json_row(1, b"".join(line for _, line in lines))
        if isinstance(whole, BadRow) and whole.reason == "not_json":
            raise DataError(
                f"{file.path}: the file is neither JSON lines (line {first[0]}: {row.detail}) nor one JSON value "
                f"({whole.detail}): mend it, or leave it out of `paths`"
            )
        yield whole


def _blocks(file: InputFile, stream: BinaryIO) -> Iterator[bytes]:
    """The unpacked content, as it comes; a message about damage says near which line."""
    number = 1
    blocks = decompressed(stream, file.compression, lambda: f"{file.path}:{number}")
    for block in blocks:
        yield block
        number += block.count(b"\n")


def _lines(blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each line, a byte order mark left out; the last may have no end."""
    number = 1
    rest: list[bytes] = []
    for block in blocks:
        *complete, last = block.split(b"\n")
        for line in complete:
            rest.append(line)
            whole = b"".join(rest) + b"\n"
            rest.clear()
            yield number, whole.removeprefix(_MARK) if number == 1 else whole
            number += 1
        rest.append(last)
    if whole := b"".join(rest):
        yield number, whole.removeprefix(_MARK) if number == 1 else whole


def _json_row(number: int, line: bytes) -> Row | BadRow:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return BadRow(number, "not_utf8", _not_utf8(error, line))
    except (ValueError, RecursionError) as error:
        return BadRow(number, "not_json", f"{error}, in {_shortened(line.decode().strip())}")
    return _object_row(number, value)


def _object_row(number: int, value: Any) -> Row | BadRow:
    if not isinstance(value, dict):
        return BadRow(number, "not_an_object", f"found a {type(value).__name__}, {_shortened(repr(value))}")
    return Row(number, value)


def _array_rows(file: InputFile, blocks: Iterator[bytes]) -> Iterator[Row | BadRow]:
    """The elements of an array, whose text is read only as far as the next element reaches."""
    text = _ArrayText(file.path, blocks)
    text.take("[")
    if text.peek() == "]":
        text.take("]")
    else:
        for number in itertools.count(1):
            yield _object_row(number, text.value())
            if text.peek() != ",":
                break
            text.take(",")
        text.take("]")
    if text.peek():
        raise text.error("there is more behind the array's end")


class _ArrayText:
    """JSON text that grows block by block while it is parsed."""

    def __init__(self, path: str, blocks: Iterator[bytes]):
        self._path, self._blocks = path, blocks
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._parser = json.JSONDecoder()
        self._text, self._position = "", 0
        self._line = 1  # in which the text begins

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            rest = self._text[self._position : self._position + 1]
            if rest and not rest.isspace():
                return rest
            if rest:
                self._position += 1
            elif not self._grow(1):
                return ""

    def take(self, expected: str) -> None:
        if self.peek() != expected:
            raise self.error(f"expected {expected!r}, found {_shortened(self._text[self._position :]) or 'the end'}")
        self._position += 1

    def value(self) -> Any:
        """The next value; the text doubles until it is complete, so long values cost no more than a few parses."""
        self.peek()
        while True:
            try:
                value, end = self._parser.raw_decode(self._text, self._position)
            except (ValueError, RecursionError) as error:
                if self._is_wrong_whatever_follows(error) or not self._grow(len(self._text)):
                    raise self.error(str(error)) from None
                continue
            if end == len(self._text) and self._grow(1):
                continue  # a number may go on
            self._position = end
            return value

    def _is_wrong_whatever_follows(self, error: Exception) -> bool:
        """Whether a value is no JSON at a place from which all is there, so that no more need be read."""
        if not isinstance(error, json.JSONDecodeError) or error.msg.startswith("Unterminated string"):
            return False
        return error.pos < len(self._text) - _LONGEST_TOKEN

    def error(self, problem: str) -> DataError:
        is_end = self._position >= len(self._text)
        before = self._text.rstrip() if is_end else self._text[: self._position]
        return self._error_in_line(self._line + before.count("\n"), problem)

    def _error_in_line(self, line: int, problem: str) -> DataError:
        return DataError(
            f"{self._path}:{line}: the JSON array cannot be read ({problem}): mend the file, or leave it out of "
            "`paths`; in JSON lines a bad row could be skipped"
        )

    def _grow(self, at_least: int) -> bool:
        """Drops what was parsed and reads on; False at the end of the file."""
        pieces: list[str] = []
        size = 0
        while size < max(at_least, 1 << 16) and (block := next(self._blocks, None)) is not None:
            try:
                pieces.append(self._decoder.decode(block))
            except UnicodeDecodeError as error:
                before = sum(text.count("\n") for text in (self._text, *pieces))
                line = self._line + before + error.object[: error.start].count(b"\n")
                raise self._error_in_line(line, _not_utf8(error, error.object)) from None
            size += len(block)
        if size:
            self._line += self._text.count("\n", 0, self._position)
            self._text, self._position = "".join([self._text[self._position :], *pieces]), 0
        return size > 0


def _not_utf8(error: UnicodeDecodeError, content: bytes) -> str:
    around = content[max(0, error.start - 20) : error.start + 20]
    return f"byte {error.start + 1} is not UTF-8 ({error.reason}), in {around!r}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
