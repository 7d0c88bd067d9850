"""Paths in a run's record: relative to the run, so that a record tells nothing of the machine and a store can be moved whole."""

import os
import posixpath
from pathlib import Path
from typing import Any

from marin.execution.attempts import usual_path
from marin.storage import files


def recorded_paths(value: Any, run: str) -> Any:
    """A config as JSON in which each absolute path of this machine is told from the directory `run`.

    Addresses of other stores stay as they are, and so do paths that share nothing with `run` but the root.
    """
    if isinstance(value, dict):
        return {key: recorded_paths(item, run) for key, item in value.items()}
    if isinstance(value, list):
        return [recorded_paths(item, run) for item in value]
    if not isinstance(value, str) or not files.is_local(run) or not os.path.isabs(value):
        return value
    here, there = _usual(run), _usual(value)
    if os.path.commonpath([here, there]) == os.path.abspath(os.sep):
        return value
    relative = os.path.relpath(there, here).replace(os.sep, "/")
    return relative if relative.startswith("..") else f"./{relative}"


def recorded_path(value: str, run: str | Path) -> str:
    """The path that `recorded_paths` wrote into the record of `run`; what earlier versions wrote is taken as it is."""
    if value.partition("/")[0] not in (".", ".."):
        return value
    return posixpath.normpath(posixpath.join(_usual(str(run)), value))


def _usual(path: str) -> str:
    return usual_path(os.path.abspath(path.removeprefix("file://")))
