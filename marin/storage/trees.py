"""Whole directories of a local store: what is in them as one digest, and where two of them differ."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterator

from marin.storage import files

_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class TreeDigest:
    """What a directory holds. `sha256` covers each file's path below the directory and its content, nothing else."""

    sha256: str
    bytes: int
    files: int


@dataclasses.dataclass(frozen=True)
class TreeDifference:
    """The first place where two directories differ: a file of only one of them, or bytes of a file of both."""

    file: str
    offset: int | None
    left: bytes | None
    right: bytes | None


def digest_tree(path: str, *, leave_out: str) -> TreeDigest:
    """Digests all files below a local directory but those whose name begins with `leave_out`.

    It is the SHA-256 of one line `{sha256 of the content}  {path}` for each file in order of path, as `sha256sum` prints.
    """
    whole, size, count = hashlib.sha256(), 0, 0
    for name, file in _files_below(path, leave_out):
        content = files.sha256_file(str(file))
        whole.update(f"{content}  {name}\n".encode(errors="surrogateescape"))
        size += file.stat().st_size
        count += 1
    return TreeDigest(whole.hexdigest(), size, count)


def first_difference(left: str, right: str, *, leave_out: str, shown: int = 16) -> TreeDifference | None:
    """The first difference in order of path, with up to `shown` bytes from there of either side; None if there is none."""
    ours, theirs = dict(_files_below(left, leave_out)), dict(_files_below(right, leave_out))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            return TreeDifference(
                name, None, None if name not in ours else b"(there)", None if name not in theirs else b"(there)"
            )
        offset = _first_differing_byte(ours[name], theirs[name])
        if offset is not None:
            return TreeDifference(
                name, offset, _bytes_at(ours[name], offset, shown), _bytes_at(theirs[name], offset, shown)
            )
    return None


def _files_below(path: str, leave_out: str) -> Iterator[tuple[str, pathlib.Path]]:
    root = files.local_path(path)
    found = []
    for directory, _, names in os.walk(root):
        found += [pathlib.Path(directory, name) for name in names if not name.startswith(leave_out)]
    yield from sorted((file.relative_to(root).as_posix(), file) for file in found if file.is_file())


def _first_differing_byte(left: pathlib.Path, right: pathlib.Path) -> int | None:
    with open(left, "rb") as ours, open(right, "rb") as theirs:
        offset = 0
        while True:
            a, b = ours.read(_BLOCK), theirs.read(_BLOCK)
            if a != b:
                length = min(len(a), len(b))
                return offset + next((i for i in range(length) if a[i] != b[i]), length)
            if not a:
                return None
            offset += len(a)


def _bytes_at(file: pathlib.Path, offset: int, count: int) -> bytes:
    with open(file, "rb") as stream:
        stream.seek(offset)
        return stream.read(count)
