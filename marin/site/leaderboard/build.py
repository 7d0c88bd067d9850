"""The leaderboard as a directory of static files: a page a track, a page an entry, comparison, data and downloads.

Equal inputs give equal bytes: nothing in it depends on the clock, the machine or the order of a directory. A second build writes
only what changed (see `output`). Whatever was submitted reaches a page through the template engine's escaping, or through JSON.
"""

import dataclasses
import functools
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import jinja2

from marin.garbage import without_collecting
from marin.parts import WorkInParts
from marin.site import pages, wording
from marin.site.leaderboard import api, downloads, pareto, scaling_view, timeline, track_page
from marin.site.leaderboard.chart_process import ChartProcess, Drawing
from marin.site.leaderboard.entry_files import EntryFiles
from marin.site.leaderboard.measures import MEASURES, measures_of
from marin.site.leaderboard.output import SiteWriter, digest, digest_of
from marin.site.leaderboard.summary import EntrySummary, is_held
from marin.site.leaderboard.track_view import TrackView, views_of
from marin.speedrun.board.kept_fits import KeptFits
from marin.speedrun.board.leaderboard import Board, collect
from marin.speedrun.board.rows import Unreadable
from marin.speedrun.statistics.scaling import Fitter, ScalingFit
from marin.speedrun.verdict import DOES_NOT_PROVE, LADDER

MOST_COMPARED = 8
_HERE = pathlib.Path(__file__).parent
_STYLES = ("base.css", "sheet.css")
_SCRIPTS = ("format.js", "chart.js", "lookup.js", "table.js", "live.js", "compare.js")
POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
_SPACE = uuid.UUID("6f1c3a3e-6a0b-5d0f-9b5c-7a1d5f6f2c11")  # of the feeds' identifiers
_BY_PROGRAM = "nothing but this program"  # what a file was made from, see `SiteWriter.is_fresh`
_NEWEST = 12
_TOP = 5
RUNG_MEANS = {
    "parsed": "The file is strict JSON of the schema.",
    "arithmetic": "Tokens, parameters, FLOPs, times and cost were computed again and fit together, and to our catalogue of devices.",
    "log": "The log of every step agrees with the results to the digit, and a chain of hashes binds the two.",
    "statistics": "So many runs support the claim by the track's test, if they are what they say.",
    "re-evaluated": "Somebody else scored the checkpoint again.",
    "re-run": "Somebody else trained it again from the same commit.",
}


@dataclasses.dataclass(frozen=True)
class SiteSummary:
    """What was built."""

    index: str
    num_entries: int
    num_runs: int
    unreadable: tuple[Unreadable, ...]
    num_held: int
    tracks: tuple[str, ...]
    num_written: int


@without_collecting()  # in the children too, where looking through the board would copy it
def build_site(
    results_dirs: Sequence[str | os.PathLike[str]],
    rows_files: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    allowed_signers: str | os.PathLike[str] | None = None,
) -> SiteSummary:
    """Writes the site into the directory `output`.

    Args:
        cache: where verified rows and fits are kept, so that a site is built again sooner.
        allowed_signers: whose signed statements lift a verdict.
    Raises:
        ResultsError: if a directory or list of rows does not exist.
        StorageError: if the output cannot be written.
    """
    writer = SiteWriter(os.fspath(output))
    with ChartProcess() as charts:
        board = collect(results_dirs, rows_files, cache=cache, allowed_signers=allowed_signers)
        return write_site(board, writer, results_dirs, None if cache is None else KeptFits(cache), charts)


def write_site(
    board: Board,
    writer: SiteWriter,
    results_dirs: Sequence[str | os.PathLike[str]] = (),
    kept_fits: KeptFits | None = None,
    charts: ChartProcess | None = None,
) -> SiteSummary:
    """`build_site` for a board that is already collected; curves come from logs below `results_dirs`."""
    views = views_of(board)
    charts = charts or ChartProcess()
    site = _Site(writer, views, None if kept_fits is None else kept_fits.fit, charts)
    site.write_shared()
    entries = EntryFiles(writer, views, results_dirs, site.render, site.digest)
    with WorkInParts(writer, list(entries.by_key), entries.write, site.write_downloads):
        for view in views:
            site.write_track(view)
        site.write_front(board)
        held = {entry["key"] for view in views for entry in view.entries if is_held(entry)}
        runs = {row.digest + row.run_name for entry in entries.by_key.values() for row in entry.rows}
    charts.close()
    if kept_fits is not None:
        kept_fits.save()
    writer.finish()
    return SiteSummary(
        index=f"{os.fspath(writer.target)}/index.html",
        num_entries=len(entries.by_key),
        num_runs=len(runs),
        unreadable=board.unreadable,
        num_held=len(held),
        tracks=tuple(view.summary["title"] for view in views if view.entries),
        num_written=writer.num_written,
    )


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """The charts of a track, and the fits that one of them shows."""

    charts: dict[str, track_page.Chart | None]
    fits: Sequence[ScalingFit]
    num_unfitted: int


