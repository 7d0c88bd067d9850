"""XLA's persistent compile cache, one for each user.

Whoever can write such a cache can run code on the machine that reads it, so it lies in a directory that only its owner
can enter, never under a shared prefix.
"""

import os
import stat
from pathlib import Path

import jax


def use_compile_cache() -> Path | None:
    """Turns the cache on and returns where it lies; None if no private directory can be had."""
    root = os.environ.get("MARIN_COMPILE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache"), "marin", "jax"
    )
    path = Path(root)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        info = path.stat()
    except OSError:
        return None
    if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return None
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Small programs too: on CPU a run has dozens of them, and a resumed one starts 3 seconds sooner.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path
