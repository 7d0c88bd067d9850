"""Kept and dropped documents of a run, side by side: those nearest to the limit, where a filter errs, or drawn at random."""

import dataclasses
import json
import pathlib
from typing import Any

from marin.datashop.selection import NEAR, RANDOM, SAMPLES
from marin.errors import DataError
from marin.site.browser.rendering import page_within

PER_PAGE = 10
DRAWN = {"near": NEAR, "random": RANDOM}


@dataclasses.dataclass(frozen=True)
class Sides:
    """One page of both sides."""

    kept: list[dict[str, Any]]
    dropped: list[dict[str, Any]]
    num_kept: int
    num_dropped: int
    number: int
    pages: int


def read_sides(folder: pathlib.Path, drawn: str, page: int) -> Sides:
    """The samples of a page, counted from 1, or of the nearest that there is.

    Args:
        folder: the output of the selection.
        drawn: a key of `DRAWN`. Those near the limit are in the order of their distance, others in that of their scores.
    Raises:
        DataError: the file is damaged.
    """
    kept: list[dict[str, Any]] = []
    dropped: list[dict[str, Any]] = []
    path = folder / SAMPLES
    try:
        with open(path, encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                if row["drawn"] == DRAWN[drawn]:
                    (kept if row["kept"] else dropped).append(row)
        nearest_first = drawn == "near"
        kept.sort(key=lambda row: (row["score"] if nearest_first else -row["score"], row["id"]))
        dropped.sort(key=lambda row: (-row["score"], row["id"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read ({error!r}): remove that output and resume the run") from None
    number, pages = page_within(page, max(len(kept), len(dropped)), PER_PAGE)
    here = slice((number - 1) * PER_PAGE, number * PER_PAGE)
    return Sides(kept[here], dropped[here], len(kept), len(dropped), number, pages)
