"""A lease: the right of one process at a time to run a step, kept as a ledger of numbered records.

    {directory}/ledger/00000001.json, 00000002.json, ...   each created only if absent, never changed, never deleted
    {directory}/heartbeat-{n}.json                         overwritten by the holder of claim n while it works

The record with the highest number is the state: a "claim" (somebody works, or died working), a "release" (nobody
does), or a "commit" (an output was selected; its payload says which). Claiming, taking over, releasing and committing
are one operation, "create record highest + 1 if absent", which the store gives to exactly one of all who ask
(`exclusive.create`). The number of a claim is thus a fencing token: whoever was overtaken while it was stopped
finds its next number taken, and can neither commit nor release, whenever it wakes up. No step of this relies on time.

Time only decides when a waiting process overtakes a claim:

- at once, when the holder ran on this machine and its process is gone (killed, or its number given to another process);
- otherwise when the waiting process has itself watched claim and heartbeat unchanged for `stale_after` seconds of its
  own monotonic clock. Nobody's clock is compared with another's, so neither clock skew nor a sleeping laptop takes a
  lease from a process that lives. A missing or unreadable heartbeat counts as unchanged.

A record that cannot be parsed (torn by a power failure, or on a file system without hard links) counts as the claim of
an unknown worker: it is waited for, and then overtaken. A claim and a release need only be atomic; a power failure may
lose them, along with the work that they stood for. A commit is on the disk when `commit` returns.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import random
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import psutil

from marin.errors import LeaseHeldError, StorageError
from marin.storage import exclusive, files

LEDGER_NAME = "ledger"
# Read when a lease is made, so that a test can shorten them for everything that its process runs.
HEARTBEAT = 30.0
STALE_AFTER = 90.0
POLL = 0.5

Kind = Literal["claim", "release", "commit"]
_KINDS: tuple[Kind, ...] = ("claim", "release", "commit")
_RECORD = re.compile(r"(\d{8})\.json")


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who wrote a record; fields that a damaged record lacks are empty."""

    worker_id: str
    date: str = ""
    machine: str = ""
    pid: int = 0
    process_start: float = 0.0

    def is_dead(self) -> bool:
        """Whether the holder certainly does not run any more; only known for processes of this machine."""
        return self.pid > 0 and self.machine == machine() and not _is_running(self.pid, self.process_start)


@dataclasses.dataclass(frozen=True)
class State:
    """The highest record of a ledger.

    `attempt` is the number of the claim that it is about: the claim's own, the one released, the one committed.
    """

    number: int
    kind: Kind
    holder: Holder | None
    payload: dict[str, Any]
    attempt: int


def read_state(directory: str) -> State | None:
    """What the ledger says; None when there is no record."""
    return next(_newest_first(directory), None)


def read_commit(directory: str) -> State | None:
    """The newest commit, whatever was recorded after it; None when there never was one.

    Whoever takes a lease needs it, as its own claim is the state by then.
    """
    return next((state for state in _newest_first(directory) if state.kind == "commit"), None)


def is_over(directory: str, attempt: int) -> bool:
    """Whether the holder of claim `attempt` certainly does nothing more: it has let go, or its process was of this machine and is gone."""
    for state in _newest_first(directory):
        if state.kind == "release" and state.number == attempt + 1:
            return True
        if state.number <= attempt:
            return state.number == attempt and _is_dead(state)
    return False


def worker_id() -> str:
    """This process, for people: host and process number."""
    return f"{socket.gethostname()}:{os.getpid()}"


def this_process() -> Holder:
    """This process as the holder of something; its worker id ends in a number that is drawn at each call."""
    pid = os.getpid()
    return Holder(f"{worker_id()}:{secrets.token_hex(8)}", _now(), machine(), pid, _process_start(pid))


