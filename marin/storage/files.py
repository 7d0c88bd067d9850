"""Files and directories on any fsspec store, by path or URL; local ones through the operating system.

A local write goes to a temporary file in the same directory, is flushed to the disk, and takes the final name by a
rename; then the directory is flushed. A reader thus sees the old content or the new, never a part, and a crash leaves
at most a temporary file, which nothing reads. On another store a write is one put, which such stores apply as a whole.

A store is configured by its own environment variables, read when it is first used. For MinIO and other servers that
speak S3: `AWS_ENDPOINT_URL=http://host:9000` (or `FSSPEC_S3_ENDPOINT_URL`), `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`.

Every failure is a `StorageError` that names the path and the next step. There is no caching and no retrying here.
"""

import contextlib
import datetime
import errno
import hashlib
import json
import os
import pathlib
import posixpath
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from typing import IO, Any

from marin.errors import MarinError, StorageError

_BLOCK = 1 << 20

# What to do about an error; `{place}` is the flag that said where to write.
_NEXT_STEP = {
    errno.ENOSPC: "the disk is full: free some space or choose another {place}",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another {place}",
    errno.EACCES: "no permission: change the permissions or choose another {place}",
    errno.EPERM: "no permission: change the permissions or choose another {place}",
    errno.EROFS: "the file system is read-only: choose another {place}",
    errno.EEXIST: "a file stands where a directory is needed: move it away or choose another {place}",
    errno.ENOTDIR: "a file stands where a directory is needed: move it away or choose another {place}",
    errno.EISDIR: "a directory stands where a file is needed: move it away or choose another {place}",
    errno.ENOENT: "there is no such file or directory: check the path, or run the step that makes it",
}
_place: ContextVar[str] = ContextVar("place", default="--prefix")


# --- paths --------------------------------------------------------------------------------------------------------


def is_local(path: str) -> bool:
    """Whether `path` lies on this machine's file system: a plain path or a file:// URL."""
    return "://" not in path or path.startswith("file://")


def local_path(path: str) -> pathlib.Path:
    """`path` for the operating system.

    Raises:
        StorageError: `path` is on another store.
    """
    if not is_local(path):
        raise StorageError(f"{path} is not on this machine: this needs a local path, use a local --prefix")
    return pathlib.Path(path.removeprefix("file://"))


def join(base: str, *names: str) -> str:
    """`base` and `names` as one path or URL; an absolute name or a URL replaces what stands before it."""
    for name in names:
        base = name if "://" in name else posixpath.join(base, name)
    return base


# What `temporary_name` makes.
_TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{16}\.tmp")


def temporary_name(name: str) -> str:
    """A hidden name that no other writer has, in this process or another; nothing reads such files."""
    # Bytes, as file systems count them: a name may have 255.
    kept = name.lstrip(".").encode(errors="replace")[:100].decode(errors="ignore")
    return f".{kept}.{os.getpid()}.{secrets.token_hex(8)}.tmp"


def remove_temporaries(directory: str) -> None:
    """Removes the temporary files and folders that killed writers left in a local directory itself, not below it.

    Nothing reads them; a step that goes on in the directory of a killed attempt removes them, so that its output is what it
    would be without the kill. Whoever calls it must be the only writer there.
    """
    if is_local(directory):
        for name in list_dir(directory):
            if _TEMPORARY.fullmatch(name):
                remove_tree(join(directory, name))


# --- reading ------------------------------------------------------------------------------------------------------


def exists(path: str) -> bool:
    with explained(path, "looked up"):
        if is_local(path):
            return os.path.exists(local_path(path))
        return bool(filesystem_of(path).exists(path))


def read_bytes(path: str) -> bytes:
    with explained(path, "read"):
        if is_local(path):
            return local_path(path).read_bytes()
        return bytes(filesystem_of(path).cat_file(path))


