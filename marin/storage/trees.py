"""Whole directories of any store: what is in them as one digest, and where two of them differ."""

import dataclasses
import hashlib
import posixpath

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
    """Digests all files below a directory but those whose name begins with `leave_out`; on a remote store it reads them back.

    It is the SHA-256 of one line `{sha256 of the content}  {path}` for each file in order of path, as `sha256sum` prints.
    """
    whole, size, count = hashlib.sha256(), 0, 0
    for name in _names_below(path, leave_out):
        content = hashlib.sha256()
        for block in files.blocks_of(files.join(path, name)):
            content.update(block)
            size += len(block)
        whole.update(f"{content.hexdigest()}  {name}\n".encode(errors="surrogateescape"))
        count += 1
    return TreeDigest(whole.hexdigest(), size, count)


def first_difference(left: str, right: str, *, leave_out: str, shown: int = 16) -> TreeDifference | None:
    """The first difference in order of path, with up to `shown` bytes from there of either side; None if there is none."""
    ours, theirs = set(_names_below(left, leave_out)), set(_names_below(right, leave_out))
    for name in sorted(ours | theirs):
        if name not in ours or name not in theirs:
            return TreeDifference(
                name, None, None if name not in ours else b"(there)", None if name not in theirs else b"(there)"
            )
        one, other = files.join(left, name), files.join(right, name)
        offset = _first_differing_byte(one, other)
        if offset is not None:
            return TreeDifference(name, offset, _bytes_at(one, offset, shown), _bytes_at(other, offset, shown))
    return None


def _names_below(path: str, leave_out: str) -> list[str]:
    return [name for name in files.files_below(path) if not posixpath.basename(name).startswith(leave_out)]


def _first_differing_byte(left: str, right: str) -> int | None:
    with (
        files.explained(left, "compared"),
        files.open_for_reading(left) as ours,
        files.open_for_reading(right) as theirs,
    ):
        offset = 0
        while True:
            a, b = ours.read(_BLOCK), theirs.read(_BLOCK)
            if a != b:
                length = min(len(a), len(b))
                return offset + next((i for i in range(length) if a[i] != b[i]), length)
            if not a:
                return None
            offset += len(a)


def _bytes_at(path: str, offset: int, count: int) -> bytes:
    with files.explained(path, "read"), files.open_for_reading(path) as stream:
        stream.seek(offset)
        return bytes(stream.read(count))
