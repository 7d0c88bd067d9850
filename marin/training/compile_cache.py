"""XLA's persistent compile cache, one for each user.

Whoever can write such a cache can run code on the machine that reads it, so it lies in a directory that only its owner
can enter, never under a shared prefix. Programs compiled for one processor may crash another, and XLA's key for them
does not name it, so that machines which share a home directory get a directory for each kind of processor.
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
from marin.errors import StorageError, leave_at_once_after_a_stop
from marin.storage import files

_KNOWN = "whole.json"  # size and time of each entry that was found whole


def use_compile_cache() -> Path | None:
    """Turns the cache on and returns where it lies; None, and a warning, if no private directory can be had."""
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
    _remove_broken_entries(path)
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


def _remove_broken_entries(path: Path) -> None:
    """Removes entries that a kill or a full disk cut short: JAX would warn of them at every start and never mend them.

    Those that were whole before are known by their size and time: a cache grows to gigabytes, and each start looks here.
    """
    known = _read_known(path / _KNOWN)
    whole = {}
    with contextlib.suppress(OSError):
        for entry in path.glob("*-cache"):
            info = entry.stat()
            stamp = [info.st_size, info.st_mtime_ns]
            if known.get(entry.name) == stamp or _decompresses(entry.read_bytes()):
                whole[entry.name] = stamp
            else:
                entry.unlink()
    if whole != known:
        with contextlib.suppress(StorageError):
            files.write_json(str(path / _KNOWN), whole)


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
