"""From a submission to one verdict a run: the rungs in their order, each with its findings.

Importing this costs no JAX, and verifying executes nothing: the rungs `re-evaluated` and `re-run` are climbed by signed
statements of others alone. `marin verify --evaluate` and `--rerun` make such statements.
"""

import dataclasses
import datetime
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

from marin.errors import ResultsError
from marin.speedrun.arithmetic import consistency, core_counts, form
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import RUNGS, Finding, Outcome, Rung, RungVerdict, Verdict
from marin.speedrun.verification import architecture, statements, texts
from marin.speedrun.verification.claims import check_claims
from marin.speedrun.verification.curves import Curves, compare_curves
from marin.speedrun.verification.judgement import judge
from marin.speedrun.verification.known_runs import KnownRun, check_against, known_authors
from marin.speedrun.verification.log_agreement import check_agreement, check_evaluation_link
from marin.speedrun.verification.log_times import check_times
from marin.speedrun.verification.run_log import RunLog, parse_log
from marin.speedrun.verification.seeds import check_seeds
from marin.speedrun.verification.submission import LogFiles, Submission

_TIME_TRAVEL = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True)
class Context:
    """What a submission is held against.

    Args:
        known: runs that are on the board already; the submission's own must not be among them.
        allowed_signers: the repository's file of keys whose statements count.
        commit_time: gives when a commit was made, in seconds since 1970, or None where that is not known.
        now: None for the time of the call.
    """

    known: Sequence[KnownRun] = ()
    allowed_signers: str | os.PathLike[str] | None = None
    commit_time: Callable[[str], float | None] | None = None
    now: datetime.datetime | None = None


def verify_submission(path: str | os.PathLike[str], context: Context | None = None) -> list[tuple[RunInfo, Verdict]]:
    """Each run of a submission with its verdict, in the order of its results file.

    Args:
        path: the submission's directory, or the results file in it.
    Raises:
        ResultsError: if the results file cannot be read; then not even the first rung is reached.
    """
    return verify_read(Submission.read(path), context)


def verify_read(submission: Submission, context: Context | None = None) -> list[tuple[RunInfo, Verdict]]:
    """The same of a submission that was read already."""
    context = context or Context()
    now = context.now or datetime.datetime.now(datetime.UTC)
    logs = [_parsed(files) for files in submission.logs]
    curves = [Curves.of(log) if isinstance(log, RunLog) else None for log in logs]
    seeds = check_seeds(submission.runs)
    authors = known_authors(context.known)
    checked = statements.check_statements(submission, context.allowed_signers) if submission.statements else []
    verdicts = []
    for number, run in enumerate(submission.runs):
        log = logs[number]
        found = [*submission.problems, *submission.findings[number], *texts.check_texts(run, authors)]
        unknown = architecture.not_recomputable(log) if isinstance(log, RunLog) else None
        found += [*consistency.check(run, unknown), *check_claims(run), *_check_date(run, now), *seeds[number]]
        found += check_against(run, curves[number], context.known, has_log=isinstance(log, RunLog))
        for k, other in enumerate(submission.runs[:number]):
            found += core_counts.same_scores(run, other, f"run {k}")
        found += check_evaluation_link(run, log if isinstance(log, RunLog) else None)
        if isinstance(log, Finding):
            found.append(log)
        elif log is not None:
            committed = context.commit_time(log.run.git.commit) if context.commit_time and log.run.git.commit else None
            found += _check_log(run, log, now, committed)
            found += _check_kin(submission.runs, curves, number)
        found += _by_others(submission.runs, number, checked)
        verdicts.append((run, _verdict(found, submission)))
    return verdicts


def known_runs_of(path: str | os.PathLike[str], source: str | None = None) -> list[KnownRun]:
    """The runs of a submission as others are held against them; `source` is what they are called, by default the path.

    Raises:
        ResultsError: if the results file cannot be read.
    """
    submission = Submission.read(path)
    name = source or pathlib.Path(path).as_posix()
    found = []
    for number, (run, files) in enumerate(zip(submission.runs, submission.logs, strict=True)):
        log = _parsed(files)
        called = name if len(submission.runs) == 1 else f"{name}#{number}"
        found.append(KnownRun(called, run, Curves.of(log) if isinstance(log, RunLog) else None))
    return found


