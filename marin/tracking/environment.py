"""Where and from what a run was started: commit, uncommitted changes, host, package versions, command."""

import getpass
import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from marin import hardware
from marin.execution.provenance import GIT_DIFF
from marin.execution.redaction import redact

# Packages whose version can change a number that a run reports.
_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "tokenizers", "tensorstore", "orbax-checkpoint", "zstandard")


def _git(*arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_code_directory(), capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _code_directory() -> Path:
    """Where the program that runs lies: that is the code that counts, wherever it was started from."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()


def git_state() -> tuple[dict[str, Any], bytes]:
    """Commit, branch, whether files differ from it, and the difference itself (empty outside a repository)."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain")
    if commit is None or status is None:
        return {"commit": None, "dirty": None, "diff_sha256": None}, b""
    diff = _git(*GIT_DIFF) or b""
    return {
        "commit": commit.decode().strip(),
        "dirty": bool(status.strip()),
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
    }, diff


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide a run's numbers, where installed."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def capture_environment() -> tuple[dict[str, Any], bytes]:
    """What `run.json` says about the machine and the code, and the uncommitted diff to keep beside it."""
    git, diff = git_state()
    return {
        "git": git,
        "host": hardware.host_info(),
        "user": _user(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "command": redact([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }, diff


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None
