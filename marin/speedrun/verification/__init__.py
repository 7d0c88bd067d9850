"""Verifying submissions: a verdict on each rung of the ladder, with reasons, and nothing of a submission executed."""

from marin.speedrun.verification.submission import LogFiles, Statement, Submission, tree_problems
from marin.speedrun.verification.verify import verify_read, verify_submission

__all__ = ["LogFiles", "Statement", "Submission", "tree_problems", "verify_read", "verify_submission"]
