"""A lease: the right of one process at a time to write a directory.

The holder is named in `{directory}/.executor_status.lock`, JSON with a worker id, a timestamp that a thread renews
every 30 seconds, and what is needed to see from this machine whether the holder still lives. A lease changes hands

- at once, when its holder ran on this machine and its process is gone (killed, or its number given to another process);
- otherwise when a waiting process has itself watched the lock for 90 seconds without a renewal. Nobody's clock is
  compared with another's, so neither clock skew nor a laptop's sleep takes a lease from a process that lives.

On a local file system taking, renewing, taking over and releasing happen under `flock` of the directory, and the lock
appears with its whole content or not at all. On other stores the lock is a plain object: it is written, and read back
after a pause to see who wrote last. That keeps out a second start that comes later, but two that come within the same
instant may both believe that they hold it; do not run one prefix on such a store from two machines at once.

A holder whose lease was taken over (it was stopped for longer than 90 seconds) finds `lost` set, and must not publish.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import psutil

from marin.errors import LeaseHeldError, StorageError
from marin.storage import files

LOCK_NAME = ".executor_status.lock"
HEARTBEAT = 30.0
STALE_AFTER = 90.0
_SETTLE = 0.5  # seconds between writing a lock on a remote store and reading back who wrote last


@dataclasses.dataclass(frozen=True)
class Holder:
    """What a lock file says; fields that a foreign or damaged lock lacks are empty."""

    worker_id: str
    timestamp: float
    machine: str = ""
    pid: int = 0
    process_start: float = 0.0

    def is_dead(self) -> bool:
        """Whether the holder certainly does not run any more; only known for processes of this machine."""
        return bool(self.machine) and self.machine == _machine() and not _is_running(self.pid, self.process_start)


def read_holder(directory: str) -> Holder | None:
    """Who holds the lease on `directory`, if anybody. A lock that cannot be parsed has a holder without a name."""
    path = files.join(directory, LOCK_NAME)
    if not files.exists(path):
        return None
    try:
        return _parse(files.read_bytes(path))
    except StorageError:
        if not files.exists(path):  # released between the two looks
            return None
        raise


def _parse(lock: bytes) -> Holder:
    try:
        record = json.loads(lock)
        return Holder(
            worker_id=str(record["worker_id"]),
            timestamp=float(record["timestamp"]),
            machine=str(record.get("machine", "")),
            pid=int(record.get("pid", 0)),
            process_start=float(record.get("process_start", 0.0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Holder("an unknown worker", 0.0)


def worker_id() -> str:
    """This process, for people: host and process number."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Lease:
    """The lease on one directory; a context manager that releases on leaving.

    Args:
        directory: path or URL; it is created when the lease is taken.
        heartbeat: seconds between renewals.
        stale_after: seconds without a renewal after which a watcher may take over.
        poll: seconds between looks while waiting.
    """

    def __init__(
        self, directory: str, *, heartbeat: float = HEARTBEAT, stale_after: float = STALE_AFTER, poll: float = 0.5
    ):
        self._directory = directory
        self._path = files.join(directory, LOCK_NAME)
        self._heartbeat, self._stale_after, self._poll = heartbeat, stale_after, poll
        self._worker_id = f"{worker_id()}:{secrets.token_hex(8)}"
        self._released = threading.Event()
        self._lost = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> bool:
        """Whether somebody else took over, or renewing has failed for so long that somebody may have."""
        return self._lost.is_set()

    def acquire(self, *, wait: bool = True, announce: Callable[[str], None] | None = None) -> Self:
        """Takes the lease, waiting for a live holder.

        Args:
            announce: called once with a sentence about the holder when there is something to wait for.
        Raises:
            LeaseHeldError: somebody holds it and `wait` is False.
            StorageError: the directory cannot be written.
        """
        seen, seen_since, announced = None, time.monotonic(), False
        files.make_dirs(self._directory)
        while not self._try_take(seen if time.monotonic() - seen_since >= self._stale_after else None):
            holder = read_holder(self._directory)
            if holder != seen:
                seen, seen_since = holder, time.monotonic()
            if holder is None:  # released meanwhile, or the directory was removed
                files.make_dirs(self._directory)
                continue
            if not wait:
                raise LeaseHeldError(
                    f"{self._directory} is held by {holder.worker_id}: wait for it to finish, or stop it"
                )
            if announce and not announced:
                announce(f"waiting for {holder.worker_id}, which is writing {self._directory}")
                announced = True
            time.sleep(self._poll)
        self._released.clear()
        self._thread = threading.Thread(target=self._renew_until_released, name="marin-lease", daemon=True)
        self._thread.start()
        return self

    def verify(self) -> bool:
        """Reads the lock again: whether this lease is still the holder's."""
        if not self.lost and not self._is_mine(read_holder(self._directory)):
            self._lost.set()
        return not self.lost

    def release(self) -> None:
        """Stops renewing and removes the lock, if it is still this lease's own."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with _exclusive(self._directory):
            if self._is_mine(read_holder(self._directory)):
                files.remove_file(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _try_take(self, stale: Holder | None) -> bool:
        """Takes the lease if it is free, its holder is dead, or its lock is still exactly `stale`."""
        with _exclusive(self._directory):
            holder = read_holder(self._directory)
            if holder is not None and not holder.is_dead() and holder != stale:
                return False
            if not files.is_local(self._path):
                files.write_bytes(self._path, self._content())
            elif not self._link_lock(replaces=holder):
                return False
        if not files.is_local(self._path):
            time.sleep(_SETTLE)
        return self._is_mine(read_holder(self._directory))

    def _link_lock(self, replaces: Holder | None) -> bool:
        """Makes the lock appear whole, and only where there is none; an old lock is first moved to a name of our own.

        `flock` already keeps others out. Where a file system lacks it, the move and the link still let one process win.
        """
        lock = files.local_path(self._path)
        try:
            if replaces is not None and not _remove_exactly(lock, replaces):
                return False
            temporary = files.write_temporary(lock, self._content())
            try:
                os.link(temporary, lock)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    raise
                os.rename(temporary, lock)  # no hard links on this file system: `flock` alone keeps others out
            finally:
                temporary.unlink(missing_ok=True)
            files.sync_path(lock.parent)
        except (FileExistsError, FileNotFoundError):
            return False
        except OSError as error:
            raise StorageError(f"{lock} cannot be written: {error}; choose another --prefix") from error
        return True

    def _renew_until_released(self) -> None:
        renewed = time.monotonic()
        while not self._released.wait(self._heartbeat):
            try:
                with _exclusive(self._directory):
                    if not self._is_mine(read_holder(self._directory)):
                        self._lost.set()
                        return
                    files.write_bytes(self._path, self._content())
                renewed = time.monotonic()
            except OSError:  # a full disk may get room again; when it does not, the lease counts as lost
                if time.monotonic() - renewed >= self._stale_after:
                    self._lost.set()
                    return

    def _content(self) -> bytes:
        holder = Holder(self._worker_id, time.time(), _machine(), os.getpid(), _process_start(os.getpid()))
        return json.dumps(dataclasses.asdict(holder)).encode()

    def _is_mine(self, holder: Holder | None) -> bool:
        return holder is not None and holder.worker_id == self._worker_id


def _remove_exactly(lock: pathlib.Path, expected: Holder) -> bool:
    """Removes the lock of `expected`; a lock that another process wrote meanwhile is put back."""
    moved = lock.with_name(files.temporary_name(LOCK_NAME))
    os.rename(lock, moved)
    found = _parse(moved.read_bytes())
    if found != expected:
        os.link(moved, lock)
    moved.unlink()
    return found == expected


@contextlib.contextmanager
def _exclusive(directory: str) -> Iterator[None]:
    """Keeps other processes of a local file system out of the block; does nothing where that cannot be had."""
    if not files.is_local(directory):
        yield
        return
    try:
        descriptor = os.open(files.local_path(directory), os.O_RDONLY)
    except FileNotFoundError:  # the directory was removed under us, and the lock with it
        yield
        return
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot lock a directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def _machine() -> str:
    """Names the set of processes that process numbers are looked up in: host, boot, and container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as stream:
        parts.append(stream.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _process_start(pid: int) -> float:
    return round(psutil.Process(pid).create_time(), 2)


def _is_running(pid: int, process_start: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - process_start) < 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
