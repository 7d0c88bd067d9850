"""When a commit was made, as a git clone at hand says; the clone is asked by the commit's name alone."""

import os
import re
from collections.abc import Callable

from marin.git import git_output


def is_clone(directory: str | os.PathLike[str]) -> bool:
    """Whether git knows commits at a directory."""
    return git_output(directory, "rev-parse", "--git-dir") is not None


def commit_times(repository: str | os.PathLike[str]) -> Callable[[str], float | None]:
    """A function from a commit's full name to its time in seconds since 1970; None where the clone has no such commit."""

    def found(commit: str) -> float | None:
        if not re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", commit):
            return None
        said = git_output(repository, "show", "--no-patch", "--format=%ct", commit, "--")
        try:
            return None if said is None else float(said)
        except ValueError:
            return None

    return found
