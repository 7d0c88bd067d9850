"""The leaderboard: rows of every source, without copies, ranked and put on the Pareto frontier.

Rows are compared only within an evaluation set, since bits per byte on different texts say nothing about each other. A
row whose figures contradict each other is listed with the reasons, and takes no rank and no place on the frontier.
Every order is fixed by the content, never by the file system.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence

from marin.garbage import without_collecting
from marin.speedrun.board.arrivals import Arrivals
from marin.speedrun.board.copies import Arrival, hold_copied_results, merge_copies, note_repeats, unknown_arrival
from marin.speedrun.board.entries import Entry, Evidence, changed, entries_of, evidence_at_depths
from marin.speedrun.board.file_names import Named, names_in_files
from marin.speedrun.board.pareto import pareto_frontier
from marin.speedrun.board.records import Came, placed, timeline, unknown_time
from marin.speedrun.board.row_store import RowStore
from marin.speedrun.board.rows import Row, Unreadable
from marin.speedrun.importers import read_list, read_results_tree
from marin.speedrun.tracks import TRACKS, Track, other_track


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
    rows: tuple[Row, ...] = ()

    def track(self, key: str) -> TrackBoard:
        """The board of one track."""
        return next(board for board in self.tracks if board.track.key == key)


@without_collecting()
def collect(
    results_dirs: Sequence[str | os.PathLike[str]],
    rows_files: Sequence[str | os.PathLike[str]] = (),
    *,
    cache: str | os.PathLike[str] | None = None,
    allowed_signers: str | os.PathLike[str] | None = None,
) -> Board:
    """The board of every results file below the directories and every row of the lists.

    Args:
        rows_files: other people's records; see `marin.speedrun.importers.read_list`.
        cache: a directory of our own where verified rows are kept by the digest of what was verified.
        allowed_signers: a file of the keys whose statements count.
    Raises:
        ResultsError: if a directory or list does not exist. Whatever is wrong inside them stands on the board instead.
    """
    store = None if cache is None else RowStore(cache, allowed_signers)
    found: list[Row | Unreadable] = []
    for number, directory in enumerate(results_dirs):
        for item in read_results_tree(directory, allowed_signers, store):
            # Two directories may have files at the same relative place, which are two arrivals.
            found.append(dataclasses.replace(item, searched=number) if number and isinstance(item, Row) else item)
    for path in rows_files:
        found += read_list(path, store)
    if store is not None:
        store.save()
    rows = [item for item in found if isinstance(item, Row)]
    unreadable = [item for item in found if isinstance(item, Unreadable)]
    arrivals = Arrivals(results_dirs)
    return build_board(rows, unreadable, arrival=arrivals, came=arrivals.time)


def build_board(
    rows: Iterable[Row],
    unreadable: Iterable[Unreadable] = (),
    tracks: Sequence[Track] = TRACKS,
    arrival: Arrival = unknown_arrival,
    came: Came = unknown_time,
) -> Board:
    """Merges copies, notes what is listed twice, and ranks each evaluation set.

    Args:
        arrival: tells which of two rows of one run came first.
        came: tells when a row's run came to the board, for records.
    """
    merged = hold_copied_results(note_repeats(merge_copies(rows, arrival)), arrival)
    merged.sort(key=lambda row: (row.run_name, row.source, row.digest, row.evaluation_set, row.evaluation_digest or ""))
    return Board(
        tracks=build_tracks(merged, tracks, came),
        unreadable=tuple(sorted(unreadable, key=lambda item: (item.source, item.reason))),
        rows=tuple(merged),
    )


def build_tracks(
    rows: Sequence[Row], tracks: Sequence[Track] = TRACKS, came: Came = unknown_time
) -> tuple[TrackBoard, ...]:
    """The board of each track, and of the rows of no track by their evaluation set, so that every row stands somewhere."""
    members: dict[Track, list[Row]] = {track: [] for track in tracks}
    for row in rows:
        homes = [track for track in tracks if track.why_not(row) is None]
        for track in homes or [_other_track(row)]:
            members.setdefault(track, []).append(row)
    first = len(tracks)
    evidence = evidence_at_depths(rows)
    named = names_in_files(rows)
    boards = [rank_track(track, found, evidence, came, named) for track, found in members.items()]
    return tuple(boards[:first] + sorted(boards[first:], key=lambda board: board.track.key))


def _other_track(row: Row) -> Track:
    metric = row.main_metric
    # Centered on other baselines, an accuracy is another figure. What is neither version is wrong, and takes no rank.
    version = "v2" if metric == "core" and row.core_version == "v2" else None
    return other_track(row.evaluation_set, row.evaluation_digest, metric, version)


def rank_track(
    track: Track,
    rows: Iterable[Row],
    evidence: Evidence | None = None,
    came: Came = unknown_time,
    named: Named | None = None,
) -> TrackBoard:
    """Entries of a track, ranked by its objective: those that its gates or their verdict exclude follow, without a rank."""
    entries = entries_of(track, rows, evidence, named)
    records, judged = timeline(track, entries, came)
    counts = {entry.key: entry.counts for entry in entries}
    figures = {entry.key: track.standing(entry.values) for entry in entries}
    entries.sort(key=lambda entry: (not counts[entry.key], figures[entry.key], entry.name, entry.key))
    places = pareto_frontier([_point(track, entry) for entry in entries])
    ranked: list[Entry] = []
    for place, (entry, on_frontier) in enumerate(zip(entries, places, strict=True), start=1):
        rank = None
        if counts[entry.key] and figures[entry.key][0] < float("inf"):
            before = ranked[-1] if ranked else None
            tied = before is not None and figures[entry.key][0] == figures[before.key][0]
            rank = before.rank if before is not None and tied else place
        made = placed(track, entry, judged[entry.key], rank, on_frontier)
        ranked.append(changed(made, came=records[entry.key]) if made.is_record else made)
    by_key = {entry.key: entry for entry in ranked}
    return TrackBoard(track, tuple(ranked), tuple(by_key[key] for key in records))


def _point(track: Track, entry: Entry) -> tuple[float | None, float | None]:
    quality = entry.values[track.metric]
    if not entry.counts or quality is None:
        return (None, None)
    return (entry.values[track.cost], -quality if track.higher_is_better else quality)
