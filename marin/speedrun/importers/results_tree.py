"""Submissions below a directory: every `speedrun_results.json` of every era, verified with the evidence that lies beside it.

Directories are walked in a fixed order, and no link is followed out of them.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from marin.errors import ResultsError
from marin.parts import WorkInParts
from marin.speedrun import results
from marin.speedrun.board.row_store import RowStore, list_directory
from marin.speedrun.board.rows import Row, Unreadable, rows_of


def read_results_tree(
    directory: str | os.PathLike[str],
    allowed_signers: str | os.PathLike[str] | None = None,
    store: RowStore | None = None,
) -> list[Row | Unreadable]:
    """Rows of every `speedrun_results.json` anywhere below a directory, then the directories that cannot be listed.

    Args:
        allowed_signers: a file of the keys whose statements count.
        store: where rows of submissions that were verified before are kept.
    Raises:
        ResultsError: if there is no such directory.
    """
    root = pathlib.Path(directory)
    if not root.is_dir():
        raise ResultsError(
            f"{root}: no such directory: give the directory that holds {results.FILE_NAME} files, such as the prefix"
        )
    found: dict[str, Sequence[Row | Unreadable] | None] = {}
    keys: dict[str, str | None] = {}
    problems: list[Unreadable] = []
    for place, listing in _submissions(root, problems):
        keys[place] = None if store is None else store.key_of(place, _source(place, root), listing)
        key = keys[place]
        found[place] = None if store is None or key is None else store.kept(key)
    missing = [place for place, rows in found.items() if rows is None]
    if missing:
        import marin.speedrun.verification  # noqa: F401  # a tenth of a second, once for all children
    verified = _Verified(root, allowed_signers, store)
    with WorkInParts(verified, missing, verified.verify):
        pass
    for place, (key, rows) in verified.rows.items():
        found[place] = rows
        # A submission that was changed meanwhile may have been read as neither the one nor the other.
        if store is not None and key is not None and key == keys[place]:
            store.keep(key, rows)
    return [row for rows in found.values() for row in rows or ()] + problems


def _submissions(root: pathlib.Path, problems: list[Unreadable]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
    """Directories that hold a results file, with what else they hold, a directory before what is in it."""
    pending = [os.fspath(root)]
    while pending:
        directory = pending.pop()
        try:
            listing = list_directory(directory)
        except OSError as error:
            reason = f"the directory cannot be listed ({error.strerror}): check its permissions"
            problems.append(Unreadable(os.path.relpath(directory, root), reason))
            continue
        # Attempts that are no output lie in a hidden one.
        inner = [entry for entry in listing if entry.name[0] != "." and entry.is_dir(follow_symlinks=False)]
        pending.extend(entry.path for entry in reversed(inner))
        if any(entry.name == results.FILE_NAME for entry in listing):
            yield directory, listing


def _source(place: str, root: pathlib.Path) -> str:
    return pathlib.Path(place, results.FILE_NAME).relative_to(root).as_posix()


class _Verified:
    """Rows by their directory, and what they are kept under as it was after they were read; see `marin.parts`."""

    def __init__(
        self, root: pathlib.Path, allowed_signers: str | os.PathLike[str] | None, store: RowStore | None
    ) -> None:
        self._root, self._signers, self._store = root, allowed_signers, store
        self.rows: dict[str, tuple[str | None, list[Row | Unreadable]]] = {}

    def verify(self, place: str) -> None:
        path = pathlib.Path(place, results.FILE_NAME)
        rows = list(read_results_file(path, self._root, self._signers))
        key = None
        if self._store is not None:
            with contextlib.suppress(OSError):
                key = self._store.key_of(place, _source(place, self._root), list_directory(place))
        self.rows[place] = (key, rows)

    def begin_part(self) -> None:
        self.rows = {}

    def part(self) -> dict[str, tuple[str | None, list[Row | Unreadable]]]:
        return self.rows

    def adopt(self, part: dict[str, tuple[str | None, list[Row | Unreadable]]]) -> None:
        self.rows |= part


def run_name_of(place: str) -> str:
    """What the board calls a run whose results lie at a place below what was searched: executor outputs without their hash."""
    return re.sub(r"-speedrun_results-[0-9a-f]{8}$", "", place.removeprefix("checkpoints/speedrun/"))


def module_of(directory: str | os.PathLike[str]) -> str:
    """The module of a submission's directory that trains it: `main`, or the first Python file of one that has no such."""
    if os.path.isfile(os.path.join(directory, "main.py")):
        return "main"
    found = sorted(path.stem for path in pathlib.Path(directory).glob("*.py") if path.stem != "__init__")
    return found[0] if found else "main"


def read_results_file(
    path: pathlib.Path, root: pathlib.Path, allowed_signers: str | os.PathLike[str] | None = None
) -> Iterator[Row | Unreadable]:
    """Rows of one submission, named by its directory below `root`."""
    from marin.speedrun.verification import Context, Submission, verify_read

    source = _source(os.fspath(path.parent), root)
    try:
        submission = Submission.read(path.parent)
        runs = verify_read(submission, Context(allowed_signers=allowed_signers))
    except ResultsError as error:
        yield Unreadable(source, str(error).removeprefix(f"{path}: "))
        return
    name = run_name_of(path.parent.relative_to(root).as_posix())
    name = root.resolve().name if name == "." else name
    for number, ((info, verdict), log) in enumerate(zip(runs, submission.logs, strict=True), start=1):
        shown = name if len(runs) == 1 else f"{name}#{number}"
        named = log.optimizer_class if log is not None else None
        yield from rows_of(info, shown, source, verdict=verdict, optimizer_class=named)
