"""Submissions below a directory: every `speedrun_results.json` of every era, verified with the evidence that lies beside it.

Directories are walked in a fixed order, and no link is followed out of them.
"""

import os
import pathlib
import re
from collections.abc import Iterator

from marin.errors import ResultsError
from marin.speedrun import results
from marin.speedrun.row_store import RowStore
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

    def failed(error: OSError) -> None:
        name = os.path.relpath(error.filename or root, root)
        problems.append(Unreadable(name, f"the directory cannot be listed ({error.strerror}): check its permissions"))

    for parent, names, file_names in os.walk(root, onerror=failed):
        names[:] = sorted(name for name in names if not name.startswith("."))  # attempts that are no output lie in one
        if results.FILE_NAME in file_names or results.FILE_NAME in names:
            path = pathlib.Path(parent, results.FILE_NAME)
            if store is None:
                yield from read_results_file(path, root, context)
            else:
                yield from store.rows_of(path, root, lambda path=path: list(read_results_file(path, root, context)))  # type: ignore[misc]
    yield from problems


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