def _parsed(files: LogFiles | None) -> RunLog | Finding | None:
    if files is None:
        return None
    try:
        log = parse_log(files)
    except ResultsError as error:
        return Finding("log", "error", files.name, str(error))
    if not log.record.events:
        return Finding("log", "error", files.name, f"{files.name}: metrics.jsonl is empty")
    return log


def _check_log(run: RunInfo, log: RunLog, now: datetime.datetime, committed: float | None) -> list[Finding]:
    found = [*check_agreement(run, log), *architecture.check_architecture(log)]
    return found if not log.record.of("end") else [*found, *check_times(log, now, committed)]


def _check_kin(runs: Sequence[RunInfo], curves: Sequence[Curves | None], number: int) -> Iterable[Finding]:
    """The log against those of the submission's runs before it."""
    mine = curves[number]
    for k, theirs in enumerate(curves[:number]):
        if mine is not None and theirs is not None:
            same = texts.same_name(runs[number].author.name, runs[k].author.name)
            yield from compare_curves(mine, theirs, f"run {k}", same_author=same)


def _check_date(run: RunInfo, now: datetime.datetime) -> Iterable[Finding]:
    done = form.parse_timestamp(run.run_completion_timestamp)
    if done is not None and done > now + _TIME_TRAVEL:
        message = f"the run was completed {run.run_completion_timestamp}, which has not come yet"
        yield Finding("arithmetic", "error", "run_completion_timestamp", message)


def _by_others(runs: Sequence[RunInfo], number: int, checked: Sequence[statements.Checked]) -> Iterable[Finding]:
    """What signed statements of others say about the run."""
    for item in checked:
        if item.kind in (None, "claim"):
            said = f"{item.name}: " + (f"claimed and signed by {item.signer}" if item.signer else f"{item.problem}")
            yield Finding("submission", "note" if item.signer else "warning", "statements", said)
            continue
        rung: Rung = "re-evaluated" if item.kind == "re-evaluation" else "re-run"
        if item.signer is None or item.predicate is None:
            yield Finding(rung, "unchecked", item.name, f"{item.name} does not count: {item.problem}")
            continue
        assert item.kind is not None
        judgement = judge(runs, number, item.predicate.measured, item.kind)
        if judgement is None:
            continue
        said = f"{item.signer} {judgement.words}"
        if not item.predicate.confirmed or judgement.outcome == "differs":
            yield Finding(rung, "error", item.name, f"{said}: not confirmed")
        elif item.of_older_results:
            yield Finding(rung, "unchecked", item.name, f"{said}: of a results file that was changed since")
        elif judgement.outcome == "undecided":
            yield Finding(rung, "unchecked", item.name, f"{said}: not decided")
        else:
            yield Finding(rung, "note", item.name, said)


def _verdict(findings: list[Finding], submission: Submission) -> Verdict:
    rungs = tuple(_rung(rung, findings) for rung in RUNGS)
    return Verdict(rungs=rungs, challenged=submission.challenged, withdrawn=submission.withdrawn)


def _rung(rung: Rung, findings: list[Finding]) -> RungVerdict:
    """What is said about the form of a submission stands with the first rung, which an error of form leaves open."""
    own = tuple(f for f in findings if f.rung == rung or (rung == "parsed" and f.rung == "submission"))
    severities = {finding.severity for finding in own if finding.rung == rung}
    outcome: Outcome = "passed"
    if "error" in severities:
        outcome = "failed"
    elif rung in ("re-evaluated", "re-run"):
        outcome = "passed" if "note" in severities else "open"
    elif (
        rung == "statistics"
        or "unchecked" in severities
        or any(f.rung == "submission" and f.severity == "error" for f in own)
    ):
        outcome = "open"
    return RungVerdict(rung=rung, outcome=outcome, findings=own)
