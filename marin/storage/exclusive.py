"""Files that only one of all who try creates: what leases and commits stand on.

Of all who `create` one path, on any number of machines, exactly one gets True. Locally it is a hard link from a complete
temporary file; elsewhere it is the store's own conditional put (S3: If-None-Match, Google: ifGenerationMatch=0, Azure:
If-None-Match), and a store without one is refused by `check_store`. Where a local file system has no hard links, the file
is opened with O_EXCL and then filled: a crash or a reader in between finds a part of the content, so readers must
recognise a torn file by its content.
"""

import contextlib
import errno
import os
import pathlib
import random
import threading
import time

from marin.errors import StorageError
from marin.storage import files

# Drivers whose `pipe_file(mode="create")` is a conditional request to the store (read in their sources of 2026).
_CONDITIONAL_DRIVERS = ("s3fs.", "gcsfs.", "adlfs.", "fsspec.implementations.memory")
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_SLOWEST_FILL = 30.0  # seconds; well below the silence after which a waiting process takes a lease over
_memory_lock = threading.Lock()  # fsspec's memory store looks and then writes, which two threads can do at once
_checked_stores: set[tuple[str, str]] = set()


def create(path: str, data: bytes, *, make_parents: bool = True, durable: bool = True) -> bool:
    """Creates the file with this content unless there is one: True for exactly one of all who try.

    False on a store can also mean that our own put arrived and its answer did not, as drivers repeat a request whose
    answer was lost; whoever must tell the two apart puts something unique into `data` and reads the file back.

    Args:
        make_parents: make the directories above it. Without it, a missing directory on a local store is an error.
        durable: on a local store, True is returned only when the file is on the disk.
    Raises:
        StorageError: the file cannot be created. It may exist nevertheless, if only the last flush failed.
    """
    with files.explained(path, "created"):
        if not files.is_local(path):
            return _put_if_absent(path, data)
        target = files.local_path(path)
        if make_parents:
            target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():  # saves the temporary file; the link below is what decides
            return False
        created = _link_or_open(target, data, durable)
        if created and durable:
            files.sync_path(target.parent)
        return created


def check_store(path_prefix: str) -> None:
    """Proves that the store under `path_prefix` has a conditional put; asked once per store.

    The driver must be known to leave the decision to the store, as fsspec's default looks first and writes then; and
    the store must really refuse a second create, as some servers ignore the condition.

    Raises:
        StorageError: it has none, so two runs could both believe that they hold a step.
    """
    store = path_prefix.partition("://")[2].partition("/")[0] if not files.is_local(path_prefix) else ""
    key = (path_prefix.split("://", 1)[0], store)
    if files.is_local(path_prefix) or key in _checked_stores:
        return
    next_step = "use a local --prefix, or a bucket on S3, Google Cloud Storage, Azure or a recent MinIO"
    driver = type(files.filesystem_of(path_prefix))
    if not driver.__module__.startswith(_CONDITIONAL_DRIVERS):
        raise StorageError(
            f"{path_prefix} cannot keep two runs apart: its driver {driver.__module__}.{driver.__name__} has no "
            f"conditional put; {next_step}"
        )
    probe = files.join(path_prefix, files.temporary_name("create_check"))
    try:
        refused = create(probe, b"1") and not create(probe, b"2")
    except StorageError as error:
        raise StorageError(f"{path_prefix} cannot be used for runs: {error}") from error
    finally:
        with contextlib.suppress(StorageError):
            files.remove_file(probe)
    if not refused:
        raise StorageError(
            f"{path_prefix} cannot keep two runs apart: the store overwrites a file that it was asked to create only "
            f"if absent; {next_step}"
        )
    _checked_stores.add(key)


def _link_or_open(target: pathlib.Path, data: bytes, durable: bool) -> bool:
    temporary = files.write_temporary(target, data, durable=durable)
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS asks again where the server's answer was lost, and then finds the link that it has made (open(2), on O_EXCL).
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            return os.path.samefile(temporary, target)
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return _open_and_fill(target, data, durable)
    finally:
        files.remove_quietly(temporary)
    return True


def _open_and_fill(target: pathlib.Path, data: bytes, durable: bool) -> bool:
    """Decides by O_EXCL, on a file system without hard links.

    A process that was stopped while it filled the file may have been seen as dead by a reader of the torn content, so
    one that took long says so, and does not count its file as created.
    """
    start = _clock()
    try:
        files.create_and_fill(target, data, durable)
    except FileExistsError:
        return False
    took = _clock() - start
    if took > _SLOWEST_FILL:
        raise StorageError(f"{target} took {took:.0f} s to write (was this process stopped?): run the command again")
    return True


def _clock() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _put_if_absent(path: str, data: bytes) -> bool:
    filesystem = files.filesystem_of(path)
    for attempt in range(5):
        try:
            if path.startswith("memory://"):
                with _memory_lock:
                    filesystem.pipe_file(path, data, mode="create")
            else:
                filesystem.pipe_file(path, data, mode="create")
            return True
        except FileExistsError:
            return False
        except OSError as error:  # not every server names the condition, which s3fs needs for FileExistsError
            response = getattr(error.__cause__, "response", None) or {}
            code = str(response.get("Error", {}).get("Code"))
            if code in ("PreconditionFailed", "412"):
                return False
            if code not in ("ConditionalRequestConflict", "409") or attempt == 4:
                raise
            time.sleep(random.uniform(0.05, 0.2) * 2**attempt)  # two creates met; S3 asks for another try
    raise AssertionError("the last attempt returns or raises")
