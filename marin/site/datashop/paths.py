"""Paths that a person types into the page: which may be read, and whether there is anything that can be."""

import contextlib
import itertools
import os
import re
from collections.abc import Sequence

from marin.data import inputs
from marin.data.formats import Row, rows_of_json_lines
from marin.errors import DataError

_NAME_A_FOLDER = "name another folder with --data DIR when you start `marin datashop`."
_REMOTE = ("gs://", "s3://", "hf://", "https://")
_FILES, _ROWS = 10, 20  # that are looked at


def path_problem(path: str, folders: Sequence[str]) -> str:
    """Why these files may not be read; "" if they may."""
    is_remote = path.startswith(_REMOTE) and path.partition("://")[2].strip("/") != ""
    if "\0" in path or len(path) > 4000 or ("://" in path and not is_remote):
        return f"Give a path on this machine, or a URL that begins with {', '.join(_REMOTE[:-1])} or {_REMOTE[-1]}."
    if is_remote:
        return ""
    if not os.path.isabs(path) or ".." in path.split("/"):
        return "Give the whole path, from / on and without `..`."
    is_there = os.path.exists(path)
    # A pattern may only begin below a folder that may be read: `/srv/data*/x` would also match beside /srv/data.
    fixed = path if is_there else os.path.dirname(re.split(r"[*?\[]", path, maxsplit=1)[0])
    if not _is_below(os.path.realpath(fixed), folders):
        return f"This page may only read below {' and '.join(folders)}: {_NAME_A_FOLDER}"
    try:
        matches = _matches(path)
        outside = _first_outside(matches, folders)
    except DataError as error:
        return f"{str(error)[:300]}."
    except (OSError, ValueError, re.error):
        return "This path or pattern cannot be read: check what it matches."
    if outside is not None:
        return f"{outside[:200]} is a link out of {' and '.join(folders)}, which this page may not follow: {_NAME_A_FOLDER}"
    if not matches:
        return "This folder is empty." if is_there else "There is no file at this path."
    if not any(inputs.format_of(match)[0] for match in matches):
        return f"There is no file here that can be read: use {inputs.KNOWN_ENDINGS}."
    return _field_problem(matches)


def _field_problem(matches: Sequence[str]) -> str:
    """What the first JSON lines lack; "" if nothing. A run would read all of them before it could say so."""
    kinds = [inputs.format_of(match)[0] for match in matches]
    if set(kinds) - {"jsonl", None}:
        return ""
    fields: list[str] = []
    for match in itertools.islice(sorted(match for match, kind in zip(matches, kinds, strict=True) if kind), _FILES):
        try:
            with contextlib.closing(rows_of_json_lines(match)) as rows:
                found = [row.fields for row in itertools.islice(rows, _ROWS) if isinstance(row, Row)]
        except DataError as error:
            return f"{str(error)[:300]}."
        if not found or any(isinstance(each.get("text"), str) for each in found):
            return ""
        fields = fields or [str(name)[:40] for name in found[0]]
    return (
        f"No row has a text in the field `text` (fields: {', '.join(fields[:10]) or 'none'}): upload the files, where another"
        " field can be named, or rename it."
    )


def _is_below(real: str, folders: Sequence[str]) -> bool:
    return any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in folders)


def _first_outside(matches: Sequence[str], folders: Sequence[str]) -> str | None:
    """The first of the files that a run would read that lies outside, as links can lead anywhere."""
    may_read: dict[str, bool] = {}
    for match in matches:
        above = os.path.dirname(match)
        if above not in may_read:
            may_read[above] = _is_below(os.path.realpath(above), folders)
        if not may_read[above] or (os.path.islink(match) and not _is_below(os.path.realpath(match), folders)):
            return match
    return None


def _matches(path: str) -> list[str]:
    """What `marin.data.inputs` finds there: the file, the files of the folder, or what fits the pattern."""
    return [path] if os.path.isfile(path) else list(inputs.local_files(path))
