"""The public site's `runs.json`: a list of rows, which say less than results files do."""

import os
import pathlib
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, ValidationError

from marin.errors import ResultsError
from marin.speedrun import results, strict_json
from marin.speedrun.results import Author, Number, RunInfo
from marin.speedrun.rows import Row, Unreadable, rows_of


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


def read_rows_file(path: str | os.PathLike[str]) -> Iterator[Row | Unreadable]:
    """Rows of the public site's `runs.json`.

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
    for number, value in enumerate(values, start=1):
        try:
            row = PublicRow.model_validate(value)
            yield from rows_of(row.run_info(), row.run_name, source, listed=True)
        except ValidationError as error:
            yield Unreadable(f"{source}, row {number}", results.explain(error))
