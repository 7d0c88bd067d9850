"""Several base runs as a table, and which of them each budget of FLOPs is best spent on."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marin.errors import DataError
from marin.execution.status import read_info
from marin.gpt2.places import Places
from marin.gpt2.pretraining import read_figures
from marin.storage import files
from marin.tracking import RunRecord

COLUMNS = (
    *("tag", "depth", "width", "parameters", "steps", "tokens", "target_flops", "total_flops", "val_bpb", "core_metric", "partial_core_metric"),
    *("total_training_time", "mfu", "device", "chips"),
)  # fmt: skip


def series_rows(places: Places, tags: Iterable[str]) -> list[dict[str, Any]]:
    """A row for each finished run, in order.

    Raises:
        DataError: a run is absent or has not ended.
    """
    rows = []
    for tag in tags:
        run = places.find_run("base", tag)
        figures = read_figures(run)
        if not figures:
            raise DataError(f"{run} has not ended: run its command again to continue it")
        model = RunRecord.open(run).info["config"]["model"]
        found = figures | {"tag": tag, "depth": model["num_layers"], "width": model["hidden_dim"]}
        found["target_flops"] = _target_flops(run)
        rows.append({name: found.get(name) for name in COLUMNS})
    return rows


def write_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Writes the rows with a header; what was not measured is empty."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    files.write_bytes(str(path), text.getvalue().encode())


def best_by_budget(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The row of least bits per byte of each budget, by rising budget.

    A budget is what `--target-flops` asked for: a whole number of steps may be far from it where they are few. Of other runs it
    is the FLOPs that they took. Budgets that agree to a tenth are one.
    """

    def budget(row: dict[str, Any]) -> float:
        return float(row["target_flops"] or row["total_flops"])

    groups: list[list[dict[str, Any]]] = []
    for row in sorted((row for row in rows if row["val_bpb"] is not None), key=budget):
        if groups and budget(row) <= 1.1 * budget(groups[-1][0]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [min(group, key=lambda row: float(row["val_bpb"])) for group in groups]


def _target_flops(run: Path) -> float | None:
    """The budget that a run's horizon was taken from, if it was."""
    info = read_info(str(run)) or {}
    flags = info.get("config", {}).get("flags", {})
    asked = flags.get("target_flops", -1)
    return asked if asked > 0 and flags.get("num_iterations", -1) <= 0 else None
