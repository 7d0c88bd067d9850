"""When a run came to the board, as git has it: the place, on the first-parent line of the branch, of the change that brought it.

What a file says of its own date, and the date of an author's commit, are the author's to choose. The order in which the branch took
changes in is not: that of its merges, or of squashed commits. A file that was there before brings a run that is put into it later
no age: it came with the first version of its file that holds it.
"""

import functools
import os
import re
from collections.abc import Iterable, Sequence

from marin.errors import ResultsError
from marin.git import git_output
from marin.speedrun.board.rows import Row
from marin.speedrun.results import FILE_NAME, MAX_BYTES, MAX_VALUES, RunInfo, parse_results, timestamp
from marin.speedrun.strict_json import parse_json

_COMMIT = re.compile(r"\x01([0-9a-f]{40,64}) (\d+) ([0-9a-f ]*)")  # its name, time and parents
_NOT_YET = 1 << 62  # of a run that no commit has: after all that have one


class Arrivals:
    """A row's place in time; git is asked when the first row is.

    Rows of lists and of directories that are in no repository, or not all in one, have none. In a shallow clone all that its oldest
    commit holds came at once.

    Args:
        directories: those that rows' sources are relative to.
    """

    def __init__(self, directories: Sequence[str | os.PathLike[str]]) -> None:
        self._directories = [os.fspath(directory) for directory in directories]
        self._versions: dict[str, list[tuple[int, str]]] | None = None
        self._prefixes: tuple[str, ...] = ()
        self._top = ""
        self._times: dict[str, str | None] = {}
        self._runs = functools.lru_cache(maxsize=64)(self._runs_of)

    def __call__(self, row: Row) -> int | None:
        """The number of changes to submissions that the branch took in up to the one that brought the row's run, or None."""
        path, versions = self._versions_of(row)
        if versions is None:
            return None
        held = (place for place, commit in versions if _holds(self._runs(commit, path), row))
        return next(held, _NOT_YET)

    def time(self, row: Row) -> str | None:
        """When the branch took in the change that brought the row's run, as results write a time.

        None where git does not say: what the oldest commit holds came at some time before.
        """
        path, versions = self._versions_of(row)
        if not versions:
            return None
        held = (commit for _, commit in versions if len(versions) == 1 or _holds(self._runs(commit, path), row))
        commit = next(held, None)
        return None if commit is None else self._times[commit]

    def _versions_of(self, row: Row) -> tuple[str, list[tuple[int, str]] | None]:
        """The path of a row's file in the repository, and its versions; None where nobody knows."""
        if not row.listed and self._versions is None:
            self._versions = self._read()
        if row.listed or self._versions is None or not self._prefixes:
            return "", None
        path = self._prefixes[row.searched] + row.source
        return path, self._versions.get(path, [])

    def _read(self) -> dict[str, list[tuple[int, str]]]:
        """The places and commits that added or changed each results file of the branch, oldest first, by its path in the repository."""
        tops = {git_output(directory, "rev-parse", "--show-toplevel") for directory in self._directories}
        top = tops.pop() if len(tops) == 1 else None
        if top is None:
            return {}
        self._top = os.fsdecode(top).removesuffix("\n")
        log = git_output(
            self._top, "log", "--first-parent", "-m", "--reverse", "--format=%x01%H %ct %p", "--diff-filter=AMT", "--no-renames",
            "--name-only", "-z", "--", f":(glob)**/{FILE_NAME}",
        )  # fmt: skip
        if log is None:  # no commit yet
            return {}
        prefixes = (git_output(directory, "rev-parse", "--show-prefix") for directory in self._directories)
        self._prefixes = tuple(os.fsdecode(prefix or b"").removesuffix("\n") for prefix in prefixes)
        versions: dict[str, list[tuple[int, str]]] = {}
        place, commit = 0, ""
        for token in os.fsdecode(log).split("\0"):
            if (head := _COMMIT.fullmatch(token)) is not None:
                place, commit = place + 1, head[1]
                self._times[commit] = timestamp(int(head[2])) if head[3] else None
            elif token:
                versions.setdefault(token.removeprefix("\n"), []).append((place, commit))
        return versions

    def _runs_of(self, commit: str, path: str) -> tuple[RunInfo, ...]:
        """The runs of a version of a file; none where it is not readable as results."""
        content = git_output(self._top, "cat-file", "blob", f"{commit}:{path}")
        try:
            return tuple(parse_results(parse_json(content or b"", path, MAX_BYTES, MAX_VALUES), path))
        except ResultsError:
            return ()


def _holds(runs: Iterable[RunInfo], row: Row) -> bool:
    """Whether a row's run is among these: its log is, or where one of them has none its time and score are."""
    for info in runs:
        if row.log_digest is not None and info.log_digest is not None:
            if info.log_digest == row.log_digest:
                return True
            continue
        scores = (info.c4_en_bpb, info.evaluation.bits_per_byte if info.evaluation else None)
        if info.training_time == row.training_time and row.bits_per_byte in scores and info.core_metric == row.core:
            return True
    return False
