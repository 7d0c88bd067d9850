"""A track's pages: its table in pages, its charts, records, scaling and the best entry under each budget."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard import pareto, timeline
from marin.site.leaderboard.drawing import WIDE
from marin.site.leaderboard.measures import COSTS, MEASURES, OTHERS, Measure, measures_of
from marin.site.leaderboard.summary import EntrySummary, is_held
from marin.speedrun.board.entries import Entry
from marin.speedrun.tracks import Track

PAGE_SIZE = 100
_TEXTS = {
    "description": "Description", "hardware": "Hardware", "optimizer": "Optimizer", "author": "Author", "date": "Date", "git_commit": "Commit",
}  # fmt: skip
TEXT_LIMITS = {"description": 160, "hardware": 60, "optimizer": 40, "author": 80, "date": 10, "git_commit": 7}
_ONLY_WHERE_ASKED = ("description", "git_commit")  # long, or of no use where the run can be had by a command
_FIELDS = {"git_commit": "git_commits"}  # of a summary
COMPRESSOR_NAMES = {"gzip_9": "gzip -9", "xz_9": "xz -9", "zstd_19": "zstd -19"}


@dataclasses.dataclass(frozen=True)
class Column:
    key: str
    title: str
    kind: str  # "num" or "text"


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart as a page shows it: file names by shape and scheme, its text, and the entries that its points are of."""

    files: Mapping[str, str]
    text: str
    lazy: bool = True
    keys: tuple[str, ...] = ()
    width: int = WIDE.width
    height: int = WIDE.height


def columns_of(track: Track, summaries: Sequence[EntrySummary]) -> tuple[Column, ...]:
    """The table's columns, in order; those of which nothing is known are left out, but for what the track is about.

    `row` in `templates/parts.html.j2` and `Table.makerOf` in `static/table.js` know them by their keys.
    """
    measures = measures_of(track)

    def is_known(key: str) -> bool:
        if key in MEASURES and key != "model_size":
            return any(entry["values"].get(key) is not None for entry in summaries)
        return any(entry[_FIELDS.get(key, key)] for entry in summaries)  # type: ignore[literal-required]

    numbers = [one.key for one in COSTS if one.key == track.cost or is_known(one.key)]
    numbers += [key for key in track.columns if key in MEASURES]
    numbers += [one.key for one in OTHERS if is_known(one.key)]
    texts = [key for key in _TEXTS if key in track.columns or (key not in _ONLY_WHERE_ASKED and is_known(key))]
    return (
        Column("rank", "Rank", "num"),
        Column("name", "Entry", "text"),
        Column("quality", measures[track.metric].title, "num"),
        *(Column(key, measures[key].title, "num") for key in numbers),
        *(Column(key, _TEXTS[key], "text") for key in texts),
        Column("rung", "Verified", "text"),
    )


def axes_of(track: Track) -> pareto.Axes:
    gate = next((gate.bound for gate in track.gates if gate.field == track.metric), None)
    measures = measures_of(track)
    return pareto.Axes(measures[track.cost], measures[track.metric], gate)


def points_of(track: Track, summaries: Sequence[EntrySummary]) -> list[pareto.Point]:
    """The entries that have both coordinates, on an axis that has no zero."""
    points = []
    for entry in summaries:
        cost, quality = entry["values"].get(track.cost), entry["values"].get(track.metric)
        if cost is not None and quality is not None and cost > 0 and (quality > 0 or track.higher_is_better):
            state = "held" if is_held(entry) else "frontier" if entry["on_frontier"] else "other"
            points.append(pareto.Point(entry["name"], cost, quality, entry["date"], state))
    return points


def references_of(track: Track, entries: Sequence[Entry]) -> dict[str, float]:
    """What compressors need for the text that a track is scored on, where a results file states it."""
    if track.metric != "bits_per_byte":
        return {}
    levels = next((row.compressors for entry in entries for row in entry.rows if row.compressors and row.counts), {})
    return {name: levels[key] for key, name in COMPRESSOR_NAMES.items() if 0 < levels.get(key, 0) < 100}


def timeline_of(track: Track, records: Sequence[EntrySummary]) -> tuple[Measure, list[timeline.Record]]:
    """What the timeline shows: the cost where the track asks for the least, else the quality."""
    measure = measures_of(track)[track.cost if track.objective == "least cost" else track.metric]
    dated = [
        timeline.Record(entry["name"], entry["date"], value, entry["key"])
        for entry in records
        if entry["date"] is not None and (value := entry["values"].get(measure.key)) is not None
    ]
    return measure, dated


