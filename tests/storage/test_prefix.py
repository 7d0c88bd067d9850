"""Which prefix wins, and what is said when it cannot be written."""

import os
import pathlib

import pytest

from marin.errors import ConfigError, StorageError
from marin.storage.prefix import check_writable, resolve_prefix


def test_prefix_flag_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARIN_PREFIX", raising=False)
    assert resolve_prefix() == str(tmp_path / "local_store")
    monkeypatch.setenv("MARIN_PREFIX", "gs://bucket/x/")
    assert resolve_prefix() == "gs://bucket/x"
    assert resolve_prefix("here/") == str(tmp_path / "here")
    assert os.listdir(tmp_path) == []


def test_prefix_that_is_blank_is_refused() -> None:
    with pytest.raises(ConfigError, match="--prefix"):
        resolve_prefix(" ")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("s3://", "names no bucket"),
        ("gs:///", "names no bucket"),
        ("gs:/bucket/x", "did you mean gs://bucket/x"),
        ("file:/tmp/x", "did you mean file:///tmp/x"),
    ],
)
def test_prefix_that_is_no_whole_url_is_refused_instead_of_being_a_directory_here(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"`--prefix`.*{message}"):
        resolve_prefix(value)
    monkeypatch.setenv("MARIN_PREFIX", value)
    with pytest.raises(ConfigError, match=f"`MARIN_PREFIX`.*{message}"):
        resolve_prefix()


def test_prefix_with_a_colon_in_a_name_is_a_directory() -> None:
    assert resolve_prefix("./gs:/x") == os.path.join(os.getcwd(), "gs:", "x")
    assert resolve_prefix("run:1/x") == os.path.join(os.getcwd(), "run:1", "x")


def test_check_writable_creates_the_prefix_and_leaves_it_empty(tmp_path: pathlib.Path) -> None:
    check_writable(str(tmp_path / "a" / "b"))
    assert os.listdir(tmp_path / "a" / "b") == []


def test_check_writable_below_a_file_names_the_next_step(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written: .*choose another --prefix"):
        check_writable(str(tmp_path / "file" / "store"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_check_writable_without_permission_names_the_next_step(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="no permission"):
        check_writable(str(tmp_path / "store"))
