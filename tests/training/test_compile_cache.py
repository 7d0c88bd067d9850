"""The compile cache: private to its user, and free of what a kill leaves in it."""

import stat
import subprocess
import sys

import pytest

from marin.training import compile_cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where the cache lies; JAX's own setting is left alone."""
    monkeypatch.setenv("MARIN_COMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_cache.jax.config, "update", lambda name, value: None)
    path = compile_cache.use_compile_cache()
    assert path is not None
    return path


def test_compile_cache_is_its_owners_alone(cache):
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    cache.chmod(0o777)
    assert compile_cache.use_compile_cache() is None


def test_compile_cache_loses_empty_entries_of_killed_processes_and_keeps_the_others(cache):
    (cache / "jit_run-1-cache").write_bytes(b"")
    (cache / "jit_run-2-cache").write_bytes(b"program")
    assert compile_cache.use_compile_cache() == cache
    assert [path.name for path in cache.iterdir()] == ["jit_run-2-cache"]


def test_programs_that_are_not_kept_leave_nothing_in_the_cache(tmp_path, repository, plain_environment):
    code = """
import jax
from marin.training.compile_cache import unkept, use_compile_cache
path = use_compile_cache()
with unkept():
    jax.jit(lambda x: x + 1).lower(1.0).compile()
assert not list(path.iterdir()), list(path.iterdir())
jax.jit(lambda x: x + 2).lower(1.0).compile()
assert list(path.glob("*-cache"))
"""
    environment = plain_environment | {"MARIN_COMPILE_CACHE": str(tmp_path), "PYTHONPATH": str(repository)}
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, env=environment)
