"""Rows that say the same: one run however often its file lies around, one run page behind several entries, and copied results.

A copied result is a row with another's run page, log or training time to the last digit. Of such rows the one that git had first stands
(`marin.speedrun.board.arrivals`): what a file says of its own date is the copier's to choose. Where git cannot say, the one stands that was
verified further, and of published rows without a log the earlier one; where nothing decides, all are held. What was said of a row, a
challenge or a withdrawal, is said of its author's other rows of the same run too.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator

from marin.speedrun.arithmetic.consistency import Status
from marin.speedrun.arithmetic.findings import significant_digits
from marin.speedrun.board.rows import Row
from marin.speedrun.results import plain_name
from marin.speedrun.verdict import LADDER, Finding, Outcome, Rung, RungVerdict

Arrival = Callable[[Row], int | None]  # when a row's file came, as a number that grows; None where nobody knows


_SCHEME = re.compile(r"^https?://(www\.)?")
_RUN_PAGE = re.compile(r"[^?]*/runs/[^/?]+")


@functools.lru_cache(maxsize=1 << 15)  # each row is asked twice
def page_of(link: str | None) -> str | None:
    """A run page's address without what may differ for one page: scheme, www, and of W&B's query and what follows the run's name."""
    if not link:
        return None
    plain = _SCHEME.sub("", link.strip().lower(), count=1).partition("#")[0].rstrip("/")
    run = _RUN_PAGE.match(plain)
    return (run[0] if run else plain) or None


def unknown_arrival(row: Row) -> int | None:
    """For rows of which nobody knows when they came."""
    return None


def _facts(row: Row) -> tuple[object, ...]:
    return (
        row.run_link,
        row.bits_per_byte,
        row.training_time,
        row.training_hardware_flops,
        row.model_flops,
        row.model_size,
    )


def merge_copies(rows: Iterable[Row], arrival: Arrival = unknown_arrival) -> list[Row]:
    """One row for each run, however often its file lies around.

    It stands in the directory that came first; there, or anywhere if that is not known, the file that was verified furthest names it,
    of equals the one in the deepest directory.
    """
    merged = _merge_by(
        lambda row: (row.digest, row.run_name if row.listed else None, row.evaluation_set), rows, arrival
    )
    # Two names for one run page are two claims; a results file and its own row in a list are one.
    return _merge_by(
        lambda row: (row.run_name, row.evaluation_set, row.evaluation_digest, _facts(row)) if row.run_link else id(row),
        merged,
        arrival,
    )


def _merge_by(key: Callable[[Row], Hashable], rows: Iterable[Row], arrival: Arrival) -> list[Row]:
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [group[0] if len(group) == 1 else _merged(group, arrival) for group in groups.values()]


def _merged(group: list[Row], arrival: Arrival) -> Row:
    came = {id(row): arrival(row) for row in group}
    ordered = sorted(group, key=lambda row: (row.listed, -row.level, -row.source.count("/"), row.source))
    known = [row for row in ordered if came[id(row)] is not None]
    speaking = ordered
    if known:
        # Anybody can lay a copy, or a notice beside one, into a directory of his own: only the one that came first speaks.
        first = min(known, key=lambda row: came[id(row)] or 0)
        speaking = [row for row in ordered if _top(row) == _top(first)]
    elsewhere = {path for row in group for path in (row.source, *row.also_at)} - {speaking[0].source}
    return _with_notices(dataclasses.replace(speaking[0], also_at=tuple(sorted(elsewhere))), speaking)


def _top(row: Row) -> tuple[int, str]:
    return row.searched, row.source.split("/")[0]


def _with_notices(row: Row, others: Iterable[Row]) -> Row:
    """The row with the challenge and the withdrawal of others, where it has none of its own."""
    verdict = row.verdict
    said = {
        name: next((text for other in others if (text := getattr(other.verdict, name)) is not None), None)
        for name in ("challenged", "withdrawn")
        if getattr(verdict, name) is None
    }
    said = {name: text for name, text in said.items() if text is not None}
    return dataclasses.replace(row, verdict=verdict.model_copy(update=said)) if said else row


