"""The leaderboard as a directory of static files: `index.html`, the charts, and the rows as CSV and JSON.

The page opens from disk and loads nothing but its charts (see `marin.site.pages`).
Equal inputs give equal bytes: nothing on the page depends on the clock, the machine or the order of a directory.
"""

import csv
import dataclasses
import io
import json
import os
from collections.abc import Sequence

from marin.errors import StorageError
from marin.site import pages, pareto_chart, wording
from marin.speedrun.leaderboard import Board, Section, collect
from marin.speedrun.rows import C4_EN, NOT_EVALUATED, Row
from marin.storage import files

ROWS_SCHEMA_VERSION = 1
COMPRESSOR_NAMES = {"gzip_9": "gzip -9", "xz_9": "xz -9", "zstd_19": "zstd -19"}

_CSV_COLUMNS = (
    "evaluation_set", "evaluation_digest", "rank", "on_frontier", "run_name", "status", "bits_per_byte",
    "training_hardware_flops", "model_flops", "mfu", "training_time", "model_size", "total_tokens", "hardware", "author",
    "affiliation", "author_url", "date", "run_link", "git_commit", "seed", "resumed", "description", "source", "digest",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SiteSummary:
    """What was built."""

    index: str
    num_runs: int
    num_unreadable: int
    num_inconsistent: int
    evaluation_sets: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _View:
    """A section with everything that the template shows beside the rows themselves."""

    anchor: str
    title: str
    section: Section
    charts: dict[str, str]  # "wide-light" and so on -> file name; empty where nothing can be drawn
    chart_text: str
    references: dict[str, float]

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.section.rows

    @property
    def best(self) -> Row | None:
        return next((row for row in self.rows if row.rank == 1), None)

    @property
    def has_held(self) -> bool:
        return any(not row.counts for row in pareto_chart.plottable(self.rows))

    @property
    def num_frontier(self) -> int:
        return sum(row.on_frontier for row in self.rows)


def build_site(
    results_dirs: Sequence[str | os.PathLike[str]],
    rows_files: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
) -> SiteSummary:
    """Writes the site into the directory `output`, and removes charts of an earlier build that it no longer has.

    Raises:
        ResultsError: if a directory or list of rows does not exist.
        StorageError: if the output cannot be written.
    """
    return write_site(collect(results_dirs, rows_files), output)


def write_site(board: Board, output: str | os.PathLike[str]) -> SiteSummary:
    """`build_site` for a board that is already collected."""
    target = os.fspath(output)
    if os.path.isfile(target):
        raise StorageError(f"{target}: a file stands where the site's directory should be: choose another --output")
    views: list[_View] = []
    charts: dict[str, str] = {}
    for number, section in enumerate(board.sections, start=1):
        view, drawn = _view(section, number)
        views.append(view)
        charts |= drawn
    for name, text in charts.items():
        files.write_bytes(files.join(target, "charts", name), text.encode())
    for name in files.list_dir(files.join(target, "charts")):
        if name.startswith("pareto-") and name.endswith(".svg") and name not in charts:
            files.remove_file(files.join(target, "charts", name))
    files.write_bytes(files.join(target, "runs.csv"), rows_csv(board).encode())
    files.write_bytes(files.join(target, "runs.json"), rows_json(board).encode())
    index = files.join(target, "index.html")
    files.write_bytes(index, render_page(board, views).encode())
    return SiteSummary(
        index=index,
        num_runs=len({row.digest + row.run_name for row in board.rows}),
        num_unreadable=len(board.unreadable),
        num_inconsistent=len({row.digest + row.run_name for row in board.rows if not row.counts}),
        evaluation_sets=tuple(view.title for view in views),
    )


def render_page(board: Board, views: Sequence[_View]) -> str:
    names = ("clean", "safe_url", "count", "flops", "duration", "percent", "bits", "breakable")
    return pages.static_page(
        "leaderboard.html.j2",
        {name: getattr(wording, name) for name in names},
        styles=("sheet.css", "leaderboard.css"),
        script="leaderboard.js",
        board=board,
        views=views,
        compressor_names=COMPRESSOR_NAMES,
    )


def rows_json(board: Board) -> str:
    """The rows, with findings, as JSON with sorted keys."""
    value = {
        "schema_version": ROWS_SCHEMA_VERSION,
        "rows": [row.to_json() for row in board.rows],
        "unreadable": [dataclasses.asdict(item) for item in board.unreadable],
    }
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def rows_csv(board: Board) -> str:
    """The rows as CSV. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in board.rows:
        writer.writerow([_cell(getattr(row, column)) for column in _CSV_COLUMNS])
    return stream.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        value = " ".join(value.split())
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _view(section: Section, number: int) -> tuple[_View, dict[str, str]]:
    anchor = f"set-{number}"
    levels = next((row.compressors for row in section.rows if row.compressors), {})
    references = {name: levels[key] for key, name in COMPRESSOR_NAMES.items() if 0 < levels.get(key, 0) < 100}
    drawn: dict[str, str] = {}
    names: dict[str, str] = {}
    if pareto_chart.plottable(section.rows):
        for shape in (pareto_chart.WIDE, pareto_chart.NARROW):
            for scheme in (pareto_chart.LIGHT, pareto_chart.DARK):
                key = f"{shape.name}-{scheme.name}"
                names[key] = f"pareto-{number}-{key}.svg"
                drawn[names[key]] = pareto_chart.render(section.rows, scheme, shape, references)
    view = _View(anchor, _title(section), section, names, pareto_chart.describe(section.rows), references)
    return view, drawn


def _title(section: Section) -> str:
    known = {C4_EN: "C4-EN (Paloma)", NOT_EVALUATED: "Not evaluated"}
    return known.get(section.evaluation_set) or wording.clean(section.evaluation_set, 60) or "Unnamed"
