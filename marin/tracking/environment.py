"""Where and from what a run was started: commit, uncommitted changes, host, package versions, command."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from marin import hardware
from marin.execution.provenance import code_directory, code_state, user
from marin.execution.redaction import redact
from marin.execution.source_files import is_user_file
from marin.git import git, git_output

# Packages whose version can change a number that a run reports.
_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "tokenizers", "tensorstore", "orbax-checkpoint", "zstandard")
_PACKAGE = Path(__file__).resolve().parents[1]
_MOST_NAMED = 100  # of files that are not as in the commit


def git_state() -> tuple[dict[str, Any], bytes]:
    """Commit, whether files differ from it, which of them this process has loaded, and the difference itself (empty outside a repository)."""
    directory = code_directory()
    state = code_state(directory)
    commit, diff = state.commit, state.diff
    if commit is None or state.dirty is None:
        return {"commit": None, "dirty": None, "diff_sha256": None, "loaded_unlike": []}, b""
    unlike = loaded_unlike(directory, commit)
    marins = git(_PACKAGE, "rev-parse", "HEAD")
    if marins not in (None, commit):  # the experiment lies in another clone than Marin
        unlike += loaded_unlike(_PACKAGE, str(marins))
    return {
        "commit": commit,
        "dirty": state.dirty or bool(unlike),
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
        "loaded_unlike": unlike[:_MOST_NAMED],
    }, diff


def loaded_unlike(directory: Path, commit: str) -> list[str]:
    """Files of the checkout whose code this process has loaded, and that the commit does not have so; sorted, relative to its root.

    What `git status` says can be told otherwise: by ignored files, by marks in the index, filters and hooks. Here bytes are compared. An
    installed package that lies in the checkout is none of its files.
    """
    root = git(directory, "rev-parse", "--show-toplevel")
    listing = None if root is None else git_output(Path(root), "--no-replace-objects", "ls-tree", "-r", "-z", commit)
    if root is None or listing is None:
        return []
    entries = (entry.partition("\t") for entry in listing.decode(errors="surrogateescape").split("\0") if entry)
    committed = {path: described.split()[2] for described, _, path in entries}
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = _real_files(file for file in loaded if file)
    within = (file for file in files if file.startswith(os.path.join(root, "")))
    own = (Path(file) for file in within if is_user_file(file) or _is_of_marins_checkout(Path(file)))
    names = {path.relative_to(root).as_posix(): path for path in own}
    return sorted(
        name for name, path in names.items() if committed.get(name) not in _blobs(path, committed.get(name, ""))
    )


def _real_files(files: Iterable[str]) -> set[str]:
    """As `os.path.realpath` of each, which asks for every folder above a file again."""
    folder = functools.cache(os.path.realpath)
    found = (os.path.join(folder(os.path.dirname(file)), os.path.basename(file)) for file in files)
    return {os.path.realpath(path) if os.path.islink(path) else path for path in found}


def _is_of_marins_checkout(path: Path) -> bool:
    return path.is_relative_to(_PACKAGE) and not {"site-packages", "dist-packages"} & set(path.parts)


def _blobs(path: Path, like: str) -> set[str | None]:
    """The names that git may give a file's bytes, in the same format as another name; None for a file that is gone.

    On Windows git may write lines that end in CRLF where the commit's end in LF; to Python they are the same source.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return {None}
    digest = hashlib.sha256 if len(like) == 64 else hashlib.sha1
    forms = (content, content.replace(b"\r\n", b"\n")) if path.suffix == ".py" else (content,)
    return {digest(b"blob %d\0" % len(form) + form).hexdigest() for form in forms}


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
