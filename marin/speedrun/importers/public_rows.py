"""The public site's `runs.json`: a list of rows, which say less than results files do."""

import marshal
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from marin.errors import ResultsError
from marin.speedrun import results, strict_json
from marin.speedrun.board.row_store import RowStore
from marin.speedrun.board.rows import Row, Unreadable, rows_of
from marin.speedrun.results import Author, Number, RunInfo

_ROWS_A_BLOCK = 128  # on average
_MARSHAL = 2  # the last version whose bytes follow from the value alone; ten times as fast as JSON


class PublicRow(BaseModel):
    """One row of the public site's `runs.json`."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())

    run_name: str
    author: Author
    description: str = ""
    model_size: int | None = None
    training_hardware_flops: Number | None = None
    training_time: Number | None = None
    model_flops: Number | None = None
    eval_paloma_c4_en_bpb: Number | None = None
    wandb_link: str | None = None
    run_completion_timestamp: str | None = None

    def run_info(self) -> RunInfo:
        return RunInfo(
            schema_version=None,
            author=self.author,
            description=self.description,
            model_size=self.model_size,
            training_hardware_flops=self.training_hardware_flops,
            training_time=self.training_time,
            model_flops=self.model_flops,
            c4_en_bpb=self.eval_paloma_c4_en_bpb,
            wandb_run_link=self.wandb_link,
            run_completion_timestamp=self.run_completion_timestamp,
        )


def read_rows_file(path: str | os.PathLike[str], store: RowStore | None = None) -> Iterator[Row | Unreadable]:
    """Rows of the public site's `runs.json`.

    Args:
        store: where rows that were read before are kept, by the blocks of the list that they stand in.
    Raises:
        ResultsError: if there is no such file.
    """
    source = pathlib.PurePath(path).name
    if not os.path.exists(path):
        raise ResultsError(f"{os.fspath(path)}: no such file: give the path of a runs.json, or leave --rows out")
    try:
        values = strict_json.read_json(path)
    except ResultsError as error:
        yield Unreadable(source, str(error).removeprefix(f"{os.fspath(path)}: "))
        return
    if not isinstance(values, list):
        yield Unreadable(source, "expected a list of rows, as the public site's runs.json is")
        return
    for start, block in _blocks(values) if store is not None else [(1, values)]:

        def read(block: list[Any] = block, start: int = start) -> list[Row | Unreadable]:
            return list(_read_rows(block, start, source))

        if store is None:
            yield from read()
        else:
            evidence = f"rows of {source}\0".encode("utf-8", "surrogatepass") + marshal.dumps(block, _MARSHAL)
            yield from store.rows_of(evidence, read)


def _blocks(values: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    """The rows in blocks, with the number of the first: a name ends a block, so that a row more or less changes one of them."""
    start = 0
    for number, value in enumerate(values, start=1):
        name = str(value.get("run_name")) if isinstance(value, dict) else ""
        if zlib.crc32(name.encode("utf-8", "surrogatepass")) % _ROWS_A_BLOCK == 0 or number == len(values):
            yield start + 1, values[start:number]
            start = number


def _read_rows(values: Sequence[Any], start: int, source: str) -> Iterator[Row | Unreadable]:
    for number, value in enumerate(values, start=start):
        try:
            row = PublicRow.model_validate(value)
            yield from rows_of(row.run_info(), row.run_name, source, listed=True)
        except ValidationError as error:
            yield Unreadable(f"{source}, row {number}", results.explain(error))
