import hashlib
import pathlib
import subprocess

import pytest

from marin.errors import StorageError
from marin.storage import files, trees


def fill(directory: str, content: dict[str, bytes]) -> str:
    for name, data in content.items():
        files.write_bytes(files.join(directory, name), data)
    return directory


CONTENT = {"b": b"2", "a/c": b"34", "a.txt": b"", "a/.own_record": b"left out", ".own_info": b"left out"}


def test_tree_digest_is_the_same_on_every_store(store: str) -> None:
    found = trees.digest_tree(fill(store, CONTENT), leave_out=".own_")
    lines = [f"{hashlib.sha256(CONTENT[name]).hexdigest()}  {name}\n" for name in ("a.txt", "a/c", "b")]
    assert found == trees.TreeDigest(hashlib.sha256("".join(lines).encode()).hexdigest(), 3, 3)


def test_tree_digest_is_what_the_documented_shell_command_prints(tmp_path: pathlib.Path) -> None:
    fill(str(tmp_path / "d"), CONTENT)
    command = "find . -type f ! -name '.own_*' -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"
    printed = subprocess.run(command, shell=True, cwd=tmp_path / "d", capture_output=True, text=True, check=True).stdout
    assert trees.digest_tree(str(tmp_path / "d"), leave_out=".own_").sha256 == printed.split()[0]


def test_first_difference_names_file_and_bytes_on_every_store(store: str) -> None:
    left = fill(files.join(store, "left"), {"same": b"x", "sub/data": b"a" * 3_000_000 + b"1tail"})
    right = fill(files.join(store, "right"), {"same": b"x", "sub/data": b"a" * 3_000_000 + b"2tail"})
    found = trees.first_difference(left, right, leave_out=".own_", shown=3)
    assert found == trees.TreeDifference("sub/data", 3_000_000, b"1ta", b"2ta")
    fill(right, {"sub/data": b"a" * 3_000_000 + b"1tail"})
    assert trees.first_difference(left, right, leave_out=".own_") is None
    fill(right, {"further": b""})
    found = trees.first_difference(left, right, leave_out=".own_")
    assert found is not None and (found.file, found.left) == ("further", None)


def test_first_difference_of_a_missing_directory_is_its_first_file(store: str) -> None:
    left = fill(files.join(store, "left"), {"only": b"x"})
    found = trees.first_difference(left, files.join(store, "none"), leave_out=".own_")
    assert found is not None and (found.file, found.right) == ("only", None)


def test_tree_digest_of_an_unreadable_file_is_a_message(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(str(tmp_path), {"data": b"x"})
    monkeypatch.setattr(files, "open_for_reading", lambda path: (_ for _ in ()).throw(PermissionError(13, "no")))
    with pytest.raises(StorageError, match="data cannot be read"):
        trees.digest_tree(str(tmp_path), leave_out=".own_")
