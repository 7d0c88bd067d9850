"""The prefix: the directory or store under which every step's output lies.

`--prefix` wins over `MARIN_PREFIX`, which wins over `local_store` in the working directory. A local prefix is made
absolute at once, so that a later change of directory cannot part a run's status from its data. A job on a cluster runs in a
copy of the repository: there a relative prefix is below `MARIN_SUBMITTED_FROM`, where the job was submitted.
"""

import os
import re

from marin.errors import ConfigError, StorageError
from marin.storage import files

DEFAULT_PREFIX = "local_store"
_ONE_SLASH = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)")


def resolve_prefix(flag: str | None = None) -> str:
    """The prefix to use, absolute when local and without a trailing slash; nothing is created.

    Raises:
        ConfigError: the flag or the environment variable is blank, or a URL that is not whole.
    """
    source, value = "--prefix", flag
    if value is None:
        source, value = "MARIN_PREFIX", os.environ.get("MARIN_PREFIX") or DEFAULT_PREFIX
    return resolve_place(value, source)


def resolve_place(value: str, source: str) -> str:
    """A directory or store that a flag or a variable names, as `resolve_prefix` gives the prefix.

    Args:
        source: the flag or the variable, for messages.
    Raises:
        ConfigError: it is blank, or a URL that is not whole.
    """
    if not value.strip():
        raise ConfigError(f"`{source}` is blank: give a directory or a URL such as gs://bucket/path")
    if "://" in value and not value.partition("://")[2].strip("/"):
        raise ConfigError(
            f"`{source}` is {value!r}, which names no bucket or directory: give one, as in gs://bucket/path"
        )
    if mangled := _ONE_SLASH.match(value):  # which `pathlib` makes of a URL
        meant = f"{mangled[1]}://{'/' if mangled[1] == 'file' else ''}{value[mangled.end() :]}"
        raise ConfigError(f"`{source}` is {value!r}: did you mean {meant}? A directory of that name is ./{value}")
    if files.is_local(value):
        own = os.path.expanduser(str(files.local_path(value)))
        return os.path.abspath(os.path.join(os.environ.get("MARIN_SUBMITTED_FROM", ""), own))
    return value.rstrip("/")


def check_writable(prefix: str) -> None:
    """Creates the prefix and proves, with a file that is removed again, that it can be written.

    Raises:
        StorageError: it cannot; the message says what to do.
    """
    probe = files.join(prefix, files.temporary_name("write_check"))
    try:
        files.write_bytes(probe, b"")
        files.remove_file(probe)
    except StorageError as error:
        raise StorageError(f"the prefix {prefix} cannot be written: {error}") from error
