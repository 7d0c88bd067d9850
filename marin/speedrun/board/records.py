"""What an entry claims, and whether its runs show it: gates, records, and the statistics rung of its verdict.

A record is an entry that was better than all before it when it came, by the test of its track, with as many runs as the track
asks for. It came when git says that the branch took its last run in, if that is later than the date that the run states, as that is
its author's to choose. On tracks of least cost the test is about the gate, and the cost is compared as stated: timing is checked by running
the previous record again on the same hardware, which no file can show.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from marin.speedrun.board.entries import Entry, changed
from marin.speedrun.board.rows import Row
from marin.speedrun.statistics.means import Sample, Test, beats, beats_bound, missing_seeds, too_close
from marin.speedrun.tracks import METRICS, Gate, Track
from marin.speedrun.verdict import Finding, Outcome, RungVerdict, Severity, Verdict

_LEAST_P = 1e-15
_DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d UTC)?")


@dataclasses.dataclass(frozen=True)
class Claim:
    """One thing that an entry's mean says, and whether its runs show it."""

    p_value: float | None
    shown: bool
    text: str


@dataclasses.dataclass(frozen=True)
class Judged:
    """An entry's claims, in the light of the record of its day."""

    claims: tuple[Claim, ...]
    is_record: bool


_NO_CLAIM = Judged((), is_record=False)

# When a row's run came to the board, as results write a time; None where nobody knows.
Came = Callable[[Row], str | None]


def unknown_time(row: Row) -> str | None:
    """For rows of which nobody knows when they came."""
    return None


def timeline(
    track: Track, entries: Sequence[Entry], came: Came = unknown_time
) -> tuple[dict[str, str], dict[str, Judged]]:
    """The keys of the records, oldest first, with the time when they came, and the claims of every entry by its key.

    An entry without a date that can be read takes no part in the history; it is compared with the last record.
    """
    dated: list[tuple[str, Entry]] = []
    undated: list[Entry] = []
    for entry in entries:
        if sortable_date(entry.date):
            dated.append((_since(entry, came), entry))
        else:
            undated.append(entry)
    dated.sort(key=lambda item: (item[0], item[1].date or "", *track.standing(item[1].values), item[1].key))
    records: dict[str, str] = {}
    last: Entry | None = None
    judged: dict[str, Judged] = {}
    for since, entry in dated:
        found = judge(track, entry, last)
        judged[entry.key] = found
        if found.is_record:
            last = entry
            records[entry.key] = since
    for entry in undated:
        found = judge(track, entry, last)
        judged[entry.key] = dataclasses.replace(found, is_record=False)
    return records, judged


def _since(entry: Entry, came: Came) -> str:
    times = [came(row) for row in entry.rows] if entry.counts else []
    return max(time for time in (entry.date, *times) if time is not None)


def sortable_date(date: str | None) -> bool:
    """Whether a date has the form whose order as text is that of time."""
    return date is not None and _DATE.fullmatch(date) is not None


def judge(track: Track, entry: Entry, record: Entry | None) -> Judged:
    """What an entry claims against the gates and against the record of its day."""
    sample = entry.spread
    if sample is None or not entry.counts:
        return _NO_CLAIM
    claims = [
        _gate_claim(track, sample, gate) for gate in track.gates if gate.of == "mean" and gate.field == track.metric
    ]
    if record is None:
        ahead = True
    elif track.objective == "least cost":
        ours, theirs = entry.values[track.cost], record.values[track.cost]
        ahead = ours is not None and theirs is not None and ours < theirs
    else:
        ahead = track.standing(entry.values)[0] < track.standing(record.values)[0]
        if ahead and record.spread is not None:
            claims.append(_record_claim(track, sample, record.spread, record))
    if not (ahead or claims):
        return _NO_CLAIM
    enough = sample.n >= track.min_runs
    costed = track.objective == "best quality" or entry.values[track.cost] is not None
    is_record = ahead and enough and costed and all(claim.shown for claim in claims)
    return Judged(tuple(claims), is_record)


def _gate_claim(track: Track, sample: Sample, gate: Gate) -> Claim:
    test = beats_bound(sample, gate.bound, higher_is_better=track.higher_is_better, noise=track.noise)
    return _claim(track, test, f"the bound {gate.bound:g}")


def _record_claim(track: Track, sample: Sample, theirs: Sample, record: Entry) -> Claim:
    test = beats(sample, theirs, higher_is_better=track.higher_is_better, noise=track.noise)
    return _claim(track, test, record.name[:80])


