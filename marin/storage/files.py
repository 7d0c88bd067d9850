"""Files and directories on any fsspec store, by path or URL; local ones through the operating system.

A local write goes to a temporary file in the same directory, is flushed to the disk, and takes the final name by a
rename; then the directory is flushed. A reader thus sees the old content or the new, never a part, and a crash leaves
at most a temporary file, which nothing reads. On another store a write is one put, which such stores apply as a whole.

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
import secrets
import shutil
from collections.abc import Iterator
from typing import Any

from marin.errors import StorageError

_BLOCK = 1 << 20

_NEXT_STEP = {
    errno.ENOSPC: "the disk is full: free some space or choose another --prefix",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another --prefix",
    errno.EACCES: "no permission: change the permissions or choose another --prefix",
    errno.EPERM: "no permission: change the permissions or choose another --prefix",
    errno.EROFS: "the file system is read-only: choose another --prefix",
    errno.EEXIST: "a file stands where a directory is needed: move it away or choose another --prefix",
    errno.ENOTDIR: "a file stands where a directory is needed: move it away or choose another --prefix",
    errno.EISDIR: "a directory stands where a file is needed: move it away or choose another --prefix",
    errno.ENOENT: "there is no such file or directory: check the path, or run the step that makes it",
}


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


def temporary_name(name: str) -> str:
    """A hidden name that no other writer has, in this process or another; nothing reads such files."""
    return f".{name.lstrip('.')[:100]}.{os.getpid()}.{secrets.token_hex(8)}.tmp"


# --- reading ------------------------------------------------------------------------------------------------------


def exists(path: str) -> bool:
    with _explained(path, "looked up"):
        if is_local(path):
            return os.path.exists(local_path(path))
        return bool(_filesystem(path).exists(path))


def read_bytes(path: str) -> bytes:
    with _explained(path, "read"):
        if is_local(path):
            return local_path(path).read_bytes()
        return bytes(_filesystem(path).cat_file(path))


def read_json(path: str) -> Any:
    """The parsed content; anything that is not UTF-8 JSON is a `StorageError`."""
    data = read_bytes(path)
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageError(
            f"{path} is not valid JSON ({error}): restore it, or remove it and run its step again"
        ) from None


def list_dir(path: str) -> list[str]:
    """The sorted names in a directory; empty when there is none, as object stores cannot tell the two apart."""
    with _explained(path, "listed"):
        try:
            if is_local(path):
                return sorted(os.listdir(local_path(path)))
            listed = _filesystem(path).ls(path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(name).rstrip("/")) for name in listed)


def modified_time(path: str) -> datetime.datetime | None:
    """When the file was last written, in UTC; None when there is none or the store does not say."""
    try:
        if is_local(path):
            return datetime.datetime.fromtimestamp(os.stat(local_path(path)).st_mtime, datetime.UTC)
        modified = _filesystem(path).modified(path)
    except (OSError, NotImplementedError):
        return None
    return modified if modified.tzinfo else modified.replace(tzinfo=datetime.UTC)


def sha256_file(path: str) -> str:
    """The SHA-256 of the content in hex, read in blocks."""
    digest = hashlib.sha256()
    with _explained(path, "read"), _open_for_reading(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# --- writing ------------------------------------------------------------------------------------------------------


def write_bytes(path: str, data: bytes) -> None:
    """Writes the whole file or nothing of it, and makes the directories above it."""
    with _explained(path, "written"):
        if not is_local(path):
            _filesystem(path).pipe_file(path, data)
            return
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = write_temporary(target, data)
        try:
            os.replace(temporary, target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_path(target.parent)


def write_json(path: str, value: Any) -> None:
    """`write_bytes` of indented JSON; NaN and infinities are refused, as other readers refuse them."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def make_dirs(path: str) -> None:
    with _explained(path, "created"):
        if is_local(path):
            local_path(path).mkdir(parents=True, exist_ok=True)
        else:
            _filesystem(path).makedirs(path, exist_ok=True)


def remove_file(path: str) -> None:
    """Removes one file; it is no error when there is none."""
    with _explained(path, "removed"), contextlib.suppress(FileNotFoundError):
        if is_local(path):
            local_path(path).unlink()
        else:
            _filesystem(path).rm_file(path)


def remove_tree(path: str) -> None:
    """Removes a file, a link (not its target) or a directory; it is no error when there is none."""
    with _explained(path, "removed"), contextlib.suppress(FileNotFoundError):
        if not is_local(path):
            _filesystem(path).rm(path, recursive=True)
        elif os.path.isdir(local_path(path)) and not os.path.islink(local_path(path)):
            shutil.rmtree(local_path(path))
        else:
            local_path(path).unlink()


def sync_tree(path: str) -> None:
    """Flushes everything under a local directory to the disk; other stores keep what they have accepted."""
    if not is_local(path):
        return
    with _explained(path, "flushed to the disk"):
        for directory, _, names in os.walk(local_path(path), topdown=False):
            for name in names:
                file = pathlib.Path(directory, name)
                if file.is_file() and not file.is_symlink():
                    sync_path(file)
            sync_path(pathlib.Path(directory))


def write_temporary(target: pathlib.Path, data: bytes) -> pathlib.Path:
    """Writes and flushes `data` beside `target` under a name of its own, which the caller renames or links."""
    temporary = target.with_name(temporary_name(target.name))
    try:
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
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


# --- inside -------------------------------------------------------------------------------------------------------


def _filesystem(path: str) -> Any:
    import fsspec  # kept off the import path of programs that only use local files

    protocol = path.split("://", 1)[0]
    try:
        return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]
    except ImportError as error:
        raise StorageError(
            f"{path} needs a package that is not installed ({error}): install it, "
            f"for example with the extra `gcs` or `s3`"
        ) from error
    except ValueError as error:
        raise StorageError(
            f"{path} names no known store `{protocol}://`: use a local path, gs://, s3:// or hf://"
        ) from error


def _open_for_reading(path: str) -> Any:
    return open(local_path(path), "rb") if is_local(path) else _filesystem(path).open(path, "rb")


@contextlib.contextmanager
def _explained(path: str, verb: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else error.errno
        next_step = _NEXT_STEP.get(code or 0)
        raise StorageError(f"{path} cannot be {verb}: {next_step or error}") from error
    except Exception as error:
        if is_local(path):
            raise
        raise StorageError(
            f"{path} cannot be {verb}, its store says {error!r}: check the path, the network and your credentials"
        ) from error
