"""XLA's persistent compile cache, one for each user.

Whoever can write such a cache can run code on the machine that reads it, so it lies in a directory that only its owner
can enter, never under a shared prefix. Programs compiled for one processor may crash another, and XLA's key for them
does not name it, so that machines which share a home directory get a directory for each kind of processor.
"""

import contextlib
import hashlib
import math
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

import jax


def use_compile_cache() -> Path | None:
    """Turns the cache on and returns where it lies; None if no private directory can be had."""
    root = os.environ.get("MARIN_COMPILE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache"), "marin", "jax"
    )
    path = Path(root) / _processor()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = path.stat()
    except OSError:
        return None
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    _remove_empty_entries(path)
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Small programs too: on CPU a run has dozens of them, and a resumed one starts 3 seconds sooner.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


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


def _remove_empty_entries(path: Path) -> None:
    """Removes what a process that was killed while it wrote left: JAX would warn of such an entry forever, and never mend it."""
    with contextlib.suppress(OSError):
        for entry in path.glob("*-cache"):
            if entry.stat().st_size == 0:
                entry.unlink()


def _processor() -> str:
    """Names the instructions that this machine's processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    # One processor's entries are enough; x86 calls them "model name" and "flags", ARM "CPU part" and "Features".
    wanted = sorted({line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))})
    digest = hashlib.sha256("\n".join([platform.machine(), platform.processor(), *wanted]).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"