def note_repeats(rows: list[Row]) -> list[Row]:
    """Adds a warning where one public run page backs several entries of an evaluation set."""
    by_link: dict[tuple[str, str | None, str], list[Row]] = {}
    pages = [page_of(row.run_link) for row in rows]
    for row, page in zip(rows, pages, strict=True):
        if page:
            by_link.setdefault((row.evaluation_set, row.evaluation_digest, page), []).append(row)
    noted = []
    for row, page in zip(rows, pages, strict=True):
        group = by_link.get((row.evaluation_set, row.evaluation_digest, page or ""), [])
        if len(group) > 1:
            others = sorted(f"{other.run_name} ({other.source})" for other in group if other is not row)
            same = all(_facts(other) == _facts(row) for other in group)
            how = "with the same figures" if same else "with other figures"
            message = f"the same run page also backs {', '.join(others[:3])}, {how}"
            row = _with_finding(row, "parsed", Finding("submission", "warning", "wandb_run_link", message))
        noted.append(row)
    return noted


def _with_finding(row: Row, rung: Rung, finding: Finding) -> Row:
    """The row with a finding more, in its verdict too; an error fails the rung."""
    outcome: Outcome = "failed" if finding.severity == "error" else row.verdict[rung].outcome
    changed = RungVerdict(rung=rung, outcome=outcome, findings=(*row.verdict[rung].findings, finding))
    rungs = tuple(changed if found.rung == rung else found for found in row.verdict.rungs)
    verdict = row.verdict.model_copy(update={"rungs": rungs})
    status: Status = "does not add up" if finding.severity == "error" else row.status
    return dataclasses.replace(row, findings=(*row.findings, finding), verdict=verdict, status=status)


# --- copied results -----------------------------------------------------------------------------------------------

_ALL_DIGITS = 9  # significant digits from which a time in seconds is that of one run alone
_ALL_DIGITS_OF_A_SCORE = 12  # of runs by ten thousand, one pair in millions agrees so far by chance
_SCORE = "bits_per_byte"


def hold_copied_results(rows: list[Row], arrival: Arrival = unknown_arrival) -> list[Row]:
    """Adds an error to rows that are another row's run: somebody else's, on other hardware, or their author's own a second time."""
    rows = list(rows)
    groups = list(_groups_of_one_run(rows))
    for _, group in groups:
        _join_notices(rows, group)
    copied = _Copied(rows, arrival)
    for field, group in groups:
        copied.look_at(field, group)
    held = copied.held
    return [_with_finding(row, "arithmetic", held[index]) if index in held else row for index, row in enumerate(rows)]


def _groups_of_one_run(rows: list[Row]) -> Iterator[tuple[str, list[int]]]:
    """The rows, two or more, that share what no two runs share."""
    keys: dict[str, Callable[[Row], Hashable | None]] = {
        "wandb_run_link": lambda row: page_of(row.run_link),
        "training_time": lambda row: row.training_time or None,
        "digests.metrics_log": lambda row: row.log_digest,
        _SCORE: _score_key,
    }
    for field, key in keys.items():
        groups: dict[Hashable, list[int]] = {}
        for index, row in enumerate(rows):
            value = key(row)
            if value is not None:
                groups.setdefault(value, []).append(index)
        yield from ((field, group) for group in groups.values() if len(group) > 1 and _tells(field, rows[group[0]]))


def _score_key(row: Row) -> Hashable | None:
    return (row.evaluation_set, row.evaluation_digest, row.bits_per_byte) if row.bits_per_byte else None


def _tells(field: str, row: Row) -> bool:
    """Whether a figure that rows share is long enough to be of one run; to write down each row's would take longer than all else here."""
    if field == "training_time":
        return significant_digits(row.training_time or 0) >= _ALL_DIGITS
    return field != _SCORE or significant_digits(row.bits_per_byte or 0) >= _ALL_DIGITS_OF_A_SCORE


def _join_notices(rows: list[Row], group: list[int]) -> None:
    by_owner: dict[tuple[str, str | None], list[int]] = {}
    for index in group:
        if not rows[index].listed:
            by_owner.setdefault(_owner(rows[index]), []).append(index)
    for own in by_owner.values():
        speaking = [rows[index] for index in own if rows[index].verdict.challenged or rows[index].verdict.withdrawn]
        for index in own if speaking else ():
            rows[index] = _with_notices(rows[index], speaking)


