"""Readers of other people's records, and of our own: each gives rows, and an `Unreadable` with the reason for what it cannot read."""

import os
from collections.abc import Sequence

from marin.errors import ResultsError
from marin.speedrun.board.row_store import RowStore
from marin.speedrun.board.rows import Row, Unreadable
from marin.speedrun.importers.modded_nanogpt import ENDINGS, read_modded_logs
from marin.speedrun.importers.nanochat import read_nanochat_table
from marin.speedrun.importers.public_rows import read_rows_file
from marin.speedrun.importers.results_tree import read_results_tree

__all__ = ["read_list", "read_modded_logs", "read_nanochat_table", "read_results_tree", "read_rows_file"]


def read_list(path: str | os.PathLike[str], store: RowStore | None = None) -> Sequence[Row | Unreadable]:
    """Rows of somebody else's record, told by its name.

    `.json` is the public site's list, `.md` a leaderboard table of nanochat's kind, `.txt`, `.log` or a directory logs of
    modded-nanogpt.

    Args:
        store: where rows that were read before are kept.
    Raises:
        ResultsError: if it does not exist, or has another ending.
    """
    name = os.fspath(path)
    if name.endswith(".json"):
        return list(read_rows_file(path, store))
    if not name.endswith((".md", *ENDINGS)) and not os.path.isdir(path):
        raise ResultsError(
            f"{name}: not a list that can be read: give the public site's .json, a .md table of nanochat's, or .txt logs of modded-nanogpt"
        )

    def read() -> list[Row | Unreadable]:
        return list(read_nanochat_table(path) if name.endswith(".md") else read_modded_logs(path))

    return read() if store is None else store.rows_of_list(path, read)
