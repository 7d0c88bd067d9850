"""Parquet files: a page of one row group, or a search through them, reading batch by batch.

A page has room for the first columns; a row that is opened shows all of them.
"""

import dataclasses
import io
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from marin.errors import DataError, first_line
from marin.site.browser import json_view, shown
from marin.site.browser.text import SEARCH_SECONDS

PAGE = 50
COLUMNS = 12
_BATCH = 64
_CELL = 120


@dataclasses.dataclass(frozen=True)
class Column:
    """A column's name and its Arrow type."""

    name: str
    type: str


@dataclasses.dataclass(frozen=True)
class TableRow:
    """Row `number` of the file, from 1; `cells` are the first columns on one line, `value` is the whole row."""

    number: int
    cells: tuple[str, ...]
    value: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class TablePage:
    """Rows of row group `group`, from 0. `following` is (group, row in it) to go on at; None at the end."""

    columns: tuple[Column, ...]
    num_rows: int
    group_rows: tuple[int, ...]
    group: int
    first: int
    rows: tuple[TableRow, ...]
    following: tuple[int, int] | None
    created_by: str


def read_table(file: io.FileIO, group: int = 0, first: int = 0, query: str = "") -> TablePage:
    """A page of row group `group` from its row `first` on, or the rows from there on that hold `query`.

    Raises:
        DataError: the file is no readable Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file, memory_map=False, pre_buffer=False)
        return _page(table, group, first, query.casefold())
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError, TypeError) as error:
        raise DataError(f"This is not a readable Parquet file: {shown.name(first_line(error), 300)}") from None


def _page(table: Any, group: int, first: int, wanted: str) -> TablePage:
    meta = table.metadata
    sizes = tuple(meta.row_group(number).num_rows for number in range(meta.num_row_groups))
    schema = table.schema_arrow
    columns = tuple(Column(field.name, str(field.type)) for field in schema)
    group = min(max(group, 0), max(0, len(sizes) - 1))
    first = min(max(first, 0), sizes[group] if sizes else 0)
    rows: list[TableRow] = []
    following: tuple[int, int] | None = None
    deadline = math.inf  # begins at the first row that is looked at, or a late search would never go on
    groups = range(group, len(sizes)) if wanted else range(group, min(group + 1, len(sizes)))
    for number, index, value in _rows_from(table, groups, first):
        if len(rows) == PAGE or time.monotonic() > deadline:
            following = number, index
            break
        if wanted:
            deadline = min(deadline, time.monotonic() + SEARCH_SECONDS)
        if not wanted or any(wanted in text.casefold() for text in _texts(value)):
            rows.append(TableRow(sum(sizes[:number]) + index + 1, _cells(value), plain(value)))
    if following is None and not wanted:  # a page of rows ends with its group
        following = next(((later, 0) for later in range(group + 1, len(sizes)) if sizes[later]), None)
    return TablePage(
        columns, meta.num_rows, sizes, group, first, tuple(rows), following, shown.name(meta.created_by or "", 80)
    )


def _rows_from(table: Any, groups: Iterable[int], first: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(row group, row in it, its values) of the rows of these groups, in the first of them from row `first` on."""
    for number in groups:
        position = 0
        for batch in table.iter_batches(batch_size=_BATCH, row_groups=[number]):
            if position + batch.num_rows > first:
                skip = max(0, first - position)
                for index, value in enumerate(_values(batch.slice(skip)), start=position + skip):
                    yield number, index, value
            position += batch.num_rows
        first = 0


def _values(batch: Any) -> list[dict[str, Any]]:
    """The rows as Python values, by the columns' names; of columns with one name the later ones are numbered."""
    names: dict[str, None] = {}
    for name in batch.schema.names:
        unique, number = name, 2
        while unique in names:
            unique, number = f"{name} ({number})", number + 1
        names[unique] = None
    columns = [_column_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column_values(column: Any) -> list[Any]:
    """Times that Python cannot hold, such as nanoseconds and the year 40000, are given as text."""
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):
        values = column.cast(_with_times_as_text(column.type)).to_pylist()
    return list(values)


def _with_times_as_text(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_times_as_text(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_times_as_text(kind.value_type))
    return kind


def plain(value: Any) -> Any:
    """`value` as JSON types: bytes become their size and beginning in hex, dates their text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:32].hex()}{'…' if len(value) > 32 else ''}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(json_view.preview(plain(value), _CELL) for value in list(row.values())[:COLUMNS])


def _texts(value: Any) -> list[str]:
    """Every text and number in a row."""
    texts, waiting = [], [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif item is not None and not isinstance(item, bytes):
            texts.append(item if isinstance(item, str) else str(item))
    return texts
