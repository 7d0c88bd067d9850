"""From a submission to one verdict a run: the rungs in their order, each with its findings.

Importing this costs no JAX, and verifying executes nothing: the rungs `re-evaluated` and `re-run` are climbed by signed
statements of others alone. `marin verify --evaluate` and `--rerun` make such statements.
"""

import os

from marin.speedrun import consistency
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import RUNGS, Finding, Outcome, Rung, RungVerdict, Verdict
from marin.speedrun.verification.submission import Submission


def verify_submission(path: str | os.PathLike[str]) -> list[tuple[RunInfo, Verdict]]:
    """Each run of a submission with its verdict, in the order of its results file.

    Args:
        path: the submission's directory, or the results file in it.
    Raises:
        ResultsError: if the results file cannot be read; then not even the first rung is reached.
    """
    return verify_read(Submission.read(path))


def verify_read(submission: Submission) -> list[tuple[RunInfo, Verdict]]:
    """The same of a submission that was read already."""
    verdicts = []
    for run, findings in zip(submission.runs, submission.findings, strict=True):
        found = [*submission.problems, *findings, *consistency.check(run)]
        verdicts.append((run, _verdict(found, submission)))
    return verdicts


def _verdict(findings: list[Finding], submission: Submission) -> Verdict:
    rungs = tuple(_rung(rung, findings) for rung in RUNGS)
    return Verdict(rungs=rungs, challenged=submission.challenged, withdrawn=submission.withdrawn)


def _rung(rung: Rung, findings: list[Finding]) -> RungVerdict:
    """What is said about the form of a submission stands with the first rung, which it does not decide."""
    own = tuple(f for f in findings if f.rung == rung or (rung == "parsed" and f.rung == "submission"))
    severities = {finding.severity for finding in own if finding.rung == rung}
    outcome: Outcome = "passed"
    if "error" in severities:
        outcome = "failed"
    elif "unchecked" in severities or rung not in ("parsed", "arithmetic"):
        outcome = "open"
    return RungVerdict(rung=rung, outcome=outcome, findings=own)
