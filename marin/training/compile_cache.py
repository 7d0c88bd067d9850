"""XLA's persistent compile cache, one for each user.

Whoever can write such a cache can run code on the machine that reads it, so it lies in a directory that only its owner
can enter, never under a shared prefix. Programs compiled for one processor may crash another, and XLA's key for them
does not name it, so that machines which share a home directory get a directory for each kind of processor.

Each of them is kept below a size (`MARIN_COMPILE_CACHE_GIB`): at a start the programs go that nobody has used for the longest time.
JAX has a bound of its own, which fails on entries that were written without it.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import zstandard

from marin import hardware
from marin.errors import ConfigError, StorageError, leave_at_once_after_a_stop
from marin.storage import files

_KNOWN = "whole.json"  # size and time of each entry that was found whole
_LIMIT = "MARIN_COMPILE_CACHE_GIB"
_DEFAULT_LIMIT = 5.0


def use_compile_cache() -> Path | None:
    """Turns the cache on and returns where it lies; None, and a warning, if no private directory can be had.

    Raises:
        ConfigError: the size to keep it below is no such number.
    """
    limit = _limit()
    if not jax.distributed.is_initialized():  # processes of one run wait for each other at their end
        leave_at_once_after_a_stop()
    root = os.path.expanduser(
        os.environ.get("MARIN_COMPILE_CACHE")
        or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "marin", "jax")
    )
    if root.startswith("~"):  # a container's user, whom nothing gives a home directory
        return _without(Path(root), "this user has no home directory")
    path = Path(root) / _processor()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = path.stat()
    except OSError as error:
        return _without(path, str(error.strerror))
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return _without(path, "others can write there")
    if not os.access(path, os.W_OK):
        return _without(path, "no permission to write there")
    _remove_oldest_entries(path, _remove_broken_entries(path), limit)
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Small programs too: on CPU a run has dozens of them, and a resumed one starts 3 seconds sooner.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


@functools.cache
def _without(path: Path, reason: str) -> None:
    """Says once that there is no cache: each start then compiles for as long as the first."""
    print(
        f"warning: compiled programs are not kept in {path} ({reason}), so each start compiles again: set MARIN_COMPILE_CACHE"
        " to a folder that is yours alone",
        file=sys.stderr,
    )


@contextlib.contextmanager
def unkept() -> Iterator[None]:
    """Programs that are compiled in this are not written to the cache."""
    name = "jax_persistent_cache_min_compile_time_secs"
    usual = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, usual)


def _limit() -> float:
    """Up to how many bytes are kept."""
    text = os.environ.get(_LIMIT)
    try:
        gib = float(text) if text else _DEFAULT_LIMIT
    except ValueError:
        gib = math.nan
    if not gib >= 0:  # nor is NaN
        raise ConfigError(
            f"the environment variable {_LIMIT} is {text!r}: expected how many GiB of compiled programs to keep, such as 5, or inf"
        )
    return gib * 2**30


def _remove_broken_entries(path: Path) -> dict[str, os.stat_result]:
    """Removes entries that a kill or a full disk cut short: JAX would warn of them at every start and never mend them.

    Those that were whole before are known by their size and time: a cache grows to gigabytes, and each start looks here.
    Returns what is left. Another process may remove entries at the same time.
    """
    known = _read_known(path / _KNOWN)
    whole, left = {}, {}
    for name, info in _entries(path):
        stamp = [info.st_size, info.st_mtime_ns]
        with contextlib.suppress(OSError):
            if known.get(name) == stamp or _decompresses(_read_unnoted(path / name)):
                whole[name], left[name] = stamp, info
            else:
                (path / name).unlink()
    if whole != known:
        with contextlib.suppress(StorageError):
            files.write_json(str(path / _KNOWN), whole)
    return left


def _read_unnoted(path: Path) -> bytes:
    """The content of an entry, without a use of it being noted where the system can do so."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOATIME", 0))) as stream:
        return stream.read()


def _entries(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    with contextlib.suppress(OSError), os.scandir(path) as found:
        for entry in found:
            if entry.name.endswith("-cache"):
                with contextlib.suppress(OSError):
                    yield entry.name, entry.stat()


def _remove_oldest_entries(path: Path, entries: dict[str, os.stat_result], limit: float) -> None:
    """Removes entries until the others have at most `limit` bytes, first those that were not used for the longest time.

    Linux notes a use once a day by default, which is enough; where it notes none, an entry is as old as its file.
    """
    excess = sum(info.st_size for info in entries.values()) - limit
    if excess <= 0:
        return
    for name, info in sorted(entries.items(), key=lambda entry: max(entry[1].st_atime_ns, entry[1].st_mtime_ns)):
        with contextlib.suppress(OSError):
            (path / name).unlink()
        excess -= info.st_size
        if excess <= 0:
            return


def _read_known(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _decompresses(content: bytes) -> bool:
    """Whether it is what JAX writes: compressed by zstandard, or by zlib where that is not installed."""
    try:
        if content.startswith(zstandard.FRAME_HEADER):
            zstandard.ZstdDecompressor().decompress(content)
        else:
            zlib.decompress(content)
    except (zstandard.ZstdError, zlib.error, MemoryError):
        return False
    return True


def _processor() -> str:
    """Names the instructions that this machine's processor has."""
    # One processor's entries are enough; x86 calls them "model name" and "flags", ARM "CPU part" and "Features".
    wanted = sorted(
        {line for line in hardware.cpuinfo() if line.startswith(("model name", "flags", "CPU part", "Features"))}
    )
    digest = hashlib.sha256("\n".join([platform.machine(), platform.processor(), *wanted]).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"
