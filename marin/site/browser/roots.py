"""Which paths may be opened: those below an allow-listed folder, after every link has been followed.

A path comes from a URL as percent-encoded bytes. It is split at slashes first and decoded once after that, so that an
encoded slash or a doubly encoded dot stays a part of a name. A part that is empty, `.` or `..`, or that holds a slash, a
backslash or a NUL is refused. Links are followed while they stay inside the folder; one that leads out is refused.

Opening walks down from the folder part by part and follows no link on that way, so that a link put in place between the
check and the opening leads nowhere. Only regular files are opened: a pipe would block, a device is no data.

The browser asks nobody who they are, so everybody with an account on the machine sees what its owner may read. Files that hold
keys are refused by their names.
"""

import contextlib
import dataclasses
import errno
import functools
import io
import os
import stat
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote_to_bytes

from starlette.exceptions import HTTPException

from marin.errors import ConfigError

_FORBIDDEN = (b"/", b"\\", b"\0")
_MOST_PARTS = 256
KEY_NAME = ".key"  # of the datashop's page: who has it starts processes and spends money as the page's owner
_SECRETS = frozenset({KEY_NAME, ".env"})


@dataclasses.dataclass(frozen=True)
class Root:
    """A folder that may be read; `path` is absolute and free of links."""

    number: int
    path: str

    @property
    def label(self) -> str:
        return os.path.basename(self.path) or self.path


@dataclasses.dataclass(frozen=True)
class Place:
    """A path below a root: `parts` as a person wrote it, `real` after following links, which lies in the root."""

    root: Root
    parts: tuple[str, ...]
    real: str

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else self.root.label

    @property
    def relative(self) -> str:
        return "/".join(self.parts)

    def url(self, page: str = "files") -> str:
        """The address of this place on one of the pages `files`, `raw`, `step` and `live`."""
        return url_of(self.root, self.parts, page)

    @functools.cached_property
    def status(self) -> os.stat_result:
        """Raises HTTPException 404 if there is nothing here."""
        with _answered(self.relative or self.name):
            return os.stat(self.real, follow_symlinks=False)

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.real)

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


def url_of(root: Root, parts: Sequence[str], page: str = "files") -> str:
    """`Place.url` for parts that were not looked up."""
    return "/".join([f"/{page}/{root.number}", *(quote(os.fsencode(part), safe="") for part in parts)])


def make_roots(folders: Sequence[str]) -> tuple[Root, ...]:
    """The allow-list, in the order given and without repetitions.

    Raises:
        ConfigError: one is not a directory that can be listed.
    """
    real: list[str] = []
    for folder in folders:
        path = os.path.realpath(os.path.expanduser(folder))
        if not os.path.isdir(path):
            what = "is a file, not a folder" if os.path.exists(path) else "is not there"
            raise ConfigError(
                f"{folder} {what}: run an experiment first, or name a folder that is there with --prefix DIR"
            )
        if not os.access(path, os.R_OK | os.X_OK):
            raise ConfigError(f"{folder} cannot be read: change its permissions, or name another folder")
        if path not in real:
            real.append(path)
    return tuple(Root(number, path) for number, path in enumerate(real))


def decode_parts(raw: bytes) -> tuple[str, ...]:
    """The parts of a percent-encoded path; one slash at its end is allowed.

    Raises:
        HTTPException: 403, for a part that no directory's entry can have or that would lead upwards.
    """
    pieces = raw.split(b"/")
    if pieces[-1] == b"":
        pieces.pop()
    if len(pieces) > _MOST_PARTS:
        raise HTTPException(404, "This path has more parts than any folder here is deep.")
    names = [unquote_to_bytes(piece) for piece in pieces]
    if not all(map(_is_plain, names)):
        raise HTTPException(403, "This path leaves the folder, or has a part that cannot be a name.")
    return tuple(os.fsdecode(name) for name in names)


def is_addressable(name: str) -> bool:
    """Whether an entry of this name can be asked for; one with a backslash cannot."""
    return _is_plain(os.fsencode(name))


def resolve(root: Root, parts: Sequence[str]) -> Place:
    """The place at `parts`; it need not exist.

    Raises:
        HTTPException: 403, if a link leads out of the root, or it is a file with keys.
    """
    if not all(is_addressable(part) for part in parts):
        raise HTTPException(403, "This path leaves the folder, or has a part that cannot be a name.")
    with _answered("/".join(parts) or root.label):
        real = os.path.realpath(os.path.join(root.path, *parts))
    if not _is_inside(root, real):
        raise HTTPException(403, "A link on this path leads out of the folder, so it is not followed.")
    if os.path.basename(real) in _SECRETS and not os.path.isdir(real):
        raise HTTPException(403, "A file of this name holds keys, so it is not shown.")
    return Place(root, tuple(parts), real)


def open_file(place: Place) -> io.FileIO:
    """The regular file at `place`, opened for reading.

    Raises:
        HTTPException: 404, 403 or 400, with the reason.
    """
    descriptor = _open_beneath(place, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise HTTPException(400, "This is neither a file nor a folder (a pipe, socket or device), so it is not read.")
    return io.FileIO(descriptor, "rb")


@contextlib.contextmanager
def open_dir(place: Place) -> Iterator[int]:
    """A descriptor of the directory at `place`, closed at the end."""
    descriptor = _open_beneath(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_start(place: Place, limit: int) -> bytes | None:
    """The first `limit` bytes of a file, or None where there is no file that may be read."""
    try:
        with open_file(place) as file:
            return file.read(limit)
    except HTTPException:
        return None
    except OSError:
        return None


def _is_plain(name: bytes) -> bool:
    return name not in (b"", b".", b"..") and not any(byte in name for byte in _FORBIDDEN)


def _is_inside(root: Root, real: str) -> bool:
    return real == root.path or real.startswith(root.path.rstrip("/") + "/")


def _open_beneath(place: Place, flags: int) -> int:
    parts = [part for part in place.real[len(place.root.path) :].split("/") if part]
    with _answered(place.relative or place.name):
        descriptor = os.open(place.root.path, os.O_RDONLY | os.O_DIRECTORY)
        for number, part in enumerate(parts, start=1):
            try:
                part_flags = flags if number == len(parts) else os.O_RDONLY | os.O_DIRECTORY
                below = os.open(part, part_flags | os.O_NOFOLLOW, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
    return descriptor


@contextlib.contextmanager
def _answered(name: str) -> Iterator[None]:
    """Turns the operating system's errors into answers that name no path outside the root."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise HTTPException(404, f"There is nothing at {name!r}. It may have been moved or removed.") from None
    except PermissionError:
        raise HTTPException(403, f"The permissions of {name!r} do not let you read it.") from None
    except (OSError, ValueError) as error:
        code = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
        raise HTTPException(404, f"{name!r} cannot be opened ({code}).") from None
