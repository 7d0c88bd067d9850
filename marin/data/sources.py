"""Documents from files: one step that reads a file, a folder or a pattern in any known format into a document set.

    .txt .md           the whole file is one document
    .jsonl .json       one document an object (`marin.data.formats`)
    .parquet .arrow    one document a row (`marin.data.columns`)
    .html .warc        the main content of each page (`marin.data.pages`)

each plain, `.gz`, `.zst`, `.bz2` or `.xz`, on a local disk or any store that fsspec knows (`marin.data.inputs`).

The rule for what a document is made of:

- text: the field `text_key`, as it is. Nothing is normalized but the byte order mark.
- id: the field `id_key` if one is named; else the row's field `id`, if it has one that is a string or a whole number;
  else `{file}:{row}`, and for a file that is one document `{file}`. Files are named as `marin.data.inputs` says. Whether
  the ids that rows bring are unique is not checked.
- source: the row's field `source`, if it is a string with something in it; else `source_name`; else the last part of
  the step's name.

Order is that of the paths, of the files below each, and of the rows. A row that cannot be read is refused with its file
and line, or with `on_bad_row="skip"` dropped and counted in the report by reason. A row that can be read and has no
text (an empty string, a page without content, an image in a WARC file) is always dropped and counted. An archive that
is cut short or damaged, a column that is not there, and a file that changes while it is read are refused either way: what
is lost there has no number. `sources.json` beside the set says what each file gave.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import BinaryIO, ClassVar

from marin.data.columns import column_rows
from marin.data.documents import is_unicode, text_bytes
from marin.data.formats import BadRow, OnBadRow, Row, check_on_bad_row, json_line_rows, json_rows, text_rows
from marin.data.inputs import InputFile, Inputs, find_inputs, opened_stamped, say_left_out
from marin.data.pages import Skipped, html_rows, warc_rows
from marin.data.reading import Reading
from marin.data.shards import (
    REPORT,
    SHARD_BYTES,
    Document,
    DocumentSet,
    Dropped,
    finished_shards,
    is_document_set,
    write_shards,
)
from marin.errors import ConfigError, DataError
from marin.execution.step import ExecutorStep, Input, this_output_path
from marin.storage import files

_READERS = {
    "text": text_rows,
    "jsonl": json_line_rows,
    "json": json_rows,
    "html": html_rows,
    "warc": warc_rows,
}
_WHOLE_FILE = ("text", "html")
_MAKES_TEXT = ("text", "html", "warc")  # formats whose text is not a field that the file names


@dataclasses.dataclass(frozen=True)
class ImportConfig:
    """Args:
    paths: files, folders and patterns, local or URLs; see `marin.data.inputs`.
    source_name: the source of rows that name none.
    text_key: the field or column with the text; text files and web pages have none to choose.
    id_key: the field or column with the id; None is the rule in the module's docstring.
    on_bad_row: "refuse" ends the import at the first row that cannot be read, "skip" drops and counts it.
    shard_bytes: a shard ends with the document that brings its text to this size; later stages work on shards in parallel.
    """

    marin_resumable: ClassVar[bool] = True

    paths: Sequence[Input]
    source_name: str
    text_key: str = "text"
    id_key: str | None = None
    on_bad_row: OnBadRow = "refuse"
    shard_bytes: int = SHARD_BYTES
    output_path: str = this_output_path()

    def __post_init__(self) -> None:
        check_on_bad_row(self.on_bad_row)
        if self.shard_bytes < 1:
            raise ConfigError(f"config field `shard_bytes` is {self.shard_bytes}: use at least 1, such as 32_000_000")
        if isinstance(self.paths, str):
            raise ConfigError(
                f"config field `paths` is the string {self.paths!r}: give a list of paths, [{self.paths!r}]"
            )


def import_step(
    name: str,
    paths: Input | Sequence[Input],
    *,
    text_key: str = "text",
    id_key: str | None = None,
    source_name: str | None = None,
    on_bad_row: OnBadRow = "refuse",
    shard_bytes: int = SHARD_BYTES,
) -> ExecutorStep:
    """The step `documents/{name}`, whose output is a document set.

    A path that no step makes is part of the identity by its name only: after its content has changed, give the step
    another name or remove its output.
    """
    single = isinstance(paths, Input)
    return ExecutorStep(
        name=f"documents/{name}",
        fn=import_documents,
        config=ImportConfig(
            paths=[paths] if single else list(paths),  # type: ignore[list-item,arg-type]
            source_name=source_name or name.rsplit("/", 1)[-1],
            text_key=text_key,
            id_key=id_key,
            on_bad_row=on_bad_row,
            shard_bytes=shard_bytes,
        ),
        description=f"documents read from files as the source {source_name or name.rsplit('/', 1)[-1]}",
    )


def import_documents(config: ImportConfig) -> DocumentSet:
    """Reads all files in order into the document set at `output_path`; goes on in the file in which a killed run was.

    Raises:
        DataError: a path names nothing, a file is damaged, empty or changes, a row is refused, or no document remains.
    """
    inputs = find_inputs([str(path) for path in config.paths])
    say_left_out(inputs, "import")
    settings = {
        "source_name": config.source_name,
        "text_key": config.text_key,
        "id_key": config.id_key,
        "on_bad_row": config.on_bad_row,
    }
    reading = Reading(config.output_path, config.shard_bytes)
    shards = finished_shards(config.output_path, stage="import", settings=settings)
    finished, num_known = reading.go_on(inputs.files, shards)
    outputs = itertools.islice(_all_outputs(inputs, config, reading), num_known, None)
    result = write_shards(
        config.output_path,
        _with_table(outputs, inputs, reading, files.join(config.output_path, "sources.json")),
        stage="import",
        settings=settings,
        shard_bytes=config.shard_bytes,
        finished=finished,
        on_shard=reading.shard_done,
    )
    reading.set_done()
    if result.num_documents == 0:
        report = files.join(config.output_path, REPORT)
        reasons = ", ".join(
            f"{reason} ({row['documents']:,})" for reason, row in files.read_json(report)["dropped"].items()
        )
        raise DataError(
            f"no document remains of {len(inputs.files)} files, all rows were dropped: {reasons}; check `text_key` "
            f"({config.text_key!r}) and `id_key` ({config.id_key!r})"
        )
    return result


def imported_documents(config: ImportConfig) -> Iterator[Document]:
    """The documents that `import_documents` would keep, in order and not written anywhere; prints how many it dropped."""
    num_dropped = 0
    reading = Reading("", config.shard_bytes)  # where nothing is written
    inputs = find_inputs([str(path) for path in config.paths])
    say_left_out(inputs, "import")
    for output in _all_outputs(inputs, config, reading):
        if isinstance(output, Document):
            yield output
        else:
            num_dropped += 1
    if num_dropped:
        print(f"import: {num_dropped:,} rows without a text are left out", flush=True)


def documents_of(config: ImportConfig) -> Iterator[Document]:
    """The documents of a finished set where the only path is that of one, else `imported_documents`."""
    path = str(config.paths[0])
    if len(config.paths) == 1 and is_document_set(path):
        return DocumentSet.open(path).documents()
    return imported_documents(config)


def _with_table(
    outputs: Iterator[Document | Dropped], inputs: Inputs, reading: Reading, path: str
) -> Iterator[Document | Dropped]:
    """The outputs; after the last one a table of what each file gave is written to `path`."""
    yield from outputs
    # Before the set is finished, so whoever finds a finished set finds this too.
    left_out = [*inputs.unknown, *(file.name for file in inputs.again)]
    files.write_json(path, {"files": reading.table(), "left_out": left_out})


def _all_outputs(inputs: Inputs, config: ImportConfig, reading: Reading) -> Iterator[Document | Dropped]:
    """What the files give that `reading` has not seen end."""
    for file in inputs.files[reading.num_ended :]:
        dropped: collections.Counter[str] = collections.Counter()
        num_documents = num_bytes = 0
        for output in _file_outputs(file, config, reading):
            if isinstance(output, Document):
                num_documents += 1
                num_bytes += text_bytes(output.text)
            else:
                dropped[output.reason] += 1
            yield output
        reading.file_ended(num_documents, num_bytes, dropped)


def _file_outputs(file: InputFile, config: ImportConfig, reading: Reading) -> Iterator[Document | Dropped]:
    is_empty = True
    with opened_stamped(file.path) as (stream, stamp):
        reading.file_opened(file, stamp)
        for row in _rows(file, stream, config):
            is_empty = False
            output = _document(file, row, config)
            if isinstance(output, BadRow):
                if config.on_bad_row == "refuse":
                    raise output.refused(file.path)
                output = Dropped(_default_id(file, output.number), output.reason, output.detail)
            yield output
    if is_empty:
        if config.on_bad_row == "refuse":
            raise DataError(
                f"{file.path} is empty, expected at least one {file.format} row: fetch it again, leave it out of `paths`, "
                'or set on_bad_row="skip" to count such files'
            )
        yield Dropped(file.name, "empty_file", "the file has no rows")


def _rows(file: InputFile, stream: BinaryIO, config: ImportConfig) -> Iterator[Row | BadRow | Skipped]:
    if file.format in ("parquet", "arrow"):
        needed = [config.text_key, *([config.id_key] if config.id_key else [])]
        return column_rows(file, stream, needed=needed, optional=["id", "source"])
    return _READERS[file.format](file, stream)


def _document(file: InputFile, row: Row | BadRow | Skipped, config: ImportConfig) -> Document | Dropped | BadRow:
    """What the rule in the module's docstring makes of a row."""
    if isinstance(row, BadRow):
        return row
    if isinstance(row, Skipped):
        return Dropped(_default_id(file, row.number), row.reason, row.detail)
    text_key = "text" if file.format in _MAKES_TEXT else config.text_key
    text = row.fields.get(text_key)
    if not isinstance(text, str):
        return BadRow(row.number, "text_is_no_string", row.instead_of("a string", text_key, "text_key"))
    document_id = _id(file, row, config)
    if document_id is None:
        assert config.id_key is not None
        return BadRow(row.number, "no_id", row.instead_of("a string", config.id_key, "id_key"))
    if not text:
        return Dropped(document_id, "empty_text")
    source = row.fields.get("source")
    source = source if isinstance(source, str) and source else config.source_name
    for name, value in ((text_key, text), ("id", document_id), ("source", source)):
        if not is_unicode(value):
            return BadRow(
                row.number, "lone_surrogate", f"field `{name}` holds one (\\ud800 to \\udfff), which is no text"
            )
    return Document(document_id, text, source)


def _id(file: InputFile, row: Row, config: ImportConfig) -> str | None:
    """The row's id; None if it should have one in the field `id_key` and has not."""
    value = row.fields.get(config.id_key or "id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and value:
        return value
    return None if config.id_key and file.format not in _WHOLE_FILE else _default_id(file, row.number)


def _default_id(file: InputFile, number: int) -> str:
    return file.name if file.format in _WHOLE_FILE else f"{file.name}:{number}"
