"""A track's pages: its table in pages, its charts, records, scaling and the best entry under each budget."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard import pareto, timeline
from marin.site.leaderboard.drawing import WIDE
from marin.site.leaderboard.measures import MEASURES, OTHERS, Measure
from marin.site.leaderboard.summary import EntrySummary
from marin.speedrun.entries import Entry
from marin.speedrun.tracks import Track

PAGE_SIZE = 100
COMPRESSOR_NAMES = {"gzip_9": "gzip -9", "xz_9": "xz -9", "zstd_19": "zstd -19"}


@dataclasses.dataclass(frozen=True)
class Column:
    key: str
    title: str
    kind: str  # "num" or "text"


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart as a page shows it: file names by shape and scheme, and its text."""

    files: Mapping[str, str]
    text: str
    lazy: bool = True
    width: int = WIDE.width
    height: int = WIDE.height


def columns_of(quality: Measure, costs: Sequence[Measure]) -> tuple[Column, ...]:
    """The table's columns, in order; `static/table.js` knows them by their keys."""
    return (
        Column("rank", "Rank", "num"),
        Column("name", "Entry", "text"),
        Column("quality", quality.title, "num"),
        *(Column(measure.key, measure.title, "num") for measure in (*costs, *OTHERS)),
        Column("hardware", "Hardware", "text"),
        Column("optimizer", "Optimizer", "text"),
        Column("author", "Author", "text"),
        Column("date", "Date", "text"),
        Column("rung", "Verified", "text"),
    )


def axes_of(track: Track) -> pareto.Axes:
    gate = next((gate.bound for gate in track.gates if gate.field == track.metric), None)
    return pareto.Axes(MEASURES[track.cost], MEASURES[track.metric], gate)


def points_of(track: Track, summaries: Sequence[EntrySummary]) -> list[pareto.Point]:
    """The entries that have both coordinates, on an axis that has no zero."""
    points = []
    for entry in summaries:
        cost, quality = entry["values"].get(track.cost), entry["values"].get(track.metric)
        if cost is not None and quality is not None and cost > 0 and (quality > 0 or track.higher_is_better):
            state = (
                "held" if entry["state"] in ("held", "withdrawn") else "frontier" if entry["on_frontier"] else "other"
            )
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
    measure = MEASURES[track.cost if track.objective == "least cost" else track.metric]
    dated = [
        timeline.Record(entry["name"], entry["date"], value, entry["key"])
        for entry in records
        if entry["date"] is not None and (value := entry["values"].get(measure.key)) is not None
    ]
    return measure, dated


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


def rows_script(key: str, summaries: Sequence[EntrySummary]) -> dict[str, Any]:
    """The table as columns, for `static/table.js`: texts are cleaned here, as the pages' are."""
    measures = {
        measure.key: [
            entry["model_size"] if measure.key == "model_size" else entry["values"].get(measure.key)
            for entry in summaries
        ]
        for measure in MEASURES.values()
    }
    clean = wording.clean
    return {
        "track": key,
        "key": [entry["key"] for entry in summaries],
        "name": [clean(entry["name"], 160) for entry in summaries],
        "author": [clean(entry["author"], 80) for entry in summaries],
        "date": [entry["date"] for entry in summaries],
        "family": [clean(entry["family"], 120) if entry["family"] else None for entry in summaries],
        "optimizer": [clean(entry["optimizer"], 40) if entry["optimizer"] else None for entry in summaries],
        "hardware": [clean(entry["hardware"], 60) if entry["hardware"] else None for entry in summaries],
        "state": [entry["state"] for entry in summaries],
        "why": [clean(entry["reasons"][0], 180) if entry["reasons"] else None for entry in summaries],
        "rung": [entry["rung"] or "none" for entry in summaries],
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
