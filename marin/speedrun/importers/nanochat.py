"""nanochat's leaderboard: a Markdown table such as that of its README, whose rows compete on the Time-to-GPT-2 track.

    | # | time | val_bpb | CORE | Description | Date | Commit | Contributors |
    | 1 | 3.04 | 0.74833 | 0.2585 | d24 baseline | Jan 29 2026 | 348fbb3 | @someone |

Columns are found by their names, in any order; time is in hours. A CORE cell may say of how many runs it is the mean: `0.2571 (n=7)`. A
column `Data` names the pretraining data where it is there, since bits per byte on different validation texts say nothing about
each other. Tables without the columns time, CORE and description are passed over.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import re
from collections.abc import Iterator

from marin.errors import ResultsError
from marin.speedrun import strict_json
from marin.speedrun.board.rows import Row, Unreadable, rows_of
from marin.speedrun.results import Author, Evaluation, RunInfo

LEADERBOARD = pathlib.Path(__file__).with_name("nanochat_leaderboard.md")
MAX_BYTES = 512 * 2**10
MAX_ROWS = 1_000
_LONGEST_TEXT = 500
HARDWARE, NUM_CHIPS = "H100", 8  # the contest's rule, which no column repeats
_COLUMNS = {
    "time": ("time", "hours", "h", "time (hours)", "time (8×h100)", "record time"),
    "bpb": ("val_bpb", "val bpb", "bpb"),
    "core": ("core", "core_metric"),
    "description": ("description", "change"),
    "date": ("date",),
    "commit": ("commit",),
    "author": ("contributors", "contributor", "author"),
    "data": ("data", "dataset"),
}
_NEEDED = ("time", "core", "description")
_BAR = re.compile(r"(?<!\\)\|")  # a bar within a cell has a backslash before it
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], start=1
    )
}


class _BadCell(ValueError):
    """A cell that is not what its column holds."""


def read_nanochat_table(path: str | os.PathLike[str] = LEADERBOARD) -> Iterator[Row | Unreadable]:
    """Rows of every leaderboard table in a Markdown file; by default the facts that ship with the package.

    Raises:
        ResultsError: if there is no such file.
    """
    source = pathlib.PurePath(path).name
    if not os.path.exists(path):
        raise ResultsError(f"{os.fspath(path)}: no such file: give a Markdown file with nanochat's leaderboard")
    try:
        content = strict_json.read_limited(os.fspath(path), MAX_BYTES)
        if len(content) > MAX_BYTES:
            raise ResultsError(f"over {MAX_BYTES // 2**10} KiB, which no leaderboard has")
        lines = content.decode("utf-8").splitlines()
    except (ResultsError, UnicodeDecodeError) as error:
        yield Unreadable(source, str(error).removeprefix(f"{os.fspath(path)}: "))
        return
    found = 0
    columns: dict[str, int] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue  # some copies of the table have empty lines between its rows
        cells = _cells(line)
        header = _header(cells)
        if header is not None:
            columns = header
        elif columns is None or cells is None:
            columns = None
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found += 1
            where = f"{source}, line {number}"
            if found > MAX_ROWS:
                yield Unreadable(where, f"over {MAX_ROWS:,} rows: the rest of the file was not read")
                return
            try:
                yield _row(cells, columns, source)
            except _BadCell as error:
                yield Unreadable(where, str(error))
    if not found:
        yield Unreadable(
            source, "no table with the columns time, CORE and description: give nanochat's README or one like it"
        )


def _cells(line: str) -> list[str] | None:
    text = line.strip()
    if not text.startswith("|"):
        return None
    return [cell.strip().replace(r"\|", "|") for cell in _BAR.split(text.removeprefix("|").removesuffix("|"))]


def _header(cells: list[str] | None) -> dict[str, int] | None:
    names = [cell.lower() for cell in cells or ()]
    columns = {}
    for key, known in _COLUMNS.items():
        places = [place for place, name in enumerate(names) if name in known]
        if places:
            columns[key] = places[0]
    return columns if all(key in columns for key in _NEEDED) else None


def _row(cells: list[str], columns: dict[str, int], source: str) -> Row:
    def cell(key: str) -> str | None:
        place = columns.get(key)
        text = cells[place] if place is not None and place < len(cells) else ""
        text = _without_links(text[:_LONGEST_TEXT]).replace("**", "").strip("` ")
        return None if text in ("", "-", "–", "—") else text

    if len(cells) <= max(columns[key] for key in _NEEDED):
        raise _BadCell(f"{len(cells)} cells, fewer than the table has columns")
    core, runs = _core(cell("core"))
    hours = _number(cell("time"), "time", 1e5)
    bits = _number(cell("bpb"), "val_bpb", 100)
    description = cell("description") or ""
    commit, data, date = cell("commit"), cell("data"), _date(cell("date"))
    reference = commit is None  # the model that is to be beaten: trained on something else, years ago
    info = RunInfo(
        schema_version=None,
        author=Author(name=(cell("author") or "not stated")[:200], affiliation="nanochat leaderboard"),
        description=description,
        tokenized_dataset=data,
        device_name=None if reference else HARDWARE,
        platform=None if reference else "gpu",
        num_chips=None if reference else NUM_CHIPS,
        # Without the digits that only the product has: a time with all digits is taken for that of one run alone.
        training_time=None if hours is None else round(hours * 3600, 6),
        evaluation=None
        if bits is None
        else Evaluation(name=f"nanochat/validation{'' if data is None else f' of {data}'}", bits_per_byte=bits),
        core_metric=core,
        core_version="v1",  # nanochat scores with the bundle's first baselines
        git_commit=commit,
    )
    (row,) = rows_of(info, f"nanochat/{cells[0] or commit or description}"[:120], source, listed=True)
    return dataclasses.replace(row, date=date, stated_runs=runs, details_json=json.dumps(info.to_json()))


def _core(text: str | None) -> tuple[float, int]:
    match = re.fullmatch(r"(\d*\.\d+)\s*(?:\(n\s*=\s*(\d{1,6})\))?", text or "")
    if match is None:
        raise _BadCell(f"CORE is {(text or '')[:40]!r}: expected such as 0.2571 or 0.2571 (n=7)")
    core = float(match[1])
    if core > 1:
        raise _BadCell(f"CORE is {core:g}: it is at most 1")
    return core, max(1, int(match[2] or 1))


def _number(text: str | None, name: str, most: float) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,12})?|\.\d{1,12})\s*(?:h|hours?|\*)?", text)
    if match is None or not 0 < float(match[1]) <= most:
        raise _BadCell(f"{name} is {text[:40]!r}: expected a positive number{' of hours' if name == 'time' else ''}")
    return float(match[1])


def _date(text: str | None) -> str | None:
    """A day as YYYY-MM-DD, from that form or from such as "Jan 29 2026"; a year alone is not a day."""
    if text is None or re.fullmatch(r"\d{4}", text):
        return None
    named = re.fullmatch(r"([A-Za-z]{3})[a-z]*\.? (\d{1,2}),? (\d{4})", text)
    plain = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", text)
    try:
        if plain:
            return datetime.date(int(plain[1]), int(plain[2]), int(plain[3])).isoformat()
        if named and named[1].lower() in _MONTHS:
            return datetime.date(int(named[3]), _MONTHS[named[1].lower()], int(named[2])).isoformat()
    except ValueError:
        pass
    raise _BadCell(f"date is {text[:40]!r}: expected such as 'Jan 29 2026' or '2026-01-29'")


def _without_links(text: str) -> str:
    return re.sub(r"\[([^\[\]]{0,200})\]\([^()]{0,200}\)", r"\1", text)
