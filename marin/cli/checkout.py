"""Where the repository is, and what git knows about it and its user."""

import pathlib
import shutil
import subprocess
import tomllib

import marin
from marin.errors import ConfigError


def run_quietly(command: list[str], directory: pathlib.Path | None = None, seconds: float = 10) -> str | None:
    """A program's standard output, stripped; None if it is not there, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def _is_checkout(directory: pathlib.Path) -> bool:
    try:
        project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(project.get("project", {}).get("name") == "marin")


def find_checkout() -> pathlib.Path | None:
    """The repository's root: around the working directory, else where this package was imported from; else None."""
    here = pathlib.Path.cwd()
    imported_from = pathlib.Path(marin.__file__).resolve().parents[1]
    return next((path for path in (here, *here.parents, imported_from) if _is_checkout(path)), None)


def require_checkout() -> pathlib.Path:
    """`find_checkout`.

    Raises:
        ConfigError: if there is none.
    """
    root = find_checkout()
    if root is None:
        raise ConfigError("this is not inside a clone of Marin: cd into one, or make one with `git clone`")
    return root


def git_config(key: str, directory: pathlib.Path | None = None) -> str | None:
    """A value of git's config as seen from `directory`; None where it is unset or git is missing."""
    return run_quietly(["git", "config", "--get", key], directory) or None
