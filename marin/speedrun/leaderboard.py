"""The leaderboard: rows of every source, without copies, ranked and put on the Pareto frontier.

Rows are compared only within an evaluation set, since bits per byte on different texts say nothing about each other. A
row whose figures contradict each other is listed with the reasons, and takes no rank and no place on the frontier.
Every order is fixed by the content, never by the file system.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from marin.speedrun.entries import Entry, entries_of
from marin.speedrun.rows import C4_EN, NOT_EVALUATED, Row, Unreadable, read_results_tree, read_rows_file
from marin.speedrun.tracks import TRACKS, Track, other_track
from marin.speedrun.verdict import Finding


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
    for row in _note_repeats(_merge_copies(rows)):
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
    """Entries of a track, ranked by its objective."""
    sign = -1.0 if track.higher_is_better else 1.0
    unknown = float("inf")

    def quality(entry: Entry) -> float | None:
        value = entry.values[track.metric]
        return None if value is None else sign * value

    def figures(entry: Entry) -> tuple[float, float]:
        value, cost = quality(entry), entry.values[track.cost]
        pair = (unknown if value is None else value, unknown if cost is None else cost)
        return pair if track.objective != "least cost" else (pair[1], pair[0])

    ordered = sorted(entries_of(track, rows), key=lambda entry: (*figures(entry), entry.name, entry.key))
    places = pareto_frontier(
        [(entry.values[track.cost], quality(entry)) if entry.counts else (None, None) for entry in ordered]
    )
    ranked, rank, previous, place = [], 0, None, 0
    for entry, on_frontier in zip(ordered, places, strict=True):
        key = figures(entry)[0]
        if entry.counts and key != unknown:
            place += 1
            rank = rank if key == previous else place
            previous = key
            ranked.append(dataclasses.replace(entry, rank=rank, on_frontier=on_frontier))
        else:
            ranked.append(entry)
    return TrackBoard(track, tuple(ranked), ())


# --- copies -------------------------------------------------------------------------------------------------------


def _facts(row: Row) -> tuple[object, ...]:
    return (
        row.run_link,
        row.bits_per_byte,
        row.training_time,
        row.training_hardware_flops,
        row.model_flops,
        row.model_size,
    )


def _merge_copies(rows: Iterable[Row]) -> list[Row]:
    """One row for each run, however often its file lies around; the fullest account of it, in the deepest directory."""
    merged = _merge_by(lambda row: (row.digest, row.run_name if row.listed else None, row.evaluation_set), rows)
    # Two names for one run page are two claims; a results file and its own row in a list are one.
    return _merge_by(
        lambda row: (row.run_name, row.evaluation_set, row.evaluation_digest, _facts(row)) if row.run_link else id(row),
        merged,
    )


def _merge_by(key: Callable[[Row], Hashable], rows: Iterable[Row]) -> list[Row]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    merged = []
    for group in groups.values():
        group.sort(key=lambda row: (row.listed, -row.source.count("/"), row.source))
        elsewhere = {path for row in group for path in (row.source, *row.also_at)} - {group[0].source}
        merged.append(dataclasses.replace(group[0], also_at=tuple(sorted(elsewhere))))
    return merged


def _note_repeats(rows: list[Row]) -> list[Row]:
    """Adds a warning where one public run page backs several entries of an evaluation set."""
    by_link: dict[tuple[str, str | None, str], list[Row]] = {}
    for row in rows:
        if row.run_link:
            by_link.setdefault((row.evaluation_set, row.evaluation_digest, row.run_link), []).append(row)
    noted = []
    for row in rows:
        group = by_link.get((row.evaluation_set, row.evaluation_digest, row.run_link or ""), [])
        others = sorted(f"{other.run_name} ({other.source})" for other in group if other is not row)
        if others:
            same = all(_facts(other) == _facts(row) for other in group)
            how = "with the same figures" if same else "with other figures"
            message = f"the same run page also backs {', '.join(others[:3])}, {how}"
            row = dataclasses.replace(
                row, findings=(*row.findings, Finding("submission", "warning", "wandb_run_link", message))
            )
        noted.append(row)
    return noted


# --- comparing ----------------------------------------------------------------------------------------------------


def dominates(a: tuple[float | None, float | None], b: tuple[float | None, float | None]) -> bool:
    """Whether `a` is at least as good as `b` in cost and quality and better in one; unknown values dominate nothing."""
    if a[0] is None or a[1] is None or b[0] is None or b[1] is None:
        return False
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def pareto_frontier(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """For each (cost, bits per byte): whether nothing dominates it. Equal points share the fate; an unknown value is off."""
    known = sorted({point for point in points if point[0] is not None and point[1] is not None})
    frontier: set[tuple[float | None, float | None]] = set()
    best = float("inf")
    for cost, quality in known:  # by cost, then by quality: only a strictly better quality earns a place
        if quality is not None and quality < best:
            frontier.add((cost, quality))
            best = quality
    return [point in frontier for point in points]


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
