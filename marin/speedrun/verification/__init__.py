"""Verifying submissions: a verdict on each rung of the ladder, with reasons, and nothing of a submission executed."""

from marin.speedrun.verification.known_runs import KnownRun
from marin.speedrun.verification.submission import Submission
from marin.speedrun.verification.verify import Context, known_runs_of, verify_read, verify_submission

__all__ = [
    "Context",
    "KnownRun",
    "Submission",
    "known_runs_of",
    "verify_read",
    "verify_submission",
]
