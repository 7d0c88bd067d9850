"""Whether this Python can run Marin: new enough, and with the packages.

A terminal in which the environment was not activated has another Python. What is started by hand looks here before it
imports anything else, so this file needs no package and no new Python.
"""

import importlib.util
import sys

_ADVICE = "activate the environment with `. .venv/bin/activate` (`make venv` makes it), and run the command again"
_OLDEST = (3, 11)
_OF_EVERY_PART = ("jaxtyping", "psutil")  # without them neither data nor steps can be imported


def require() -> None:
    """Ends the process with one line and status 2 where this Python can run nothing of Marin."""
    if sys.version_info < _OLDEST:
        _refuse(f"{sys.executable} is Python {sys.version.split()[0]}, Marin needs 3.11 or later: {_ADVICE}")
    for package in _OF_EVERY_PART:
        if importlib.util.find_spec(package) is None:
            _refuse(without(package))


def without(package: str) -> str:
    """What to say where a package of Marin's is not there."""
    return f"{sys.executable} has no package `{package}`: {_ADVICE}"


def _refuse(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
