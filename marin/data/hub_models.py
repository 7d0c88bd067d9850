"""Models of the Hugging Face hub, fetched once for a user and kept: `owner/name` or `owner/name@revision`.

They lie in `~/.cache/marin/hub/{owner}--{name}/{revision}` (`MARIN_HUB_CACHE` or `XDG_CACHE_HOME` move it), fetched as
`marin.data.hub` says. A name without a revision stands for the commit that was newest when it was first fetched here;
name a commit to have the same weights everywhere.
"""

import os
import re
import sys
from pathlib import Path

from marin.data.hub import LISTING, download_repo_files
from marin.errors import ConfigError
from marin.storage import files
from marin.storage.lease import Lease

# No pickled weights, no second copies in other formats, no code.
PATTERNS = (
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_NAME = re.compile(r"([\w.-]+)/([\w.-]+)(?:@([\w./-]+))?")
_COMPLETE = ".complete"


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form `owner/name[@revision]`; a path that begins with `.`, `~` or `/` has not."""
    return _NAME.fullmatch(name) is not None and not name.startswith(".")


def hub_model_folder(name: str) -> Path:
    """The folder with the model's config, safetensors and tokenizer; fetched if it is not here.

    Raises:
        ConfigError: `name` has another form.
        DataError: it cannot be fetched; the message says what to fetch by hand and where to put it.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"{name!r} is no model of the hub: use `owner/name` or `owner/name@revision`")
    owner, repository, revision = match.groups()
    folder = _cache() / f"{owner}--{repository}" / (revision or "main").replace("/", "--")
    if (folder / _COMPLETE).exists():
        return folder
    lease = Lease(str(folder.with_name(f".{folder.name}.lease")))
    with lease.acquire(announce=lambda line: print(line, file=sys.stderr)):
        if not (folder / _COMPLETE).exists():
            target = str(folder)
            download_repo_files(
                f"{owner}/{repository}", target, repo_type="model", revision=revision, patterns=PATTERNS
            )
            if (folder / LISTING).exists():  # files that were put here by hand are looked at again the next time
                commit = files.read_json(files.join(target, LISTING))["commit"]
                files.write_bytes(files.join(target, _COMPLETE), commit.encode())
                print(f"{name} is commit {commit}, kept in {folder}")
    return folder


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    cache = os.path.expanduser(os.environ.get("MARIN_HUB_CACHE") or os.path.join(base, "marin", "hub"))
    if cache.startswith("~"):  # a container's user, whom nothing gives a home directory
        raise ConfigError(
            "this user has no home directory to keep models of the hub in: set MARIN_HUB_CACHE to a folder"
        )
    return Path(cache)
