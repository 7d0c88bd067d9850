"""Local copies of the public data sets, row by row, and fetching them.

    TASK_DATA/{repository}/{subset}/{split}/*.parquet      as on the Hugging Face hub, or .jsonl (also .gz, .zst, .bz2 and .xz), at any depth below

Rows are checked field by field; one that is not as the data set's card says ends the reading with its file and number.
"""

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marin.data.compression import BlockStream, decompressed
from marin.data.inputs import format_of
from marin.errors import DataError


@dataclasses.dataclass(frozen=True)
class Source:
    """One split of a data set on the hub."""

    repository: str
    subset: str
    split: str

    def folder(self, task_data: Path) -> Path:
        return task_data / self.repository / self.subset / self.split

    def is_there(self, task_data: Path) -> bool:
        """Whether there are files of it; those of a download that has not ended are none."""
        from marin.data.hub import missing_files

        folder = self.folder(task_data)
        return bool(data_files(folder)) and not missing_files(str(folder))


ARC_EASY = Source("allenai/ai2_arc", "ARC-Easy", "test")
ARC_CHALLENGE = Source("allenai/ai2_arc", "ARC-Challenge", "test")
MMLU_TEST = Source("cais/mmlu", "all", "test")
MMLU_TRAIN = Source("cais/mmlu", "auxiliary_train", "train")
GSM8K_TEST = Source("openai/gsm8k", "main", "test")
GSM8K_TRAIN = Source("openai/gsm8k", "main", "train")
HUMAN_EVAL = Source("openai/openai_humaneval", "openai_humaneval", "test")
SMOLTALK_TRAIN = Source("HuggingFaceTB/smol-smoltalk", "default", "train")
SMOLTALK_TEST = Source("HuggingFaceTB/smol-smoltalk", "default", "test")


@dataclasses.dataclass(frozen=True)
class PlacedRow:
    """A row, and for messages where it stands and what to do about it where it is not as expected."""

    fields: dict[str, Any]
    where: str
    advice: str = "is this the data set that the folder's name says?"

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise self.error(f"field `{name}` is {value!r:.60}, expected text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"field `{name}` is {value!r:.60}, expected a list of texts")
        return value

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.where}: {problem}: {self.advice}")


def data_files(place: Path) -> list[Path]:
    """The data files of a folder in the order of their paths, or the file itself."""
    if place.is_file():
        return [place]
    return sorted(path for path in place.rglob("*") if _is_data(path.name) and not path.name.startswith("."))


def read_rows(place: Path, expected: str = "", advice: str = PlacedRow.advice) -> Iterator[PlacedRow]:
    """The rows of a folder's Parquet and JSON-lines files, or of one such file.

    Args:
        advice: what to do about a row that its reader refuses.
    Raises:
        DataError: there is none, none has a row, or one cannot be read; `expected` is added to say how to get it.
    """
    found = data_files(place)
    if not found:
        raise DataError(f"{place} holds no .parquet or .jsonl files{': ' + expected if expected else ''}")
    empty = True
    for path in found:
        for number, fields in _parquet(path) if format_of(path.name) == ("parquet", "") else _json_lines(path):
            empty = False
            yield PlacedRow(fields, f"{path}:{number}", advice)
    if empty:
        found_none = "has no rows" if place.is_file() else "has files but no rows in them"
        raise DataError(f"{place} {found_none}{': ' + expected if expected else ''}")


def read_source(source: Source, task_data: Path) -> Iterator[PlacedRow]:
    """The rows of a split.

    Raises:
        DataError: it is not there, or not all of it; the message says where it is to be had.
    """
    from marin.data.hub import missing_files

    if missing := missing_files(str(source.folder(task_data))):
        raise DataError(
            f"{source.folder(task_data)} lacks {len(missing)} files of a download that was interrupted, such as {missing[0]}:"
            " run the command that fetches them again (`--download` does)"
        )
    return read_rows(
        source.folder(task_data),
        f"fetch the split `{source.split}` of `{source.subset}` from https://huggingface.co/datasets/{source.repository}"
        " (`--download` does) and put its Parquet files there",
    )


def download(source: Source, task_data: Path) -> None:
    """Fetches the Parquet files of a split from the hub, unless all are there; an interrupted download continues.

    Raises:
        DataError: it cannot be fetched.
    """
    from marin.data.hub import download_repo_files

    if not source.is_there(task_data):
        download_repo_files(
            source.repository,
            str(source.folder(task_data)),
            repo_type="dataset",
            revision="refs/convert/parquet",
            patterns=[f"{source.subset}/{source.split}/*.parquet"],
        )


def _is_data(name: str) -> bool:
    kind, packing = format_of(name)
    return kind in ("jsonl", "json") or (kind == "parquet" and not packing)


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            batches = table.iter_batches(512, use_threads=False)
            yield from enumerate((fields for batch in batches for fields in batch.to_pylist()), start=1)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no readable Parquet file ({str(error).splitlines()[0]}): fetch it again") from None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as stream:
        blocks = decompressed(stream, format_of(path.name)[1], lambda: str(path))
        for number, line in enumerate(io.BufferedReader(BlockStream(blocks)), start=1):
            if line.isspace():
                continue
            try:
                fields = json.loads(line.rstrip())
            except json.JSONDecodeError as error:  # its own text counts lines too, of which this is always the first
                problem = f"{error.msg} at character {error.pos + 1:,}"
                raise DataError(f"{path}:{number} is no JSON ({problem}): mend the line") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}:{number} is no JSON ({error}): mend the line") from None
            if not isinstance(fields, dict):
                raise DataError(f"{path}:{number} is a {type(fields).__name__}, expected an object: mend the line")
            yield number, fields
