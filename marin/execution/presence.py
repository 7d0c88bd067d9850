"""Whether process 0 is there, as those see it that wait for it (see `marin.execution.following`).

    {prefix}/.together/{start}/{worker}.json

Process 0 of several processes that were started alike writes this file when it begins and again with each heartbeat. At a good
end it removes it, at a bad one it notes that in it. `start` names what all of them were started with, such as a port. Two
programs may have that in common; the others then wait as long as either is there.

Nobody is taken for gone for being slow. A process of this machine is there for as long as it runs, even stopped. One of another
machine is gone when it says so, or when whoever waits has watched for `timeout` seconds, and its file has not changed.
"""

import contextlib
import dataclasses
import json
import posixpath
import threading
import time
from collections.abc import Iterator

import psutil

from marin.errors import ExecutionError, StorageError
from marin.storage import files, lease
from marin.storage.lease import Holder

FOLDER = ".together"
_PATIENCE = (
    10  # looks for which process 0 has to be gone: another may take its place, and its last step's mark be seen late
)
_LONGEST_LOOK = 5.0  # seconds that count between two looks: whoever waits may have been stopped, and process 0 not


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What a file says."""

    holder: Holder
    beat: int
    ended: float  # seconds since 1970, by its own clock; 0 for one that has not said so

    @property
    def is_there(self) -> bool:
        return not self.ended and not self.holder.is_dead()

    @property
    def is_of_this_start(self) -> bool:
        """Whether it certainly was there when this process had begun; only known for processes of this machine."""
        own = lease.this_process()
        return self.holder.machine == own.machine and (
            self.ended >= psutil.Process().create_time() or self.holder.process_start >= own.process_start > 0
        )


def directory_of(prefix: str, start: str) -> str:
    """Where the process 0 of this start is seen."""
    return files.join(prefix, FOLDER, start)


@contextlib.contextmanager
def shown(directory: str) -> Iterator[None]:
    """Shows this process as process 0, for as long as the block runs.

    A store that cannot be written is no error here: the steps say so, and where they are all done nobody waits.
    """
    own = lease.this_process()
    path = files.join(directory, f"{own.worker_id.replace(':', '-')}.json")
    ended = threading.Event()

    def write(beat: int, ended: float = 0.0) -> None:
        record = {**dataclasses.asdict(own), "beat": beat, "ended": ended}
        with contextlib.suppress(StorageError):
            files.write_bytes(path, json.dumps(record).encode(), durable=False)

    def beat() -> None:
        beats = 0
        while not ended.wait(lease.HEARTBEAT):
            beats += 1
            write(beats)

    write(0)
    with contextlib.suppress(StorageError):
        _remove_litter(directory)
    thread = threading.Thread(target=beat, name="marin-presence", daemon=True)
    thread.start()
    is_good = False
    try:
        yield
        is_good = True
    except SystemExit as leaving:
        is_good = not leaving.code
        raise
    finally:
        ended.set()
        thread.join(timeout=1.0)  # a write that hangs in its store is not waited for
        if is_good:
            _remove(directory, path)
        else:
            write(-1, time.time())


class Watch:
    """Watches for process 0 from when it is made; one that had ended by then was another start's, as far as can be known.

    Args:
        timeout: seconds to wait for process 0 to come, and for a sign of life of one on another machine.
        raise_it: how a person can have it longer.
    """

    def __init__(self, directory: str, timeout: float, raise_it: str):
        self._directory, self._timeout, self._raise_it = directory, timeout, raise_it
        self._last = _read(directory) or {}
        self._earlier = {name for name, seen in self._last.items() if not seen.is_there and not seen.is_of_this_start}
        self._was_there = False
        self._looks_in_vain = 0
        self._silence, self._looked = 0.0, time.monotonic()

    def look(self, step: str) -> None:
        """Looks once more.

        Args:
            step: that this process waits for.
        Raises:
            ExecutionError: process 0 has ended, or was not heard of for too long.
        """
        before, found = self._last, _read(self._directory)
        if found is None:
            return
        self._last = found
        there = {name: seen for name, seen in found.items() if seen.is_there}
        self._was_there = self._was_there or bool(found.keys() - self._earlier)
        self._looks_in_vain = 0 if there else self._looks_in_vain + 1
        now = time.monotonic()
        self._silence += min(now - self._looked, _LONGEST_LOOK)
        self._looked = now
        if any(seen.holder.machine == lease.machine() or seen != before.get(name) for name, seen in there.items()):
            self._silence = 0.0
        again = "start all processes again with the same command"
        if self._was_there and self._looks_in_vain > _PATIENCE:
            raise ExecutionError(
                f"process 0 has ended, and step `{step}`, which this process waited for, is not done: what it printed last says"
                f" why. Mend the cause and {again}"
            )
        if self._silence > self._timeout:
            what = "was not heard of" if self._was_there else "has not come"
            raise ExecutionError(
                f"process 0 {what} for {self._timeout:.0f} s, while this process waited for step `{step}`: see that it runs, and"
                f" that both see the same {self._directory}, {again}, or {self._raise_it}"
            )


def _read(directory: str) -> dict[str, _Seen] | None:
    """What each file says, by its name; None where the store cannot be read just now, which tells nothing."""
    found: dict[str, _Seen] = {}
    try:
        for name in files.list_dir(directory):
            path = files.join(directory, name)
            if name.endswith(".json"):
                with _may_vanish(path):
                    found[name] = _parse(files.read_bytes(path))
    except StorageError:
        return None
    return found


@contextlib.contextmanager
def _may_vanish(path: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        if files.exists(path):
            raise


def _parse(data: bytes) -> _Seen:
    try:
        record = json.loads(data)
        names = {field.name for field in dataclasses.fields(Holder)}
        holder = Holder(**{name: value for name, value in record.items() if name in names})
        return _Seen(holder, int(record["beat"]), float(record["ended"]))
    except (ValueError, TypeError, AttributeError, KeyError):
        return _Seen(Holder("an unknown worker"), 0, 0.0)


def _remove_litter(directory: str) -> None:
    """Removes what those left that are gone."""
    for name, seen in (_read(directory) or {}).items():
        if not seen.is_there:
            files.remove_file(files.join(directory, name))


def _remove(directory: str, path: str) -> None:
    with contextlib.suppress(StorageError):
        files.remove_file(path)
        for folder in (directory, posixpath.dirname(directory)):
            if files.is_local(folder):
                with contextlib.suppress(OSError):  # others are in it
                    files.local_path(folder).rmdir()