def read_json(path: str) -> Any:
    """The parsed content; anything that is not UTF-8 JSON is a `StorageError`."""
    data = read_bytes(path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"{path} is not valid JSON ({error}): restore it, or remove it and run its step again"
        ) from None


def list_dir(path: str) -> list[str]:
    """The sorted names in a directory; empty when there is none, as object stores cannot tell the two apart."""
    with explained(path, "listed"):
        try:
            if is_local(path):
                return sorted(os.listdir(local_path(path)))
            listed = filesystem_of(path).ls(path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(name).rstrip("/")) for name in listed)


def modified_time(path: str) -> datetime.datetime | None:
    """When the file was last written, in UTC; None when there is none or the store does not say."""
    try:
        if is_local(path):
            return datetime.datetime.fromtimestamp(os.stat(local_path(path)).st_mtime, datetime.UTC)
        modified = filesystem_of(path).modified(path)
    except (OSError, NotImplementedError):
        return None
    return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)


def sha256_file(path: str) -> str:
    """The SHA-256 of the content in hex, read in blocks."""
    digest = hashlib.sha256()
    for block in blocks_of(path):
        digest.update(block)
    return digest.hexdigest()


def blocks_of(path: str) -> Iterator[bytes]:
    """The content, a part at a time."""
    with explained(path, "read"), open_for_reading(path) as stream:
        while block := stream.read(_BLOCK):
            yield block


def files_below(path: str) -> list[str]:
    """The paths below a directory of all files in it and its subdirectories, in order; empty when there is none."""
    with explained(path, "listed"):
        if is_local(path):
            root, found = str(local_path(path)), []
            for directory, _, names in os.walk(root):
                inside = os.path.relpath(directory, root)
                found += [os.path.normpath(os.path.join(inside, name)) for name in names]
            return sorted(name.replace(os.sep, "/") for name in found if os.path.isfile(os.path.join(root, name)))
        filesystem = filesystem_of(path)
        root = str(filesystem._strip_protocol(path)).rstrip("/") + "/"
        return sorted(str(name).removeprefix(root) for name in filesystem.find(path))


def open_for_reading(path: str) -> Any:
    """A binary stream that can seek, local or not; whatever goes wrong while it is open is for `explained`."""
    return open(local_path(path), "rb") if is_local(path) else filesystem_of(path).open(path, "rb")


def filesystem_of(path: str) -> Any:
    """The fsspec driver of the store that a path or URL lies on.

    Raises:
        StorageError: there is no such store, or its package is not installed.
    """
    import fsspec  # kept off the import path of programs that only use local files

    protocol = path.split("://", 1)[0]
    try:
        return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]
    except ImportError as error:
        raise StorageError(
            f"{path} needs a package that is not installed ({error}): install it, for example `aiohttp` for http, or with the"
            " extra `gcs` or `s3`"
        ) from error
    except ValueError as error:
        raise StorageError(
            f"{path} names no known store `{protocol}://`: use a local path, gs://, s3:// or hf://"
        ) from error


# --- writing ------------------------------------------------------------------------------------------------------


def write_bytes(path: str, data: bytes, *, durable: bool = True, make_parents: bool = True) -> None:
    """Writes the whole file or nothing of it.

    Args:
        make_parents: make the directories above it. Without it, a missing directory on a local store is an error, and
            one that another process has renamed or removed does not come back.
        durable: flush to the disk before returning. Without it a reader still sees the old content or the new, but
            after a power failure the file may be empty.
    """
    with explained(path, "written"):
        if not is_local(path):
            filesystem_of(path).pipe_file(path, data)
            return
        target = local_path(path)
        if make_parents:
            target.parent.mkdir(parents=True, exist_ok=True)
        temporary = write_temporary(target, data, durable=durable)
        try:
            os.replace(temporary, target)
        except OSError:
            remove_quietly(temporary)
            raise
        if durable:
            sync_path(target.parent)


