"""Where and from what a run was started: commit, uncommitted changes, host, package versions, command."""

import hashlib
import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

from marin import hardware
from marin.execution.provenance import GIT_DIFF, code_directory, git, git_output, user
from marin.execution.redaction import redact

# Packages whose version can change a number that a run reports.
_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "tokenizers", "tensorstore", "orbax-checkpoint", "zstandard")


def git_state() -> tuple[dict[str, Any], bytes]:
    """Commit, whether files differ from it, and the difference itself (empty outside a repository)."""
    directory = code_directory()
    commit, status = git(directory, "rev-parse", "HEAD"), git(directory, "status", "--porcelain")
    if commit is None or status is None:
        return {"commit": None, "dirty": None, "diff_sha256": None}, b""
    diff = git_output(directory, *GIT_DIFF) or b""
    return {
        "commit": commit,
        "dirty": bool(status),
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
    state, diff = git_state()
    return {
        "git": state,
        "host": hardware.host_info(),
        "user": user(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "command": redact([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }, diff
