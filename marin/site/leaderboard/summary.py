"""What the site says about an entry in one line: the table's cells, the API's summaries and the downloads share it.

Texts are kept as their authors wrote them; whoever shows them escapes them. Addresses of authors are cleaned here, once: what is
not a plain http(s) link is None.
"""

from typing import Literal

from typing_extensions import TypedDict

from marin.site import wording
from marin.site.leaderboard.timeline import day_of
from marin.speedrun.board.entries import Entry
from marin.speedrun.verdict import Rung, Verdict

State = Literal["ranked", "held", "withdrawn", "challenged"]


class SpreadSummary(TypedDict):
    """Statistics of the runs of an entry in its track's metric; null is unknown."""

    n: int
    mean: float
    sd: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    noise_from: str | None


class EntrySummary(TypedDict):
    """One line of a track's table. A figure that is null was not stated; it is never zero."""

    key: str
    track: str
    name: str
    author: str
    affiliation: str
    author_url: str | None
    description: str
    date: str | None
    family: str | None
    optimizer: str | None
    hardware: str | None
    model_size: int | None
    rank: int | None
    on_frontier: bool
    is_record: bool
    state: State
    reasons: list[str]
    rung: Rung | None
    open_rungs: list[Rung]
    significant: bool | None
    values: dict[str, float | None]
    spread: SpreadSummary | None
    run_links: list[str]
    git_commits: list[str]
    seeds: list[int]
    page: str


def state_of(entry: Entry) -> State:
    if entry.verdict.withdrawn is not None:
        return "withdrawn"
    if not entry.counts:
        return "held"
    return "challenged" if entry.verdict.challenged is not None else "ranked"


def is_held(entry: EntrySummary) -> bool:
    """Whether it is listed without a rank for what was found or said of it."""
    return entry["state"] in ("held", "withdrawn")


def reasons_of(entry: Entry) -> list[str]:
    """Why an entry has no rank, or what was said against it."""
    verdict = entry.verdict
    said = [f"withdrawn: {verdict.withdrawn}"] if verdict.withdrawn is not None else []
    said += [f"challenged: {verdict.challenged}"] if verdict.challenged is not None else []
    said += entry.not_ranked
    if not verdict.counts:
        said += [
            finding.message
            for rung in verdict.rungs if rung.outcome == "failed"
            for finding in rung.findings if finding.severity == "error"
        ]  # fmt: skip
    return said


def significance_of(verdict: Verdict) -> bool | None:
    """Whether the runs support the claim by the track's test; None where it was not asked."""
    outcome = verdict["statistics"].outcome
    return None if outcome == "open" else outcome == "passed"


def summarize(entry: Entry) -> EntrySummary:
    spread = entry.spread
    return EntrySummary(
        key=entry.key,
        track=entry.track,
        name=entry.name,
        author=entry.author,
        affiliation=entry.affiliation,
        author_url=wording.safe_url(entry.author_url),
        description=entry.description,
        date=day_of(entry.date),
        family=entry.family,
        optimizer=entry.optimizer,
        hardware=entry.hardware,
        model_size=entry.model_size,
        rank=entry.rank,
        on_frontier=entry.on_frontier,
        is_record=entry.is_record,
        state=state_of(entry),
        reasons=reasons_of(entry),
        rung=entry.verdict.level,
        open_rungs=list(entry.verdict.passed_over),
        significant=significance_of(entry.verdict),
        values=dict(entry.values),
        spread=None if spread is None else SpreadSummary(
            n=spread.n, mean=spread.mean, sd=spread.sd, standard_error=spread.standard_error, low=spread.low, high=spread.high,
            noise_from=spread.noise_from,
        ),
        run_links=[url for row in entry.rows if (url := wording.safe_url(row.run_link)) is not None],
        git_commits=sorted({row.git_commit for row in entry.rows if row.git_commit}),
        seeds=[row.seed for row in entry.rows if row.seed is not None],
        page=f"entries/{entry.key}.html",
    )  # fmt: skip
