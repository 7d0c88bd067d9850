"""When a commit was made, as a git clone at hand says; the clone is asked by the commit's name alone."""

import os
import re
import subprocess
from collections.abc import Callable


def is_clone(directory: str | os.PathLike[str]) -> bool:
    """Whether git knows commits at a directory."""
    try:
        done = subprocess.run(
            ["git", "-C", os.fspath(directory), "rev-parse", "--git-dir"], capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def commit_times(repository: str | os.PathLike[str]) -> Callable[[str], float | None]:
    """A function from a commit's full name to its time in seconds since 1970; None where the clone has no such commit."""

    def found(commit: str) -> float | None:
        if not re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", commit):
            return None
        try:
            done = subprocess.run(
                ["git", "-C", os.fspath(repository), "show", "--no-patch", "--format=%ct", commit, "--"],
                capture_output=True,
                timeout=20,
                check=False,
            )
            return float(done.stdout) if done.returncode == 0 else None
        except (OSError, ValueError, subprocess.SubprocessError):
            return None

    return found
