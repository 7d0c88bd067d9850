"""Submissions below a directory: every `speedrun_results.json` of every era, verified with the evidence that lies beside it.

Directories are walked in a fixed order, and no link is followed out of them.
"""

import functools
import os
import pathlib
import re
from collections.abc import Iterator

from marin.errors import ResultsError
from marin.speedrun import results
from marin.speedrun.row_store import RowStore, list_directory
from marin.speedrun.rows import Row, Unreadable, rows_of
from marin.speedrun.verification import Context, Submission, verify_read


def read_results_tree(
    directory: str | os.PathLike[str], context: Context | None = None, store: RowStore | None = None
) -> Iterator[Row | Unreadable]:
    """Rows of every `speedrun_results.json` anywhere below a directory.

    Args:
        context: what submissions are held against, such as the keys whose statements count.
        store: where rows of submissions that were verified before are kept.
    Raises:
        ResultsError: if there is no such directory.
    """
    root = pathlib.Path(directory)
    if not root.is_dir():
        raise ResultsError(
            f"{root}: no such directory: give the directory that holds {results.FILE_NAME} files, such as the prefix"
        )
    problems: list[Unreadable] = []
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
            path = pathlib.Path(directory, results.FILE_NAME)
            verify = functools.partial(_verify, path, root, context)
            source = path.relative_to(root).as_posix()
            yield from verify() if store is None else store.rows_of(directory, source, listing, verify)
    yield from problems


def _verify(path: pathlib.Path, root: pathlib.Path, context: Context | None) -> list[Row | Unreadable]:
    return list(read_results_file(path, root, context))


def read_results_file(
    path: pathlib.Path, root: pathlib.Path, context: Context | None = None
) -> Iterator[Row | Unreadable]:
    """Rows of one submission, named by its directory below `root`."""
    source = path.relative_to(root).as_posix()
    try:
        runs = verify_read(Submission.read(path.parent), context)
    except ResultsError as error:
        yield Unreadable(source, str(error).removeprefix(f"{path}: "))
        return
    name = path.parent.relative_to(root).as_posix().removeprefix("checkpoints/speedrun/")
    name = root.resolve().name if name == "." else re.sub(r"-speedrun_results-[0-9a-f]{8}$", "", name)
    for number, (info, verdict) in enumerate(runs, start=1):
        yield from rows_of(info, name if len(runs) == 1 else f"{name}#{number}", source, verdict=verdict)
