"""`marin leaderboard build` as a person runs it: what is kept between builds, whose statements count."""

import pathlib
import subprocess
import sys

import pytest
from example_runs import run_info

from marin.children import child_environment
from marin.cli.main import dispatch
from marin.errors import ConfigError, StorageError
from marin.speedrun.results import write_results


def _files(site: pathlib.Path) -> dict[str, bytes]:
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in sorted(site.rglob("*")) if path.is_file()}


def _build(root: pathlib.Path, site: str, *more: str) -> dict[str, bytes]:
    assert (
        dispatch(["leaderboard", "build", "--results-dir", str(root / "runs"), "--output", str(root / site), *more])
        == 0
    )
    return _files(root / site)


def test_site_with_a_cache_is_the_site_without_and_follows_a_change(tmp_path):
    cache = ("--cache", str(tmp_path / "cache"))
    write_results(tmp_path / "runs" / "one" / "speedrun_results.json", run_info())
    plain = _build(tmp_path, "plain")
    assert _build(tmp_path, "first", *cache) == plain
    assert (tmp_path / "cache" / "rows.jsonl").stat().st_size > 0
    assert _build(tmp_path, "second", *cache) == plain
    write_results(tmp_path / "runs" / "one" / "speedrun_results.json", run_info(description="another idea"))
    assert _build(tmp_path, "third", *cache) == _build(tmp_path, "fresh") != plain


def test_build_of_what_was_verified_before_imports_neither_verification_nor_numpy(tmp_path):
    write_results(tmp_path / "runs" / "one" / "speedrun_results.json", run_info())
    _build(tmp_path, "site", "--cache", str(tmp_path / "cache"))
    command = ["leaderboard", "build", "--results-dir", "runs", "--output", "site", "--cache", "cache"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "marin", *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True, env=child_environment(),
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "0 files written" in done.stdout and "marin.site.leaderboard.build" in imported
    assert not imported & {"marin.speedrun.verification", "numpy", "pyarrow", "jax", "altair"}


def test_signers_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file: give an ALLOWED SIGNERS file"):
        _build(tmp_path, "site", "--allowed-signers", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["build", "--rows", "runs.json", "--port", "80"], "--port is of `serve`"),
        (["serve", "--allowed-signers", "none"], "are of a build: give --results-dir or --rows too"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(tmp_path, flags, words):
    with pytest.raises(ConfigError, match=words):
        dispatch(["leaderboard", *flags, "--output", str(tmp_path / "site")])


@pytest.mark.parametrize(("site", "cache", "flag"), [("site", "file", "--cache"), ("file/site", "cache", "--output")])
def test_place_that_cannot_be_written_is_refused_with_the_flag_that_named_it(tmp_path, site, cache, flag):
    (tmp_path / "file").touch()
    write_results(tmp_path / "runs" / "one" / "speedrun_results.json", run_info())
    with pytest.raises(StorageError, match=rf"{tmp_path}/file/.* choose another {flag}$"):
        _build(tmp_path, site, "--cache", str(tmp_path / cache))


def test_build_of_nothing_readable_says_that_there_are_no_runs_and_where_the_reasons_are(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "speedrun_results.json").write_text("\ufeff{}", encoding="utf-8")
    _build(tmp_path, "site")
    out = capsys.readouterr().out
    assert out.startswith("no runs\n1 could not be read: listed in unreadable.html with the reasons\n")
    assert (
        "speedrun_results.json: line 1: begins with a byte order mark: copy it again, or save it as UTF-8 without one\n"
        in out
    )
