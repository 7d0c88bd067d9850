"""`data/*.json`: the board as a versioned API of static files, with the JSON Schema of each document beside it.

    data/index.json              what there is: tracks, their documents and downloads, what could not be read
    data/tracks/KEY.json         a track, its entries best first, its records and its families' scaling
    data/entries/KEY.json        an entry with its verdict and all that its results files say
    data/schema/*.schema.json    JSON Schema (2020-12) of the three

`version` goes up where a key changes its meaning or goes away; keys may be added without. A figure that is null is unknown.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from marin.site.leaderboard.curves import Curve
from marin.site.leaderboard.summary import EntrySummary
from marin.speedrun.board.entries import Entry
from marin.speedrun.tracks import METRICS, Track
from marin.speedrun.verdict import DOES_NOT_PROVE, RungVerdict, Verdict

VERSION = 1


class UnreadableFile(TypedDict):
    source: str
    reason: str


class TrackSummary(TypedDict):
    key: str
    title: str
    text: list[str]
    metric: str
    metric_title: str
    higher_is_better: bool
    cost: str
    objective: str
    gates: list[str]
    data: str
    hardware: str
    min_runs: int
    p_value: float
    num_entries: int
    page: str
    document: str
    csv: str
    parquet: str
    bibtex: str
    feed: str


class IndexDocument(TypedDict):
    """`data/index.json`."""

    version: int
    tracks: list[TrackSummary]
    unreadable: list[UnreadableFile]
    does_not_prove: dict[str, str]
    schemas: dict[str, str]


class FamilyScaling(TypedDict):
    """A fit `a (C / unit)^-b + c` of a family, its projection to `target`, and why it is not ranked, if it is not."""

    family: str
    rank: int | None
    keys: list[str]
    parameters: int
    unit: float
    a: float | None
    b: float | None
    c: float | None
    r_squared: float | None
    target: float | None
    projected: float | None
    low: float | None
    high: float | None
    refused: str | None


class TrackDocument(TypedDict):
    """`data/tracks/KEY.json`."""

    version: int
    track: TrackSummary
    entries: list[EntrySummary]
    records: list[str]
    scaling: list[FamilyScaling]


class RunDocument(TypedDict):
    """One run of an entry: where it was read from, and its results file as it is, or null for a row of a list."""

    name: str
    source: str
    also_at: list[str]
    digest: str
    run_info: dict[str, Any] | None


class CurveDocument(TypedDict):
    """A curve of the first run, thinned to what a picture shows; each stretch keeps its lowest and highest value."""

    title: str
    steps: list[int]
    values: list[float]


class EntryDocument(TypedDict):
    """`data/entries/KEY.json`.

    `entry` and `verdict` are those of the first track that it stands on; `statistics` has the rung of this name for each, by the track's key.
    """

    version: int
    entry: EntrySummary
    verdict: dict[str, Any]
    statistics: dict[str, dict[str, Any]]
    runs: list[RunDocument]
    curves: list[CurveDocument]


SCHEMAS = {"index": IndexDocument, "track": TrackDocument, "entry": EntryDocument}


def track_summary(track: Track, num_entries: int) -> TrackSummary:
    return TrackSummary(
        key=track.key,
        title=track.title,
        text=list(track.text),
        metric=track.metric,
        metric_title=METRICS[track.metric].name,
        higher_is_better=track.higher_is_better,
        cost=track.cost,
        objective=track.objective,
        gates=[str(gate) for gate in track.gates],
        data=track.data.text,
        hardware=track.hardware.text,
        min_runs=track.min_runs,
        p_value=track.p_value,
        num_entries=num_entries,
        page=f"tracks/{track.key}.html",
        document=f"data/tracks/{track.key}.json",
        csv=f"data/tracks/{track.key}.csv",
        parquet=f"data/tracks/{track.key}.parquet",
        bibtex=f"data/tracks/{track.key}.bib",
        feed=f"data/tracks/{track.key}.atom",
    )


def index_document(tracks: list[TrackSummary], unreadable: list[UnreadableFile]) -> IndexDocument:
    return IndexDocument(
        version=VERSION,
        tracks=tracks,
        unreadable=unreadable,
        does_not_prove={str(rung): text for rung, text in DOES_NOT_PROVE.items()},
        schemas={name: f"data/schema/{name}.schema.json" for name in SCHEMAS},
    )


def entry_document(
    entry: Entry, summary: EntrySummary, statistics: Mapping[str, RungVerdict], curves: Sequence[Curve]
) -> EntryDocument:
    """Args:
    statistics: what each track's test says, by the track's key.
    """
    runs = [
        RunDocument(
            name=row.run_name,
            source=row.source,
            also_at=list(row.also_at),
            digest=row.digest,
            run_info=row.details or None,
        )
        for row in entry.rows
    ]
    lines = [
        CurveDocument(
            title=curve.title, steps=[step for step, _ in curve.series], values=[value for _, value in curve.series]
        )
        for curve in curves
    ]
    return EntryDocument(
        version=VERSION,
        entry=summary,
        verdict=verdict_json(entry.verdict),
        statistics={key: _rung_json(found) for key, found in statistics.items()},
        runs=runs,
        curves=lines,
    )


def track_document(
    track: TrackSummary, entries: list[EntrySummary], records: list[str], scaling: list[FamilyScaling]
) -> TrackDocument:
    return TrackDocument(version=VERSION, track=track, entries=entries, records=records, scaling=scaling)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "challenged": verdict.challenged,
        "withdrawn": verdict.withdrawn,
        "rungs": [_rung_json(found) for found in verdict.rungs],
    }


def _rung_json(found: RungVerdict) -> dict[str, Any]:
    return {"rung": found.rung, "outcome": found.outcome, "findings": [vars(finding) for finding in found.findings]}


def schemas() -> dict[str, str]:
    """The text of each schema by the name of its document."""
    found = {}
    for name, kind in SCHEMAS.items():
        schema = TypeAdapter(kind).json_schema()
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        found[name] = json.dumps(schema, indent=1, sort_keys=True) + "\n"
    return found


_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False, check_circular=False, separators=(",", ":"))


def to_text(document: Any) -> str:
    """A document as JSON: keys sorted, ASCII only, so that every reader and every line of a diff takes it."""
    return _ENCODER.encode(document) + "\n"