def last_day(records: Sequence[timeline.Record], entries: Sequence[EntrySummary]) -> str:
    """The day of the newest record or ranked entry: up to then the last record is known to stand."""
    ranked = (timeline.day_of(entry["date"]) for entry in entries if entry["rank"] is not None)
    return max(one for one in (*ranked, *(record.date for record in records)) if one is not None)


def ranked_by(track: Track) -> str:
    quality, cost = MEASURES[track.metric].title, MEASURES[track.cost].title
    low = "highest" if track.higher_is_better else "lowest"
    match track.objective:
        case "pareto":
            return f"{low} {lower_first(quality)}; the frontier is over {lower_first(cost)}"
        case "least cost":
            return f"least {lower_first(cost)}"
        case "best quality":
            return f"{low} {lower_first(quality)}"


def record_needs(track: Track) -> str:
    runs = "one run" if track.min_runs == 1 else f"{track.min_runs} runs"
    return f"at least {runs}, and a one-sided test with p < {track.p_value:g}"


def budgets_of(track: Track, summaries: Sequence[EntrySummary]) -> list[tuple[float, EntrySummary]]:
    """The best ranked entry under round budgets, each named once, for a track that is about a frontier."""
    if track.objective != "pareto":
        return []
    sign = -1.0 if track.higher_is_better else 1.0
    known = []
    for entry in summaries:
        cost, quality = entry["values"].get(track.cost), entry["values"].get(track.metric)
        if entry["rank"] is not None and cost is not None and quality is not None and cost > 0:
            known.append((cost, sign * quality, entry))
    if not known:
        return []
    known.sort(key=lambda item: item[:2])
    exponents = range(math.floor(math.log10(known[0][0])), math.ceil(math.log10(known[-1][0])) + 1)
    found: list[tuple[float, EntrySummary]] = []
    position, best = 0, None
    for limit in (float(f"{mantissa}e{exponent}") for exponent in exponents for mantissa in (1, 3)):
        while position < len(known) and known[position][0] <= limit:
            best = known[position] if best is None or known[position][1] < best[1] else best
            position += 1
        if best is not None and (not found or found[-1][1] is not best[2]):
            found.append((limit, best[2]))
    return found


def pager(number: int, last: int) -> list[int | None]:
    """The page numbers that a table offers: the ends, the ones around this one, and gaps."""
    near = {1, 2, last - 1, last, *range(number - 2, number + 3)}
    shown = sorted(page for page in near if 1 <= page <= last)
    found: list[int | None] = []
    for page in shown:
        if found and page - (found[-1] or 0) > 1:
            found.append(None)
        found.append(page)
    return found


def rows_script(track: Track, summaries: Sequence[EntrySummary]) -> dict[str, Any]:
    """The table as columns, for `static/table.js`: texts are cleaned here, as the pages' are."""
    clean = wording.clean

    def texts(key: str) -> list[str | None]:
        found = [next(iter(entry["git_commits"]), None) if key == "git_commit" else entry[key] for entry in summaries]  # type: ignore[literal-required]
        return [clean(text, TEXT_LIMITS[key]) if text else None for text in found]

    measures = {
        measure.key: [
            entry["model_size"] if measure.key == "model_size" else entry["values"].get(measure.key)
            for entry in summaries
        ]
        for measure in MEASURES.values()
    }
    return {
        "track": track.key,
        "key": [entry["key"] for entry in summaries],
        "name": [clean(entry["name"], 160) for entry in summaries],
        "family": [clean(entry["family"], 120) if entry["family"] else None for entry in summaries],
        **{key: texts(key) for key in _TEXTS if key not in _ONLY_WHERE_ASKED or key in track.columns},
        "state": [entry["state"] for entry in summaries],
        "why": [clean(entry["reasons"][0], 180) if entry["reasons"] else None for entry in summaries],
        "rung": [entry["rung"] or "none" for entry in summaries],
        "open": [entry["open_rungs"] for entry in summaries],
        "rank": [entry["rank"] for entry in summaries],
        "frontier": [int(entry["on_frontier"]) for entry in summaries],
        "record": [int(entry["is_record"]) for entry in summaries],
        "n": [entry["spread"]["n"] if entry["spread"] else None for entry in summaries],
        "margin": [margin_of(entry) for entry in summaries],
        "measures": {name: values for name, values in measures.items() if any(value is not None for value in values)},
    }


def margin_of(entry: EntrySummary) -> float | None:
    """Half of the 95 % interval."""
    spread = entry["spread"]
    return None if spread is None or spread["high"] is None else spread["high"] - spread["mean"]


def lower_first(title: str) -> str:
    """A title within a sentence: abbreviations keep their capitals."""
    return title if title[1:2].isupper() else title[:1].lower() + title[1:]
