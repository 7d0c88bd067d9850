"""The leaderboard: rows of every source, without copies, ranked and put on the Pareto frontier.

Rows are compared only within an evaluation set, since bits per byte on different texts say nothing about each other. A
row whose figures contradict each other is listed with the reasons, and takes no rank and no place on the frontier.
Every order is fixed by the content, never by the file system.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence

from marin.speedrun.copies import merge_copies, note_repeats
from marin.speedrun.entries import Entry, entries_of
from marin.speedrun.pareto import FrontierChange, frontier_history, pareto_frontier
from marin.speedrun.records import sortable_date, timeline, with_statistics
from marin.speedrun.rows import C4_EN, NOT_EVALUATED, Row, Unreadable, read_results_tree, read_rows_file
from marin.speedrun.tracks import TRACKS, Cost, Track, other_track


@dataclasses.dataclass(frozen=True)
class Section:
    """The rows of one evaluation set, best first."""

    evaluation_set: str
    evaluation_digest: str | None
    rows: tuple[Row, ...]


@dataclasses.dataclass(frozen=True)
class TrackBoard:
    """One track: its entries, best first, and those that were a record when they came, oldest first."""

    track: Track
    entries: tuple[Entry, ...]
    records: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True)
class Board:
    """Every track, those of other runs after the contest's own, and what could not be read."""

    tracks: tuple[TrackBoard, ...]
    unreadable: tuple[Unreadable, ...]
    sections: tuple[Section, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for section in self.sections for row in section.rows)


def collect(results_dirs: Sequence[str | os.PathLike[str]], rows_files: Sequence[str | os.PathLike[str]] = ()) -> Board:
    """The board of every results file below the directories and every row of the lists.

    Raises:
        ResultsError: if a directory or list does not exist. Whatever is wrong inside them stands on the board instead.
    """
    rows: list[Row] = []
    unreadable: list[Unreadable] = []
    for item in _read(results_dirs, rows_files):
        if isinstance(item, Row):
            rows.append(item)
        else:
            unreadable.append(item)
    return build_board(rows, unreadable)


def _read(
    results_dirs: Sequence[str | os.PathLike[str]], rows_files: Sequence[str | os.PathLike[str]]
) -> Iterator[Row | Unreadable]:
    for directory in results_dirs:
        yield from read_results_tree(directory)
    for path in rows_files:
        yield from read_rows_file(path)


def build_board(rows: Iterable[Row], unreadable: Iterable[Unreadable] = (), tracks: Sequence[Track] = TRACKS) -> Board:
    """Merges copies, notes what is listed twice, and ranks each evaluation set."""
    by_set: dict[tuple[str, str | None], list[Row]] = {}
    for row in note_repeats(merge_copies(rows)):
        by_set.setdefault((row.evaluation_set, row.evaluation_digest), []).append(row)
    sections = [Section(name, digest, rank_rows(members)) for (name, digest), members in by_set.items()]
    sections.sort(key=lambda section: (
        section.evaluation_set != C4_EN, section.evaluation_set == NOT_EVALUATED, section.evaluation_set, section.evaluation_digest or ""
    ))  # fmt: skip
    rows = [row for section in sections for row in section.rows]
    return Board(
        tracks=build_tracks(rows, tracks),
        unreadable=tuple(sorted(unreadable, key=lambda item: (item.source, item.reason))),
        sections=tuple(sections),
    )


def build_tracks(rows: Sequence[Row], tracks: Sequence[Track] = TRACKS) -> tuple[TrackBoard, ...]:
    """The board of each track, and of the rows of no track by their evaluation set, so that every row stands somewhere."""
    members: dict[Track, list[Row]] = {track: [] for track in tracks}
    for row in rows:
        homes = [track for track in tracks if track.why_not(row) is None]
        for track in homes or [other_track(row.evaluation_set, row.evaluation_digest, row.main_metric)]:
            members.setdefault(track, []).append(row)
    first = len(tracks)
    boards = [rank_track(track, found) for track, found in members.items()]
    return tuple(boards[:first] + sorted(boards[first:], key=lambda board: board.track.key))