class _Site:
    """The templates and what all pages share; each method writes one kind of page."""

    def __init__(
        self, writer: SiteWriter, views: Sequence[TrackView], fitted: Fitter | None, charts: ChartProcess
    ) -> None:
        self._writer = writer
        self._views = views
        self._fitted = fitted
        self._charts = charts
        css = "".join(pages.static_text(name) for name in _STYLES) + _own("leaderboard.css")
        script = '"use strict";\nconst marin = {};\n' + "".join(f"(() => {{\n{_own(name)}}})();\n" for name in _SCRIPTS)
        self._files = {
            f"assets/leaderboard-{digest(css.encode())[:8]}.css": css,
            f"assets/leaderboard-{digest(script.encode())[:8]}.js": script,
        }
        style, code = self._files
        menu = [
            {"title": view.summary["title"], "page": view.summary["page"]} for view in views if _has_menu_place(view)
        ]
        menu += [{"title": "Compare", "page": "compare.html"}, {"title": "How to read it", "page": "about.html"}]
        self._shared = {"policy": POLICY, "assets": {"css": style, "js": code}, "menu": menu}
        self.digest = digest(json.dumps([self._shared]).encode())

    def render(self, template: str, path: str, **values: Any) -> str:
        root = "../" * path.count("/")
        return (
            _environment()
            .get_template(template)
            .render(**{"root": root, "here": path, "feed": None, **self._shared, **values})
        )

    def write_shared(self) -> None:
        for path, text in {**self._files, "assets/icon.svg": _own("icon.svg")}.items():
            self._writer.write(path, text)
        places = {name: f"data/schema/{name}.schema.json" for name in api.SCHEMAS}
        if not all([self._writer.is_fresh(path, _BY_PROGRAM) for path in places.values()]):
            for name, text in api.schemas().items():
                self._writer.write(places[name], text, _BY_PROGRAM)

    # --- tracks ---------------------------------------------------------------------------------------------------

    def write_downloads(self) -> None:
        """Every track's table as files, which no page of it waits for."""
        for view in self._views:
            self._write_downloads(view)

    def _write_downloads(self, view: TrackView) -> None:
        track, summary = view.board.track, view.summary
        inputs = digest_of([summary, view.digests])
        write, fresh = self._writer.write, self._writer.is_fresh
        cited = digest_of([track.title, [downloads.cited(entry) for entry in view.entries]])
        if not fresh(summary["bibtex"], cited):
            write(summary["bibtex"], downloads.bibtex(view.entries, track.title), cited)
        table = functools.cache(lambda: downloads.table_of(view.entries))
        for path, make in (
            (summary["csv"], lambda: downloads.table_csv(table())),
            (summary["parquet"], lambda: downloads.table_parquet(table())),
            (_rows_script(track.key), lambda: _script_text(track_page.rows_script(track, view.entries))),
            (summary["feed"], lambda: self._feed(summary["feed"], track.title, summary["page"], view.entries)),
        ):
            if not fresh(path, inputs):
                write(path, make(), inputs)

    def write_track(self, view: TrackView) -> None:
        """A track's document, charts and pages."""
        drawn = self._write_charts(view)
        lines = [scaling_view.document_of(fit) for fit in drawn.fits]
        records = [entry["key"] for entry in view.records]
        path, inputs = view.summary["document"], digest_of([view.summary, records, lines, view.digests])
        if not self._writer.is_fresh(path, inputs):
            document = api.track_document(view.summary, view.entries, records, lines)
            self._writer.write(path, api.to_text(document), inputs)
        self._write_track_pages(view, drawn, lines)

    def _feed(self, path: str, title: str, page: str, entries: Sequence[EntrySummary]) -> str:
        return self.render(
            "feed.atom.j2", path, title=f"Marin Speedrun: {title}", page=page, entries=downloads.newest(entries),
            feed_id=uuid.uuid5(_SPACE, path), own=path.rpartition("/")[2],
        )  # fmt: skip

    def _write_charts(self, view: TrackView) -> _Drawn:
        track = view.board.track
        fits, num_unfitted = scaling_view.fits_of(track, view.entries, self._fitted)
        axes = track_page.axes_of(track)
        points = track_page.points_of(track, view.entries)
        references = track_page.references_of(track, view.board.entries)
        measure, records = track_page.timeline_of(track, view.records)
        charts: dict[str, track_page.Chart | None] = {"pareto": None, "timeline": None, "scaling": None}
        if points:
            files = self._draw(f"{track.key}-frontier", pareto.draw, points, axes, references)
            charts["pareto"] = track_page.Chart(files, pareto.describe(points, axes), lazy=False)
        # What is drawn has numbers for keys, which change more often than figures do; the page says whose they are.
        if len(records) > 1:
            until = track_page.last_day(records, view.entries)
            marked = [dataclasses.replace(one, key=str(number)) for number, one in enumerate(records)]
            files = self._draw(f"{track.key}-records", timeline.draw, marked, measure, until)
            keys = tuple(one.key for one in records)
            charts["timeline"] = track_page.Chart(files, timeline.describe(records, measure, until), keys=keys)
        if shown := scaling_view.shown_fits(fits):
            numbered, keys = scaling_view.numbered(shown)
            files = self._draw(f"{track.key}-scaling", scaling_view.draw, track.cost, track.metric, numbered)
            charts["scaling"] = track_page.Chart(files, scaling_view.describe(track, fits), keys=keys)
        return _Drawn(charts, fits, num_unfitted)

    def _draw(self, name: str, draw: Callable[..., Drawing], *shown: Any) -> dict[str, str]:
        """Has a chart's files drawn unless they are there as drawn from the same figures; returns their paths."""
        inputs = digest(repr(shown).encode("utf-8", "replace"))
        paths = {
            f"{shape}-{scheme}": f"charts/{name}-{shape}-{scheme}.svg"
            for shape in ("wide", "narrow")
            for scheme in ("light", "dark")
        }

        def write(drawn: Drawing) -> None:
            for key, path in paths.items():
                self._writer.write(path, drawn[key], inputs)

        if not all([self._writer.is_fresh(path, inputs) for path in paths.values()]):
            self._charts.ask(write, draw, *shown)
        return paths

    def _write_track_pages(self, view: TrackView, drawn: _Drawn, scaling: list[api.FamilyScaling]) -> None:
        track, entries = view.board.track, view.entries
        measures = measures_of(track)
        quality, cost = measures[track.metric], measures[track.cost]
        num_pages = max(1, -(-len(entries) // track_page.PAGE_SIZE))
        paths = {number: _table_page(track.key, number) for number in range(1, num_pages + 1)}
        values: dict[str, Any] = {
            "track": view.summary, "quality": quality, "cost": cost, "measures": measures,
            "columns": track_page.columns_of(track, entries), "in_hours": track.in_hours, "gate": track_page.axes_of(track).gate,
            "rows_script": _rows_script(track.key), "num_pages": num_pages, "page_paths": paths, "page_size": track_page.PAGE_SIZE,
            "feed": view.summary["feed"], "charts": drawn.charts, "num_unfitted": drawn.num_unfitted,
            "num_drawn": len(scaling_view.shown_fits(drawn.fits)), "ranked_by": track_page.ranked_by(track),
            "record_needs": track_page.record_needs(track), "begin": track.begin,
            "best": next((entry for entry in entries if entry["rank"] == 1), None),
            "num_frontier": sum(entry["on_frontier"] for entry in entries),
            "num_held": sum(map(is_held, entries)),
            "references": track_page.references_of(track, view.board.entries),
            "has_earlier": len({entry["date"] for entry in entries if entry["on_frontier"]}) > 1,
            "budgets": track_page.budgets_of(track, entries), "records": view.records[::-1], "scaling": scaling,
            "target_text": cost.text(scaling[0]["target"]) if scaling else "",
        }  # fmt: skip
        head = {name: value for name, value in values.items() if name not in ("records", "budgets", "scaling")}
        for number, path in paths.items():
            shown = slice((number - 1) * track_page.PAGE_SIZE, number * track_page.PAGE_SIZE)
            front = [values["budgets"], values["records"], scaling, repr(head)] if number == 1 else [num_pages]
            inputs = digest_of(
                [self.digest, view.digests[shown], front, view.summary["title"], repr(values["columns"])]
            )
            if not self._writer.is_fresh(path, inputs):
                text = self.render(
                    "track.html.j2",
                    path,
                    **values,
                    number=number,
                    entries=entries[shown],
                    pager=track_page.pager(number, num_pages),
                )
                self._writer.write(path, text, inputs)

    # --- the rest -------------------------------------------------------------------------------------------------

    def write_front(self, board: Board) -> None:
        unreadable: list[api.UnreadableFile] = [
            {"source": item.source, "reason": item.reason} for item in board.unreadable
        ]
        index = api.index_document([view.summary for view in self._views], unreadable)
        everything = [entry for view in self._views for entry in view.entries]
        newest = downloads.newest(everything)
        cards = [
            {"track": view.summary, "quality": MEASURES[view.board.track.metric], "cost": measures_of(view.board.track)[view.board.track.cost],
             "top": [entry for entry in view.entries[:_TOP] if entry["rank"] is not None]}
            for view in self._views
        ]  # fmt: skip
        counts = {
            "num_entries": len({entry["key"] for entry in everything}),
            "num_tracks": sum(bool(view.entries) for view in self._views),
        }
        self._writer.write("data/index.json", json.dumps(index, indent=1, sort_keys=True) + "\n")
        feed = "data/feed.atom"
        if not self._writer.is_fresh(feed, listed := digest_of([self.digest, newest])):
            self._writer.write(feed, self._feed(feed, "all tracks", "index.html", everything), listed)
        cards.sort(key=lambda card: not card["top"])
        summaries, tops = [view.summary for view in self._views], [card["top"] for card in cards]
        self._write_page(
            "index", [summaries, tops, newest[:_NEWEST], unreadable, counts], cards=cards, newest=newest[:_NEWEST], unreadable=unreadable,
            feed=feed, titles={summary["key"]: summary["title"] for summary in summaries}, **counts,
        )  # fmt: skip
        self._write_page("unreadable", unreadable, unreadable=unreadable)
        self._write_page(
            "about", _BY_PROGRAM, rung_means=RUNG_MEANS, does_not_prove=DOES_NOT_PROVE, version=api.VERSION, schemas=index["schemas"]
        )  # fmt: skip
        scripts = " ".join(_rows_script(view.summary["key"]) for view in self._views if view.entries)
        self._write_page("compare", scripts, most=MOST_COMPARED, row_scripts=scripts)

    def _write_page(self, name: str, made_from: Any, **values: Any) -> None:
        """A page of the site's own, unless it is there: `values` are a function of `made_from` and this program."""
        path, inputs = f"{name}.html", digest_of([self.digest, made_from])
        if not self._writer.is_fresh(path, inputs):
            self._writer.write(path, self.render(f"{name}.html.j2", path, **values), inputs)


def _has_menu_place(view: TrackView) -> bool:
    return bool(view.entries) or not view.summary["key"].startswith("other-")


def _table_page(track: str, number: int) -> str:
    return f"tracks/{track}.html" if number == 1 else f"tracks/{track}.page-{number}.html"


def _rows_script(track: str) -> str:
    return f"assets/rows-{track}.js"


def _script_text(rows: Any) -> str:
    # ASCII only, and no "<", so that the text is JSON, JavaScript and harmless within markup alike.
    text = json.dumps(rows, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"marin.addRows({text});\n"


def _own(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


_LEVELS: dict[str | None, int] = {None: 0, **{rung: level for level, rung in enumerate(LADDER, start=1)}}


@functools.cache
def _environment() -> jinja2.Environment:
    filters = {
        name: getattr(wording, name)
        for name in ("clean", "count", "flops", "duration", "percent", "bits", "breakable", "margin")
    }
    made = pages.environment([_HERE / "templates", pages.TEMPLATES], filters | {
        "thousands": lambda value: f"{value:,}",
        "lower_first": track_page.lower_first,
        "exact": lambda value: f"{value:.6g}",
        "uuid": lambda key: str(uuid.uuid5(_SPACE, key)),
    })  # fmt: skip
    made.globals["levels"] = _LEVELS
    made.globals["text_limits"] = track_page.TEXT_LIMITS
    return made
