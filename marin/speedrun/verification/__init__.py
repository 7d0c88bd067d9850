"""Verifying submissions: a verdict on each rung of the ladder, with reasons, and nothing of a submission executed."""

from marin.speedrun.verification.known_runs import KnownRun
from marin.speedrun.verification.submission import LogFiles, Statement, Submission, tree_problems
from marin.speedrun.verification.verify import Context, known_runs_of, verify_read, verify_submission

__all__ = [
    "Context",
    "KnownRun",
    "LogFiles",
    "Statement",
    "Submission",
    "known_runs_of",
    "tree_problems",
    "verify_read",
    "verify_submission",
]