class _Copied:
    """The rows that are held, by their places, each with why: what all groups of one run come to."""

    def __init__(self, rows: list[Row], arrival: Arrival) -> None:
        self._rows, self._arrival = rows, arrival
        self.held: dict[int, Finding] = {}

    def look_at(self, field: str, group: list[int]) -> None:
        """Holds those of a group that may not stand; its rows share a `field` that no two runs share."""
        owners = {_owner(self._rows[index]) for index in group}
        authors = {author for author, _ in owners}
        hardware = {name for _, name in owners if name is not None}
        if len(authors) < 2 and len(hardware) < 2:
            # A page may show several runs of one author, and old rows name it for more.
            if field not in ("wandb_run_link", _SCORE):
                self._hold_repeated(field, group)
        elif len(authors) > 1 or field != _SCORE:
            self._hold_copies_of_withdrawn(field, group)
            self._hold_all_but_the_first(field, [index for index in group if index not in self.held])

    def _hold_all_but_the_first(self, field: str, group: list[int]) -> None:
        if len(group) < 2:
            return
        standing = sorted((_standing(self._rows[index], self._arrival), index) for index in group)
        first, second = (self._rows[index] for _, index in standing[:2])
        undecided = standing[0][0] == standing[1][0] and _owner(first) != _owner(second)
        for _, index in standing if undecided else standing[1:]:
            row = self._rows[index]
            other = first if row is not first else second
            if _owner(row) == _owner(other) or index in self.held:
                continue
            # Who runs another's experiment again may get the same bits; the log says that he did.
            if field == _SCORE and (_has_log(row) or _author(row) == _author(other)):
                continue
            self.held[index] = _one_run(field, row, other)

    def _hold_copies_of_withdrawn(self, field: str, group: list[int]) -> None:
        """Of a run that its author withdrew no other author's copy stands, unless it came before; its author may hand it in corrected."""
        members = [self._rows[index] for index in group]
        gone = [row for row in members if row.verdict.withdrawn is not None and not _fails(row)]
        for index, row in zip(group, members, strict=True):
            if row.verdict.withdrawn is not None or (field == _SCORE and _has_log(row)):
                continue
            came = _standing(row, self._arrival)[1:]
            for one in gone:
                if _author(one) != _author(row) and _standing(one, self._arrival)[1:] <= came:
                    self.held.setdefault(index, _one_run(field, row, one))
                    break

    def _hold_repeated(self, field: str, group: list[int]) -> None:
        """Of an author's rows of one run in files of their own the first that counts stands; each has a row for each evaluation."""
        files = [index for index in group if not self._rows[index].listed]
        if not files:
            return
        first = self._rows[
            min(files, key=lambda index: (_standing(self._rows[index], self._arrival), self._rows[index].source))
        ]
        for index in files:
            if self._rows[index].digest != first.digest:
                self.held.setdefault(index, _one_run(field, self._rows[index], first))


def _one_run(field: str, row: Row, other: Row) -> Finding:
    what = {
        "wandb_run_link": "run page",
        "digests.metrics_log": "log",
        _SCORE: f"score of {row.bits_per_byte!r} bits per byte, for which there is no log,",
    }.get(field)
    what = what or f"training time of {row.training_time!r} s"
    whose = f"{other.run_name} by {other.author}" + (f" on {other.hardware}" if other.hardware else "")
    return Finding("arithmetic", "error", field, f"the {what} is that of {whose}: one run counts once"[:500])


def _author(row: Row) -> str:
    return plain_name(row.author)


def _owner(row: Row) -> tuple[str, str | None]:
    # Files from before processors were named say less of the same run.
    return (_author(row), row.platform if row.platform == "cpu" else row.hardware)


def _standing(row: Row, arrival: Arrival) -> tuple[bool, int, int, str]:
    """Less stands: what counts, then what came first, then what was verified further, then what says to be older.

    Rows of lists were published before anything that repeats them. A log's date is as good as its author, so it decides nothing.
    """
    came = arrival(row)
    first = -1 if row.listed and came is None else came
    return (not row.verdict.counts, 0 if first is None else first, -row.level, "" if _has_log(row) else row.date or "9")


def _fails(row: Row) -> bool:
    return not row.verdict.model_copy(update={"withdrawn": None}).counts


def _has_log(row: Row) -> bool:
    return row.level > LADDER.index("log")