def _claim(track: Track, test: Test, named: str) -> Claim:
    shown = test.passes(track.p_value)
    head = f"the mean is {abs(test.difference):.3g} {'better' if test.difference > 0 else 'worse'} than {named}"
    if test.p_value is None:
        text = f"{head}, which cannot be told from chance: {test.reason}"
    else:
        errors = test.difference / test.standard_error if test.standard_error else float("inf")
        text = f"{head}, {errors:.2f} standard errors, {_p(test.p_value)}: {'shown' if shown else 'not shown'} at p < {track.p_value:g}"
        text += f" ({test.assumed})" if test.assumed else ""
    return Claim(test.p_value, shown, text)


def _p(value: float) -> str:
    """No test gives a p of 0, however far below all figures it lies."""
    return f"p = {value:.2g}" if value >= _LEAST_P else f"p < {_LEAST_P:g}"


# --- the statistics rung ------------------------------------------------------------------------------------------


def placed(track: Track, entry: Entry, judged: Judged, rank: int | None, on_frontier: bool) -> Entry:
    """The entry with its rank, and with the statistics rung in its verdict."""
    return changed(
        entry,
        verdict=_with_rung(_Same(entry.verdict), _Same(statistics_rung(track, entry, judged))),
        rank=rank,
        on_frontier=on_frontier,
        is_record=judged.is_record,
    )


class _Same:
    """An object that is known again by being the same one, as a hash of all that a verdict says takes a while."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@functools.lru_cache(maxsize=1024)  # of thousands of entries, most are told the same
def _with_rung(verdict: _Same, statistics: _Same) -> Verdict:
    rungs = [found for found in verdict.value.rungs if found.rung != "statistics"]
    challenged, withdrawn = verdict.value.challenged, verdict.value.withdrawn
    return Verdict(rungs=(*rungs, statistics.value), challenged=challenged, withdrawn=withdrawn)


def statistics_rung(track: Track, entry: Entry, judged: Judged) -> RungVerdict:
    """Whether its runs support what an entry says, with reasons."""
    sample = entry.spread
    if sample is None:
        return _rung("open", (("unchecked", f"no {METRICS[track.metric].name} is stated"),))
    found: list[tuple[Severity, str]] = []
    outcome: Outcome = "open" if sample.standard_error is None else "passed"
    if outcome == "open":
        found.append(
            ("unchecked", "one run and no noise model of the track: how much of the figure is chance is not known")
        )
    if sample.n < track.min_runs:
        outcome = "open"
        found.append((
            "warning", f"{sample.n} run{'s' if sample.n != 1 else ''}: a record of this track needs at least {track.min_runs}"
        ))  # fmt: skip
    for claim in judged.claims:
        if claim.p_value is None:
            outcome = "open" if outcome == "passed" else outcome
        elif not claim.shown:
            outcome = "failed"
        found.append(("note" if claim.shown else "warning", claim.text))
    probability = too_close(sample, track.noise)
    if probability is not None and sample.sd is not None and track.noise is not None:
        # A question to the author, no fault: chance does it too, and the test reckons with the model's noise whatever the runs show.
        found.append(("warning", (
            f"the {sample.n} runs lie closer together (sd {sample.sd:.2g}) than runs with different seeds do (sd {track.noise.sd:.2g}; "
            f"{_p(probability)}): copies, rounded figures or chosen from more, unless runs of this model differ less"
        )))  # fmt: skip
    if entry.elsewhere:
        runs = sum(number for _, number in entry.elsewhere)
        named = ", ".join(name[:80] for name, _ in entry.elsewhere[:3]) + (
            " and more" if len(entry.elsewhere) > 3 else ""
        )
        found.append(
            (
                "warning",
                f"{runs} more run{'s' if runs > 1 else ''} of this configuration stand{'' if runs > 1 else 's'} apart, as {named}: this mean is not that of all",
            )
        )
    gaps = missing_seeds([row.seed for row in entry.rows if row.seed is not None]) if len(entry.rows) > 1 else ()
    if gaps:
        named = ", ".join(map(str, gaps[:5])) + (" and more" if len(gaps) > 5 else "")
        found.append(("warning", f"seeds {named} are not there: were those runs left out?"))
    return _rung(outcome, tuple(found))


@functools.lru_cache(maxsize=1024)
def _rung(outcome: Outcome, found: tuple[tuple[Severity, str], ...]) -> RungVerdict:
    findings = tuple(Finding("statistics", severity, "runs", message) for severity, message in found)
    return RungVerdict(rung="statistics", outcome=outcome, findings=findings)
