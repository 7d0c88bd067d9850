"""The two files of each entry, its document and its page, made again where something that they show has changed."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from marin.site.leaderboard import api, curves
from marin.site.leaderboard.differences import find_parents, settings_of
from marin.site.leaderboard.entry_page import EntryContext, Standing, page_values
from marin.site.leaderboard.measures import measures_of
from marin.site.leaderboard.output import SiteWriter, digest, digest_of
from marin.site.leaderboard.summary import EntrySummary
from marin.site.leaderboard.track_view import TrackView
from marin.speedrun.board.entries import Entry
from marin.speedrun.board.gain import gain_of, gain_text, rivals_of
from marin.speedrun.importers.results_tree import module_of
from marin.speedrun.verdict import RungVerdict, Verdict


class EntryFiles:
    """Writes an entry's files by its key; what several entries share is found out once.

    Args:
        roots: the directories that were searched; curves come from logs below them.
        render: makes a page from a template, its path and values.
        shared: a digest of what every page shows.
    """

    def __init__(
        self,
        writer: SiteWriter,
        views: Sequence[TrackView],
        roots: Sequence[str | os.PathLike[str]],
        render: Callable[..., str],
        shared: str,
    ) -> None:
        self.by_key: dict[str, Entry] = {}
        self._homes: dict[str, list[TrackView]] = {}
        for view in views:
            for entry in view.board.entries:
                self.by_key.setdefault(entry.key, entry)
                self._homes.setdefault(entry.key, []).append(view)
        self._writer, self._render, self._shared = writer, render, shared
        self._roots = [pathlib.Path(root).resolve() for root in roots]
        self._settings: Mapping[str, Mapping[str, str]] = {
            key: settings_of(entry) for key, entry in self.by_key.items()
        }
        self._parents = find_parents(self.by_key.values(), self._settings)
        self._rivals = {view.board.track.key: rivals_of(view.board.track, view.board.entries) for view in views}
        self._verdict_digests: dict[int, str] = {}  # many entries share a verdict

    def write(self, key: str) -> None:
        """Writes the document and the page of an entry, unless they are there as they would be made."""
        entry, homes = self.by_key[key], self._homes[key]
        first = homes[0]
        place = first.places[key]
        found = _curves(entry, self._roots)
        stated = [(row.run_name, row.source, row.also_at, row.digest, row.details_json) for row in entry.rows]
        # What the first track's test says is in the verdict.
        tested = [self._verdict_digest(entry.verdict), *(repr(_statistics(view, key)) for view in homes[1:])]
        said = [first.digests[place], [view.board.track.key for view in homes], tested, stated, repr(found)]
        path, inputs = f"data/entries/{key}.json", digest_of(said)
        if not self._writer.is_fresh(path, inputs):
            statistics = {view.board.track.key: _statistics(view, key) for view in homes}
            made = api.entry_document(entry, first.entries[place], statistics, found)
            self._writer.write(path, api.to_text(made), inputs)
        self._write_page(entry, found, inputs)

    def _write_page(self, entry: Entry, found: Sequence[curves.Curve], document: str) -> None:
        """Args:
        document: a digest of all that the entry's document says.
        """
        key = entry.key
        homes, parent = self._homes[key], self._parents.get(key)
        neighbours, module = _neighbours(homes[0], key), _module(entry, self._roots)
        metric, cost = homes[0].summary["metric"], homes[0].summary["cost"]
        gains = [self._gain(view, key) for view in homes]
        on_tracks = [(view.summary["key"], view.entries[view.places[key]]) for view in homes]
        shown = [
            [(one["key"], one["rank"], one["values"][metric], one["values"][cost]) for one in neighbours],
            [(track, own["rank"], own["on_frontier"]) for track, own in on_tracks], gains,
            None if parent is None else [parent.entry.key, parent.is_stated, sorted(self._settings[parent.entry.key].items())],
            entry.evidence, module,
        ]  # fmt: skip
        inputs = digest_of([self._shared, document, shown])
        path = f"entries/{key}.html"
        if not self._writer.is_fresh(path, inputs):
            standings = [
                Standing(view.summary, own, measures_of(view.board.track), _statistics(view, key), gain)
                for view, (_, own), gain in zip(homes, on_tracks, gains, strict=True)
            ]
            context = EntryContext(standings, neighbours, parent, self._settings, found, module)
            self._writer.write(path, self._render("entry.html.j2", path, **page_values(entry, context)), inputs)

    def _gain(self, view: TrackView, key: str) -> str | None:
        """What an entry on the frontier gains: of the others the neighbours say enough, and they are many to write again."""
        track, entry = view.board.track, _of(view, key)
        gain = gain_of(track, self._rivals[track.key], entry) if entry.on_frontier else None
        return None if gain is None else gain_text(track, entry, gain)

    def _verdict_digest(self, verdict: Verdict) -> str:
        found = self._verdict_digests.get(id(verdict))
        if found is None:
            found = self._verdict_digests[id(verdict)] = digest(api.to_text(api.verdict_json(verdict)).encode())
        return found


def _of(view: TrackView, key: str) -> Entry:
    """An entry as it stands on a track."""
    return view.board.entries[view.places[key]]


def _statistics(view: TrackView, key: str) -> RungVerdict:
    """What a track's test says of an entry."""
    return _of(view, key).verdict["statistics"]


def _curves(entry: Entry, roots: Sequence[pathlib.Path]) -> list[curves.Curve]:
    """The curves of an entry's runs, those of the first run first; nothing where no log came with it."""
    logs = [curves.find_log(roots, row) for row in entry.rows[:1] if not row.listed]
    return [curve for log in logs if log is not None for curve in curves.read_curves(log)]


def _module(entry: Entry, roots: Sequence[pathlib.Path]) -> str:
    """The module beside the results of an entry's first run, `main` where none lies there."""
    row = entry.rows[0]
    places = [] if row.listed or row.git_commit is None else [base / row.source for base in roots]
    return next((module_of(place.parent) for place in places if place.is_file()), "main")


def _neighbours(view: TrackView, key: str) -> list[EntrySummary]:
    """The ranked entries around one, two on each side."""
    place = view.places[key]
    if view.entries[place]["rank"] is None:
        return []
    return [entry for entry in view.entries[max(0, place - 2) : place + 3] if entry["rank"] is not None]
