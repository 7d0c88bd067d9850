"""The compile cache: private to its user, and free of what a kill leaves in it."""

import os
import pwd
import random
import signal
import stat
import subprocess
import sys
import time
import zlib

import pytest
import zstandard

from marin.errors import ConfigError
from marin.training import compile_cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where the cache lies; JAX's own setting is left alone."""
    monkeypatch.setenv("MARIN_COMPILE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_cache.jax.config, "update", lambda name, value: None)
    path = compile_cache.use_compile_cache()
    assert path is not None
    return path


def test_compile_cache_is_its_owners_alone(cache, capsys):
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    cache.chmod(0o777)
    assert compile_cache.use_compile_cache() is None
    assert f"are not kept in {cache} (others can write there)" in capsys.readouterr().err
    assert compile_cache.use_compile_cache() is None
    assert capsys.readouterr().err == ""  # once is enough


def test_compile_cache_that_cannot_be_made_is_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MARIN_COMPILE_CACHE", str(tmp_path / "file" / "cache"))
    assert compile_cache.use_compile_cache() is None
    said = capsys.readouterr().err
    assert "(Not a directory), so each start compiles again: set MARIN_COMPILE_CACHE" in said


def test_compile_cache_of_a_user_without_a_home_directory_is_said(monkeypatch, capsys):
    def unknown(number):
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "MARIN_COMPILE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert compile_cache.use_compile_cache() is None
    assert "(this user has no home directory), so each start compiles again" in capsys.readouterr().err


def test_compile_cache_that_cannot_be_written_is_said(cache, monkeypatch, capsys):
    monkeypatch.setattr(compile_cache.os, "access", lambda path, mode: False)  # root may write everywhere
    assert compile_cache.use_compile_cache() is None
    assert "(no permission to write there)" in capsys.readouterr().err


def test_compile_cache_loses_what_killed_processes_left_in_part_and_keeps_the_others(cache):
    program = bytes(range(256)) * 100
    whole = {"jit_run-1-cache": zstandard.compress(program), "jit_run-2-cache": zlib.compress(program)}
    cut = {f"jit_cut-{name}": content[: len(content) // 2] for name, content in whole.items()}
    for name, content in {**whole, **cut, "jit_run-3-cache": b"", "jit_run-4-cache": bytes(100)}.items():
        (cache / name).write_bytes(content)
    assert compile_cache.use_compile_cache() == cache
    assert {path.name for path in cache.glob("*-cache")} == set(whole)


def test_compile_cache_reads_an_entry_again_only_where_it_has_changed(cache, monkeypatch):
    entry, other = cache / "jit_run-1-cache", cache / "jit_run-2-cache"
    for path in (entry, other):
        path.write_bytes(zstandard.compress(bytes(1000)))
    compile_cache.use_compile_cache()
    read = []
    with monkeypatch.context() as watched:
        watched.setattr(compile_cache, "_decompresses", lambda content: bool(read.append(content)))
        compile_cache.use_compile_cache()
        assert read == []
        entry.write_bytes(b"cut short")
        compile_cache.use_compile_cache()
    assert (read, entry.exists(), other.exists()) == ([b"cut short"], False, True)
    (cache / "whole.json").write_bytes(b"no JSON")
    compile_cache.use_compile_cache()
    assert other.exists()


def an_entry(cache, name, day, *, used=None):
    """A whole entry of about 1 KiB that was written on one day and used on another."""
    path = cache / f"{name}-cache"
    path.write_bytes(zstandard.compress(random.Random(name).randbytes(1000)))
    os.utime(path, (86400 * (used or day), 86400 * day))
    return path


def test_compile_cache_above_its_size_loses_what_was_not_used_for_the_longest_time(cache, monkeypatch):
    written = {
        name: an_entry(cache, name, day, used=used) for name, day, used in (("a", 1, 9), ("b", 2, 2), ("c", 3, 3))
    }
    compile_cache.use_compile_cache()
    assert all(path.exists() for path in written.values())  # of the default size they are far
    monkeypatch.setenv("MARIN_COMPILE_CACHE_GIB", str(2500 / 2**30))
    compile_cache.use_compile_cache()
    assert [name for name, path in written.items() if path.exists()] == ["a", "c"]
    compile_cache.use_compile_cache()
    assert [name for name, path in written.items() if path.exists()] == ["a", "c"]
    monkeypatch.setenv("MARIN_COMPILE_CACHE_GIB", "0")
    compile_cache.use_compile_cache()
    assert not list(cache.glob("*-cache"))


@pytest.mark.parametrize("size", ["many", "-1", "nan"])
def test_compile_cache_of_a_size_that_cannot_be_is_refused(size, monkeypatch):
    monkeypatch.setenv("MARIN_COMPILE_CACHE_GIB", size)
    with pytest.raises(ConfigError, match=f"MARIN_COMPILE_CACHE_GIB is '{size}'"):
        compile_cache.use_compile_cache()


def test_compile_cache_that_processes_tidy_at_once_ends_at_its_size_without_a_word(
    tmp_path, repository, plain_environment
):
    environment = plain_environment | {"PYTHONPATH": str(repository), "MARIN_COMPILE_CACHE": str(tmp_path)}
    environment["MARIN_COMPILE_CACHE_GIB"] = str(100_500 / 2**30)
    code = "from marin.training.compile_cache import use_compile_cache; input(); print(use_compile_cache())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]  # fmt: skip
    cache = tmp_path / compile_cache._processor()
    cache.mkdir(mode=0o700)
    for number in range(300):
        an_entry(cache, f"{number:03}", number + 1)
    (cache / "cut-cache").write_bytes(b"cut short")
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60) for process in processes]
    assert said == [(f"{cache}\n", "")] * 3
    kept = sorted(path.name for path in cache.glob("*-cache"))
    assert 0 < len(kept) <= 100 and kept == [f"{number:03}-cache" for number in range(300 - len(kept), 300)]


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


_LONG = """
import sys
import jax, jax.numpy as jnp
from marin.errors import clean_exit
from marin.training.compile_cache import use_compile_cache
from marin.training.host_memory import keep_freed_memory

def sorted_often(x):
    for turn in range(300):
        x = jnp.tanh(x @ x) + jnp.sort(x, axis=turn % 2) * turn
    return x

with clean_exit():
    keep_freed_memory()
    use_compile_cache()
    lowered = jax.jit(sorted_often).lower(jnp.ones((64, 64)))
    print("compiling", flush=True)
    lowered.compile()
    print("compiled", flush=True)
    sys.stdin.read()
"""


def test_a_stop_while_a_program_is_compiled_ends_with_its_status(tmp_path, repository, plain_environment):
    environment = plain_environment | {"PYTHONPATH": str(repository), "MARIN_COMPILE_CACHE": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", _LONG], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "compiling\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, "\ninterrupted; run the same command again to continue\n")
