"""Rows of Parquet and Arrow files, read a few at a time.

Only the columns that are asked for are read. Arrow files may be of both kinds, the one with an index (`ARROW1`) and the
stream that the `datasets` library writes. Both formats are read from their end, so a compressed or remote file is
first copied to a temporary one.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from marin.data.compression import decompressed
from marin.data.formats import BadRow, Row
from marin.data.inputs import InputFile
from marin.errors import DataError, first_line
from marin.storage import files

_ROWS_AT_ONCE = 512
_ARROW_MAGIC = b"ARROW1"


def column_rows(
    file: InputFile,
    stream: BinaryIO,
    *,
    needed: Sequence[str] = (),
    optional: Sequence[str] = (),
    nested: Sequence[str] = (),
) -> Iterator[Row | BadRow]:
    """The rows with the columns `needed` and `nested`, and those of `optional` that are there.

    Args:
        nested: may hold anything, such as lists of objects.
    Raises:
        DataError: a needed or nested column is absent, a needed one holds something else than strings or whole numbers,
            or the file is damaged.
    """
    import pyarrow as pa

    number = 0
    with _seekable(file, stream) as source:
        try:
            schema, batches = _open(file, source)
            columns = _choose(file, schema, needed, optional, nested)
            for batch in batches(columns):
                chosen = batch.select(columns)
                _validate(chosen)
                for row in _batch_rows(chosen, number + 1):
                    number += 1
                    yield row
        except (pa.ArrowException, OSError, EOFError) as error:
            raise DataError(
                f"{file.path}: behind row {number} it is no readable {file.format} file ({first_line(error)}): fetch it again"
            ) from None


def _open(file: InputFile, source: BinaryIO) -> tuple[Any, Any]:
    """The schema, and what gives the batches of some of its columns."""
    import pyarrow as pa

    if file.format == "parquet":
        import pyarrow.parquet as pq

        table = pq.ParquetFile(source, pre_buffer=False)
        return table.schema_arrow, lambda columns: table.iter_batches(
            _ROWS_AT_ONCE, columns=list(columns), use_threads=False
        )
    magic = source.read(len(_ARROW_MAGIC))
    source.seek(0)
    if magic == _ARROW_MAGIC:
        indexed = pa.ipc.open_file(source)
        return indexed.schema, lambda columns: map(indexed.get_batch, range(indexed.num_record_batches))
    return (streamed := pa.ipc.open_stream(source)).schema, lambda columns: streamed


def _choose(
    file: InputFile, schema: Any, needed: Sequence[str], optional: Sequence[str], nested: Sequence[str]
) -> list[str]:
    absent = [name for name in (*needed, *nested) if name not in schema.names]
    if absent:
        raise DataError(f"{file.path} has no column `{absent[0]}`: name one of {', '.join(schema.names)} in its place")
    repeated = [name for name in (*needed, *nested) if schema.names.count(name) > 1]
    if repeated:
        raise DataError(f"{file.path} has several columns `{repeated[0]}`: rename all but one, or name another column")
    for name in needed:
        if not _is_readable(schema.field(name).type):
            raise DataError(
                f"{file.path}: column `{name}` holds {schema.field(name).type}, expected strings: name another column"
            )
    extra = [name for name in optional if schema.names.count(name) == 1 and _is_readable(schema.field(name).type)]
    return list(dict.fromkeys([*needed, *nested, *extra]))


def _is_readable(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_integer(kind)
    )


def _validate(batch: Any) -> None:
    """Refuses lengths and offsets that lead out of the data, which the library trusts. Bad UTF-8 is found row by row."""
    import pyarrow as pa

    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise


def _batch_rows(batch: Any, first: int) -> Iterator[Row | BadRow]:
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:  # the library checks no strings when it reads them
        if batch.num_rows > 1:
            for index in range(batch.num_rows):
                yield from _batch_rows(batch.slice(index, 1), first + index)
        else:
            yield BadRow(first, "not_utf8", "a column holds bytes that are not UTF-8")
        return
    yield from (Row(number, row) for number, row in enumerate(rows, start=first))


@contextlib.contextmanager
def _seekable(file: InputFile, stream: BinaryIO) -> Iterator[BinaryIO]:
    if files.is_local(file.path) and not file.compression:
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        if file.compression:
            for block in decompressed(stream, file.compression, lambda: file.path):
                copy.write(block)
        else:
            shutil.copyfileobj(stream, copy, 1 << 20)
        copy.seek(0)
        yield copy
