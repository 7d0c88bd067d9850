"""When a submission came to the board, as git has it: its commit's place on the first-parent line of the branch.

What a file says of its own date, and the date of an author's commit, are the author's to choose. The order in which the branch took
changes in is not: that of its merges, or of squashed commits.
"""

import os
import re
import subprocess
from collections.abc import Sequence

from marin.speedrun.results import FILE_NAME
from marin.speedrun.rows import Row

_TIMEOUT = 120.0
_COMMIT = re.compile(r"\x01[0-9a-f]{40,64}")
_NOT_YET = 1 << 62  # of a file that no commit has: after all that have one


class Arrivals:
    """A row's place in time; git is asked when the first row is, and once.

    Rows of lists and of directories that are in no repository, or not all in one, have none. In a shallow clone all that its oldest
    commit holds came at once.

    Args:
        directories: those that rows' sources are relative to.
    """

    def __init__(self, directories: Sequence[str | os.PathLike[str]]) -> None:
        self._directories = [os.fspath(directory) for directory in directories]
        self._places: dict[str, int] | None = None
        self._prefixes: tuple[str, ...] = ()

    def __call__(self, row: Row) -> int | None:
        """The number of changes with new submissions that the branch took in before the row's file, or None."""
        if row.listed:
            return None
        if self._places is None:
            self._places = self._read()
        if not self._prefixes:
            return None
        return self._places.get(self._prefixes[row.searched] + row.source, _NOT_YET)

    def _read(self) -> dict[str, int]:
        """The place of each results file of the branch, by its path in the repository."""
        tops = {_git(directory, "rev-parse", "--show-toplevel") for directory in self._directories}
        top = tops.pop() if len(tops) == 1 else None
        if top is None:
            return {}
        log = _git(
            top.removesuffix("\n"), "log", "--first-parent", "-m", "--reverse", "--format=%x01%H", "--diff-filter=A", "--no-renames",
            "--name-only", "-z", "--", f":(glob)**/{FILE_NAME}",
        )  # fmt: skip
        if log is None:  # no commit yet
            return {}
        prefixes = (_git(directory, "rev-parse", "--show-prefix") for directory in self._directories)
        self._prefixes = tuple((prefix or "").removesuffix("\n") for prefix in prefixes)
        places: dict[str, int] = {}
        place = 0
        for token in log.split("\0"):
            if _COMMIT.fullmatch(token):
                place += 1
            elif token:
                places.setdefault(token.removeprefix("\n"), place)
        return places


def _git(directory: str, *arguments: str) -> str | None:
    """What git prints; None where it cannot be asked, or there is no repository."""
    try:
        done = subprocess.run(["git", "-C", directory, *arguments], capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None
