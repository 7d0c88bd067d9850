"""Downloads: the dataset with its card as one archive, which is made while it is sent."""

import io
import os
import pathlib
import zipfile
from collections.abc import Iterator

_BLOCK = 1 << 18


class _Sent(io.RawIOBase):
    """What the archive writes, to be taken away piece by piece; nobody can go back in it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def archive(folder: pathlib.Path, name: str) -> Iterator[bytes]:
    """A ZIP file of all files below the folder, in a folder `name`; they are packed already and are stored as they are.

    Files whose name begins with a dot, which are the executor's, are left out, and links are not followed.
    """
    sent = _Sent()
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_STORED) as packed:
        for path in _files(folder):
            info = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o644 << 16
            # Sizes are not written before the content, so that any file may be large.
            with open(path, "rb") as source, packed.open(info, "w", force_zip64=True) as target:
                while block := source.read(_BLOCK):
                    target.write(block)
                    yield sent.take()
    yield sent.take()


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    found = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [pathlib.Path(base, name) for name in sorted(names) if not name.startswith(".")]
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    return found


def size_of(folder: pathlib.Path) -> int:
    """Bytes of all files that the archive would hold."""
    return sum(path.stat().st_size for path in _files(folder))