def rank_track(track: Track, rows: Iterable[Row]) -> TrackBoard:
    """Entries of a track, ranked by its objective: those that its gates or their verdict exclude follow, without a rank."""
    entries = entries_of(track, rows)
    records, judged = timeline(track, entries)
    entries = [with_statistics(track, entry, judged[entry.key]) for entry in entries]
    entries.sort(key=lambda entry: (not entry.counts, *_figures(track, entry), entry.name, entry.key))
    places = pareto_frontier([_point(track, entry) for entry in entries])
    ranked: list[Entry] = []
    for place, (entry, on_frontier) in enumerate(zip(entries, places, strict=True), start=1):
        figure = _figures(track, entry)[0]
        rank = None
        if entry.counts and figure < float("inf"):
            before = ranked[-1] if ranked else None
            rank = before.rank if before and figure == _figures(track, before)[0] else place
        ranked.append(dataclasses.replace(entry, rank=rank, on_frontier=on_frontier))
    by_key = {entry.key: entry for entry in ranked}
    return TrackBoard(track, tuple(ranked), tuple(by_key[key] for key in records))


def _figures(track: Track, entry: Entry) -> tuple[float, float]:
    """What a track ranks by, and what decides between equals; less is better, and unknown last."""
    cost, quality = entry.values[track.cost], entry.values[track.metric]
    paid = float("inf") if cost is None else cost
    missed = float("inf") if quality is None else -quality if track.higher_is_better else quality
    return (paid, missed) if track.objective == "least cost" else (missed, paid)


def _point(track: Track, entry: Entry) -> tuple[float | None, float | None]:
    quality = entry.values[track.metric]
    if not entry.counts or quality is None:
        return (None, None)
    return (entry.values[track.cost], -quality if track.higher_is_better else quality)


def frontier_changes(board: TrackBoard) -> tuple[FrontierChange, ...]:
    """Who was on a track's frontier when: its entries by their dates. Entries without a date have no place in history."""
    points = []
    for entry in board.entries:
        cost, quality = _point(board.track, entry)
        if cost is not None and quality is not None and entry.date is not None and sortable_date(entry.date):
            points.append((entry.date, entry.key, cost, quality))
    return frontier_history(points)


def best_under(board: TrackBoard, budget: float, cost: Cost | None = None) -> tuple[Entry, ...]:
    """The entries that cost at most `budget`, best quality first: the answer to "what is best under N FLOPs".

    Args:
        cost: which cost; the track's own where it is left out.
    """
    name = cost or board.track.cost
    sign = -1.0 if board.track.higher_is_better else 1.0
    within = []
    for entry in board.entries:
        paid, quality = entry.values[name], entry.values[board.track.metric]
        if entry.counts and paid is not None and quality is not None and paid <= budget:
            within.append((sign * quality, paid, entry.name, entry.key, entry))
    return tuple(item[-1] for item in sorted(within, key=lambda item: item[:4]))


# --- comparing ----------------------------------------------------------------------------------------------------


def rank_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of one evaluation set, best bits per byte first, with their ranks (equal values share one) and the frontier."""
    ordered = sorted(rows, key=_order)
    places = pareto_frontier(
        [(row.training_hardware_flops, row.bits_per_byte) if row.counts else (None, None) for row in ordered]
    )
    ranked, rank, previous = [], 0, None
    for place, row in enumerate((row for row in ordered if row.counts and row.bits_per_byte is not None), start=1):
        rank = rank if row.bits_per_byte == previous else place
        previous = row.bits_per_byte
        ranked.append((id(row), rank))
    ranks = dict(ranked)
    return tuple(
        dataclasses.replace(row, rank=ranks.get(id(row)), on_frontier=on_frontier)
        for row, on_frontier in zip(ordered, places, strict=True)
    )


def _order(row: Row) -> tuple[object, ...]:
    unknown = float("inf")
    bits = row.bits_per_byte if row.bits_per_byte is not None else unknown
    cost = row.training_hardware_flops if row.training_hardware_flops is not None else unknown
    return (bits, cost, row.run_name, row.source, json.dumps(row.to_json(), sort_keys=True, default=str))