@contextlib.contextmanager
def writing(path: str) -> Iterator[IO[bytes]]:
    """A stream whose content appears at `path` only when the block ends without an error, flushed to the disk.

    What it takes need not fit into memory; on another store it is collected in a temporary file of this machine first.
    """
    if not is_local(path):
        with tempfile.TemporaryDirectory(prefix="marin-upload-") as scratch:
            collected = os.path.join(scratch, "content")
            with explained(collected, "written"), open(collected, "wb") as stream:
                yield stream
            with explained(path, "written"):
                filesystem_of(path).put_file(collected, path)
        return
    target = local_path(path)
    temporary = target.with_name(temporary_name(target.name))
    with explained(path, "written"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            remove_quietly(temporary)
            raise
        sync_path(target.parent)


def write_json(path: str, value: Any) -> None:
    """`write_bytes` of indented JSON; NaN and infinities are refused, as other readers refuse them.

    A lone surrogate, such as one of a file name that is no UTF-8, is written as JSON's escape `\\udcff`.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode(errors="backslashreplace"))


def remove_file(path: str) -> None:
    """Removes one file; it is no error when there is none."""
    with explained(path, "removed"), contextlib.suppress(FileNotFoundError):
        if is_local(path):
            local_path(path).unlink()
        else:
            filesystem_of(path).rm_file(path)


def remove_tree(path: str) -> None:
    """Removes a file, a link (not its target) or a directory; it is no error when there is none."""
    with explained(path, "removed"), contextlib.suppress(FileNotFoundError):
        if not is_local(path):
            filesystem_of(path).rm(path, recursive=True)
        elif os.path.isdir(local_path(path)) and not os.path.islink(local_path(path)):
            shutil.rmtree(local_path(path))
        else:
            local_path(path).unlink()


def sync_tree(path: str) -> None:
    """Flushes everything under a local directory to the disk; other stores keep what they have accepted."""
    if not is_local(path):
        return
    with explained(path, "flushed to the disk"):
        for directory, _, names in os.walk(local_path(path), topdown=False):
            for name in names:
                file = pathlib.Path(directory, name)
                if file.is_file() and not file.is_symlink():
                    sync_path(file)
            sync_path(pathlib.Path(directory))


def write_temporary(target: pathlib.Path, data: bytes, *, durable: bool = True) -> pathlib.Path:
    """Writes and flushes `data` beside `target` under a name of its own, which the caller renames or links."""
    temporary = target.with_name(temporary_name(target.name))
    create_and_fill(temporary, data, durable)
    return temporary


def sync_path(path: pathlib.Path) -> None:
    """Flushes one file or directory; a file system that cannot flush a directory is left to its own order."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def create_and_fill(path: pathlib.Path, data: bytes, durable: bool) -> None:
    """Creates a file that must not exist; on failure nothing of it stays."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    except BaseException:
        remove_quietly(path)
        raise
    finally:
        os.close(descriptor)


def remove_quietly(path: pathlib.Path) -> None:
    """Removes a temporary file; one that stays disturbs nobody, and must not hide what went wrong before."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


# --- errors -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def placed_by(flag: str) -> Iterator[None]:
    """For a block that writes where another flag than `--prefix` says: its errors advise to choose another of that."""
    token = _place.set(flag)
    try:
        yield
    finally:
        _place.reset(token)


@contextlib.contextmanager
def explained(path: str, verb: str) -> Iterator[None]:
    """Turns what the operating system or a store says in this block into a `StorageError` with the next step."""
    try:
        yield
    except MarinError:
        raise
    except OSError as error:
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else error.errno
        next_step = _NEXT_STEP.get(code or 0, str(error)).replace("{place}", _place.get())
        raise StorageError(f"{path} cannot be {verb}: {next_step}") from error
    except Exception as error:
        if is_local(path):
            raise
        raise StorageError(
            f"{path} cannot be {verb}, its store says {error!r}: check the path, the network and your credentials"
        ) from error