class Lease:
    """The lease of one step; a context manager that releases on leaving, unless there was a commit.

    Args:
        directory: path or URL of the ledger's parent; it is created when the lease is taken.
        heartbeat: seconds between renewals, `HEARTBEAT` by default.
        stale_after: seconds without a renewal after which a watcher takes over, `STALE_AFTER` by default.
        poll: seconds between looks while waiting, about; `POLL` by default.
    """

    def __init__(
        self,
        directory: str,
        *,
        heartbeat: float | None = None,
        stale_after: float | None = None,
        poll: float | None = None,
    ):
        self._directory = directory
        self._ledger = files.join(directory, LEDGER_NAME)
        self._heartbeat = HEARTBEAT if heartbeat is None else heartbeat
        self._stale_after = STALE_AFTER if stale_after is None else stale_after
        self._poll = POLL if poll is None else poll
        self._token = 0
        self._claim = b""  # our record; nobody else writes the same bytes
        self._committed = False
        self._ended = threading.Event()
        self._lost = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> int:
        """The number of our claim."""
        assert self._token, "the lease is not held"
        return self._token

    @property
    def lost(self) -> bool:
        """Whether somebody else took over, or renewing has failed for so long that somebody may have."""
        return self._lost.is_set()

    def acquire(self, wait: bool = True, announce: Callable[[str], None] | None = None) -> Self:
        """Takes the lease, waiting for a live holder.

        Args:
            announce: called once with a sentence about the holder when there is something to wait for.
        Raises:
            LeaseHeldError: somebody holds it and `wait` is False.
            StorageError: the ledger cannot be read or written.
        """
        assert not self._token, "a lease is taken once"
        watch, announced = _Watch(self._directory), False
        while True:
            state = read_state(self._directory)
            silence = watch.silence(state)
            held = state is not None and state.kind == "claim" and state.holder is not None
            if state is None or not held or _is_dead(state) or silence >= self._stale_after:
                if self._take(state.number + 1 if state else 1):
                    return self
                continue  # somebody was faster: look who
            assert state.holder is not None
            if not wait:
                raise LeaseHeldError(
                    f"{self._directory} is held by {state.holder.worker_id}: wait for it to finish, or stop it"
                )
            if announce and not announced:
                announce(f"waiting for {state.holder.worker_id}, which is writing {self._directory}")
                announced = True
            time.sleep(self._poll * random.uniform(0.5, 1.5))  # many waiters must not look in step

    def verify(self) -> bool:
        """Reads the ledger again: whether our claim stands and nobody has a higher record."""
        if self._committed or self.lost:
            return self._committed
        if _highest(self._ledger) != self._token or not self._is_mine(self._token, self._claim):
            self._lost.set()
        return not self.lost

    def commit(self, payload: Mapping[str, Any]) -> bool:
        """Selects this attempt's output, which must be whole and on the disk; False when we were overtaken.

        Raises:
            StorageError: the record could not be written or flushed; `read_state` tells whether it stands.
        """
        self._end_heartbeat()
        assert self._token and not self._committed
        if not self.verify():
            return False
        directory = self._directory
        for _ in range(3):  # the directories that the first claim made, up to the one that was there
            if files.is_local(directory):
                files.sync_path(files.local_path(directory))
            directory = os.path.dirname(directory)
        record = _record("commit", payload)
        try:
            self._committed = self._put(self._token + 1, record, durable=True)
        except StorageError:
            with contextlib.suppress(StorageError):  # visible to all, but perhaps not on the disk
                self._committed = self._is_mine(self._token + 1, record)
            raise
        if not self._committed:
            self._lost.set()
        return self._committed

    def release(self) -> None:
        """Stops renewing and lets others in at once; nothing happens when we were overtaken or have committed."""
        self._end_heartbeat()
        if self._token and not self._committed and self.verify():
            self._put(self._token + 1, _record("release"), durable=False)
        self._token = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A claim without a release is overtaken like that of a dead process: nothing to stop for, and no reason to hide
        # what went wrong inside the block.
        with contextlib.suppress(StorageError):
            self.release()

    def _take(self, number: int) -> bool:
        claim = _record("claim")
        if not self._put(number, claim, durable=False):
            return False
        self._token, self._claim = number, claim
        self._thread = threading.Thread(target=self._renew_until_ended, name="marin-lease", daemon=True)
        self._thread.start()  # its first act is to wait, so a short step pays for the thread alone: 0.1 ms
        return True

    def _put(self, number: int, record: bytes, *, durable: bool) -> bool:
        """Creates a record if absent. Only the first may make the ledger: a removed one must not come back."""
        path = _record_path(self._ledger, number)
        if exclusive.create(path, record, make_parents=number == 1, durable=durable):
            return True
        # A driver that repeats a put whose answer was lost finds its own record.
        return not files.is_local(path) and self._is_mine(number, record)

    def _is_mine(self, number: int, record: bytes) -> bool:
        path = _record_path(self._ledger, number)
        try:
            return files.read_bytes(path) == record
        except StorageError:
            if files.exists(path):
                raise
            return False

    def _renew_until_ended(self) -> None:
        renewed, beats = time.monotonic(), 0
        path = _heartbeat_path(self._directory, self._token)
        while not self._ended.wait(self._heartbeat):
            try:
                if not self.verify():
                    return
                beats += 1
                beat = {"worker_id": json.loads(self._claim)["worker_id"], "beat": beats, "date": _now()}
                data = json.dumps(beat).encode()
                files.write_bytes(path, data, durable=False, make_parents=False)  # a removed ledger must not come back
                renewed = time.monotonic()
            except StorageError:  # a full disk may get room again; when it does not, the lease counts as lost
                if time.monotonic() - renewed >= self._stale_after:
                    self._lost.set()
                    return

    def _end_heartbeat(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(
                timeout=1.0
            )  # a renewal that hangs in its store is not waited for: it only tells the time
            self._thread = None


class _Watch:
    """For how long a waiting process has seen the same claim with the same heartbeat."""

    def __init__(self, directory: str):
        self._directory = directory
        self._number = 0
        self._beat = b""
        self._since = time.monotonic()

    def silence(self, state: State | None) -> float:
        number = state.number if state else 0
        beat = self._read_beat(number) if number == self._number else b""
        if number != self._number or (beat and beat != self._beat):
            self._number, self._beat, self._since = number, beat, time.monotonic()
        return time.monotonic() - self._since

    def _read_beat(self, number: int) -> bytes:
        path = _heartbeat_path(self._directory, number)
        try:
            return files.read_bytes(path) if files.exists(path) else b""
        except StorageError:
            return b""


def _is_dead(state: State) -> bool:
    return state.holder is not None and state.holder.is_dead()


def _record_path(ledger: str, number: int) -> str:
    return files.join(ledger, f"{number:08d}.json")


def _heartbeat_path(directory: str, number: int) -> str:
    return files.join(directory, f"heartbeat-{number}.json")


def _newest_first(directory: str) -> Iterator[State]:
    ledger = files.join(directory, LEDGER_NAME)
    for number in reversed(_numbers(ledger)):
        path = _record_path(ledger, number)
        try:
            data = files.read_bytes(path)
        except StorageError:
            if files.exists(path):
                raise
            return  # the ledger was removed while it was read
        yield _parse(number, data)


def _numbers(ledger: str) -> list[int]:
    matches = (_RECORD.fullmatch(name) for name in files.list_dir(ledger))
    return sorted(int(match[1]) for match in matches if match)


def _highest(ledger: str) -> int:
    return max(_numbers(ledger), default=0)


def _record(kind: Kind, payload: Mapping[str, Any] | None = None) -> bytes:
    """A record of this process that equals no other."""
    return json.dumps({"kind": kind, **dataclasses.asdict(this_process()), "payload": dict(payload or {})}).encode()


def _parse(number: int, data: bytes) -> State:
    try:
        record = json.loads(data)
        holder = Holder(
            worker_id=str(record["worker_id"]),
            date=str(record["date"]),
            machine=str(record["machine"]),
            pid=int(record["pid"]),
            process_start=float(record["process_start"]),
        )
        kind = _KINDS[_KINDS.index(record["kind"])]
        payload = dict(record["payload"])
        attempt = number if kind == "claim" else int(payload.get("attempt", number - 1))
        return State(number, kind, holder, payload, attempt)
    except (ValueError, KeyError, TypeError, AttributeError):
        return State(number, "claim", Holder("an unknown worker"), {}, number)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


@functools.cache
def machine() -> str:
    """Names the set of processes that process numbers are looked up in: host, boot, and container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as stream:
        parts.append(stream.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _process_start(pid: int) -> float:
    """When a process began, in units that differ between systems but not within one; 0 when that cannot be seen.

    On Linux it is counted from the machine's start, so that setting the clock does not change it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as stream:
            return float(stream.read().rpartition(b")")[2].split()[19])
        return 0.0
    with contextlib.suppress(psutil.Error):
        return round(psutil.Process(pid).create_time(), 2)
    return 0.0


def _is_running(pid: int, process_start: float) -> bool:
    try:
        os.kill(pid, 0)
        started = _process_start(pid)
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and (not started or started == process_start)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
    except (PermissionError, psutil.AccessDenied, OverflowError):  # another user's, or no number of a process
        return True
