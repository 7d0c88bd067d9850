"""Readers of other people's records, and of our own: each gives rows, and an `Unreadable` with the reason for what it cannot read."""

import os
from collections.abc import Iterator

from marin.errors import ResultsError
from marin.speedrun.importers.modded_nanogpt import ENDINGS, read_modded_logs
from marin.speedrun.importers.nanochat import read_nanochat_table
from marin.speedrun.importers.public_rows import read_rows_file
from marin.speedrun.importers.results_tree import read_results_tree
from marin.speedrun.rows import Row, Unreadable

__all__ = ["read_list", "read_modded_logs", "read_nanochat_table", "read_results_tree", "read_rows_file"]


def read_list(path: str | os.PathLike[str]) -> Iterator[Row | Unreadable]:
    """Rows of somebody else's record, told by its name.

    `.json` is the public site's list, `.md` a leaderboard table of nanochat's kind, `.txt`, `.log` or a directory logs of
    modded-nanogpt.

    Raises:
        ResultsError: if it does not exist, or has another ending.
    """
    name = os.fspath(path)
    if name.endswith(".json"):
        return read_rows_file(path)
    if name.endswith(".md"):
        return read_nanochat_table(path)
    if name.endswith(ENDINGS) or os.path.isdir(path):
        return read_modded_logs(path)
    raise ResultsError(
        f"{name}: not a list that can be read: give the public site's .json, a .md table of nanochat's, or .txt logs of modded-nanogpt"
    )
