"""A track as its pages see it: its entries with what is said of them, under names that no two share."""

import dataclasses
import re
from collections.abc import Mapping

from marin.site.leaderboard import api
from marin.site.leaderboard.output import digest_of
from marin.site.leaderboard.summary import EntrySummary, summarize
from marin.site.leaderboard.timeline import day_of
from marin.speedrun.board.leaderboard import Board, TrackBoard

_PLAIN_KEY = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")  # of a file's name


@dataclasses.dataclass(frozen=True)
class TrackView:
    board: TrackBoard
    summary: api.TrackSummary
    entries: list[EntrySummary]
    records: list[EntrySummary]  # dated by when they came
    places: dict[str, int]  # key -> its position among the entries
    digests: list[str]  # of all that `entries` say, one each, as most files of the site are a function of some of them


def views_of(board: Board) -> list[TrackView]:
    """The tracks with what pages say of their entries, under names that no two share."""
    views: list[TrackView] = []
    tracks: set[str] = set()
    known: dict[str, tuple[str, ...]] = {}
    for found in board.tracks:
        key = _distinct(_file_name(found.track.key), tracks)
        tracks.add(key)
        renamed: dict[str, str] = {}
        entries = []
        for entry in found.entries:
            identity = tuple(row.digest for row in entry.rows)
            name = _file_name(entry.key)
            # Two entries whose keys were made to collide would overwrite each other's page.
            while known.setdefault(name, identity) != identity:
                name = f"{name}-x"
            renamed[entry.key] = name
            entries.append(
                entry if name == entry.key and key == entry.track else dataclasses.replace(entry, key=name, track=key)
            )
        records = [dataclasses.replace(one, key=renamed.get(one.key, one.key), track=key) for one in found.records]
        made = TrackBoard(dataclasses.replace(found.track, key=key), tuple(entries), tuple(records))
        summaries = [summarize(entry) for entry in entries]
        by_key = {entry["key"]: entry for entry in summaries}
        views.append(TrackView(
            made, api.track_summary(made.track, len(entries)), summaries, _dated(made, by_key),
            {entry["key"]: place for place, entry in enumerate(summaries)}, [digest_of(entry) for entry in summaries],
        ))  # fmt: skip
    return views


def _dated(board: TrackBoard, summaries: Mapping[str, EntrySummary]) -> list[EntrySummary]:
    found = []
    for one in board.records:
        if (summary := summaries.get(one.key)) is not None:
            made = summary.copy()
            made["date"] = day_of(one.came) or summary["date"]
            found.append(made)
    return found


def _file_name(key: str) -> str:
    """A key as part of a path: part of it may come from a submitted file, and none of it may lead out of the folder."""
    if _PLAIN_KEY.fullmatch(key):
        return key
    return re.sub(r"[^a-z0-9]+", "-", key.lower())[:120].strip("-") or "unnamed"


def _distinct(name: str, taken: set[str]) -> str:
    number, found = 2, name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found
