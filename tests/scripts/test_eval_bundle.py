"""`scripts.eval_bundle`: CORE's data from an archive, whole and once; and archives that are none."""

import shutil
import zipfile

import pytest
from small_commands import run_script, served, write_core_bundle

from marin.errors import ConfigError, DataError
from scripts import eval_bundle


@pytest.fixture
def public(tmp_path):
    """A folder to serve, with an archive laid out as the public one is, beside what a Mac adds."""
    folder = tmp_path / "public"
    write_core_bundle(folder / "eval_bundle")
    shutil.make_archive(str(folder / "eval_bundle"), "zip", folder, "eval_bundle")
    with zipfile.ZipFile(folder / "eval_bundle.zip", "a") as packed:
        packed.writestr("__MACOSX/eval_bundle/._core.yaml", "x")
    return folder


def _fetch(address, base):
    run_script(eval_bundle, f"--url={address}/eval_bundle.zip", f"--base-dir={base}")


def test_bundle_is_fetched_once_and_says_what_it_has(public, tmp_path, capsys):
    base = tmp_path / "base"
    with served(public) as (address, asked):
        _fetch(address, base)
        fetched = len(asked)
        _fetch(address, base)
    assert fetched >= 1 and len(asked) == fetched
    said = capsys.readouterr().out
    assert said.count("has 2 of CORE's 22 tasks") == 2 and "missing: hellaswag" in said
    kept = sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.suffix in (".jsonl", ".yaml"))
    assert kept == ["eval_bundle/core.yaml", "eval_bundle/eval_data/copa.jsonl", "eval_bundle/eval_data/winograd.jsonl"]
    assert not list(base.rglob("*.zip"))


def test_archive_that_arrived_before_a_kill_is_unpacked_anew(public, tmp_path):
    base = tmp_path / "base"
    staging = base / ".eval_bundle.fetching"
    (staging / "unpacked" / "eval_bundle").mkdir(parents=True)
    (staging / "unpacked" / "eval_bundle" / "core.yaml").write_text("half of")
    shutil.copy(public / "eval_bundle.zip", staging)
    with served(public) as (address, asked):
        _fetch(address, base)
    assert not asked and not staging.exists()
    assert (base / "eval_bundle" / "core.yaml").read_text() == (public / "eval_bundle" / "core.yaml").read_text()


@pytest.mark.parametrize("content", ["no archive", "without core.yaml", "cut", "broken core.yaml"])
def test_what_is_no_bundle_leaves_nothing_and_says_so(public, tmp_path, content):
    archive, base = public / "eval_bundle.zip", tmp_path / "base"
    if content == "no archive":
        archive.write_text("<html>not found</html>")
    elif content == "cut":
        archive.write_bytes(archive.read_bytes()[:-200])
    else:
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr(
                *(("readme.txt", "x") if content == "without core.yaml" else ("eval_bundle/core.yaml", "]["))
            )
    with served(public) as (address, _):
        said = r"core\.yaml" if content == "broken core.yaml" else r"check the address, or fetch .* unpack it as"
        with pytest.raises(DataError, match=said):
            _fetch(address, base)
        assert not (base / "eval_bundle").exists() and not list(base.rglob("*.zip"))
        with pytest.raises(DataError, match="cannot be fetched"):
            run_script(eval_bundle, f"--url={address}/nothing.zip", f"--base-dir={base}")


def test_folder_that_is_no_bundle_is_left_alone(public, tmp_path):
    (tmp_path / "base" / "eval_bundle").mkdir(parents=True)
    mine = tmp_path / "base" / "eval_bundle" / "mine.txt"
    mine.write_text("x")
    with served(public) as (address, asked), pytest.raises(DataError, match=r"has no core\.yaml.*remove it"):
        _fetch(address, tmp_path / "base")
    assert not asked and mine.exists()


def test_address_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'bundle.zip' is no address to fetch from: use one that begins with https"):
        run_script(eval_bundle, "--url=bundle.zip", f"--base-dir={tmp_path}")
