"""Kills or stops a run at a chosen storage operation, or lets it fail, and proves that the next run makes all well.

    python tests/torture/crash_matrix.py DIRECTORY --points 1000 --seed 7

A graph of three steps is run once to count its storage operations. Each point of the matrix then runs it under a fresh
prefix with one fault: SIGKILL before or after operation k or halfway through its write, EIO at operation k, a disk that
is full from operation k on, or SIGSTOP: a rival on what looks like another machine then overtakes the stopped run, does
all the work, and only after that the stopped run goes on. Half of the points kill twice: also the run that repairs. The
next run, without faults, must find what it needs:

- it ends with status 0, and every output is whole and right (no false hit, nothing to clean up by hand);
- a step that was committed, or reported as done, is not run again (no lost commit), and is committed once;
- whatever said SUCCESS right after the fault was whole and right then, and made by the process that its record names,
  never by one that was overtaken;
- a run that met an error or was stopped, instead of killed, ended with status 0, or with status 2 and one message, never a traceback.

Runs are forks of this process, which has imported everything, so that a point takes about 0.1 s. Prints one JSON line
for each point that failed, and one with totals; exits with 1 if any failed. A point is repeated by `--only NAME`.
"""

import argparse
import builtins
import collections
import contextlib
import dataclasses
import errno
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from marin import errors
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, provenance, this_output_path
from marin.execution.status import ATTEMPTS_NAME, INFO_NAME, STATUS_NAME
from marin.storage import files, lease

LABELS = ("a", "b", "c")
_write = os.write  # what the harness itself uses, past every fault


# --- the graph ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    calls: str
    inputs: tuple[Any, ...] = ()
    output_path: str = this_output_path()

    # The file of calls lies beside the prefix, whose name differs between points.
    def __repr__(self) -> str:
        return f"Config({self.label})"


def work(config: Config) -> None:
    """Notes that it ran, and writes two files from what it reads; a reader of half an input would make other bytes."""
    descriptor = os.open(config.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    _write(descriptor, f"{config.label}\n".encode())
    os.close(descriptor)
    read = b"".join(files.read_bytes(files.join(path, "data")) for path in config.inputs)
    notes = f"notes of {config.label}\n" * 3
    if files.is_local(config.output_path):
        with open(os.path.join(config.output_path, "notes.txt"), "w") as stream:
            stream.write(notes)
    else:
        files.write_bytes(files.join(config.output_path, "notes.txt"), notes.encode())
    files.write_bytes(files.join(config.output_path, "sub", "writer"), str(os.getpid()).encode())
    files.write_bytes(files.join(config.output_path, "data"), read + f"<{config.label}>".encode() * 500)


def expected(label: str) -> bytes:
    before = {"a": b"", "b": b"a", "c": b"ab"}[label].decode()
    return b"".join(expected(other) for other in before) + f"<{label}>".encode() * 500


def steps(calls: pathlib.Path) -> list[ExecutorStep]:
    a = ExecutorStep("crash/a", work, Config("a", str(calls)))
    b = ExecutorStep("crash/b", work, Config("b", str(calls), (a,)))
    return [ExecutorStep("crash/c", work, Config("c", str(calls), (a, b)))]


# --- faults -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens at operation `at`: "before", "half" or "after" for a kill, "stop", or "EIO" or "ENOSPC"."""

    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.at}"


# ENOSPC meets what needs room; a full disk still lets files be removed and renamed within their directory.
_NEEDS_ROOM = {"write", "open", "mkdir", "link", "symlink", "fsync"}
_CALLS = ("replace", "rename", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "fsync", "write")


def install(fault: Fault | None, trace: list[str] | None = None) -> None:
    """Puts the fault in the way of this process's storage operations, or notes them in `trace`."""
    count = 0

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if trace is not None:
                trace.append(name)
            if fault is None or count < fault.at:
                return real(*arguments, **options)
            if fault.kind == "ENOSPC" and name in _NEEDS_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if count > fault.at or fault.kind == "ENOSPC":
                return real(*arguments, **options)
            if fault.kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
                return real(*arguments, **options)
            if fault.kind == "EIO":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if fault.kind == "half" and name == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            elif fault.kind == "after":
                real(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("dead")

        return call

    real_os_open, real_open = os.open, builtins.open
    guarded_os_open, guarded_open = guarded("open", real_os_open), guarded("open", real_open)

    def os_open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR) and not str(path).endswith("calls")
        return (guarded_os_open if writes else real_os_open)(path, flags, *arguments, **options)

    def open_file(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        return (guarded_open if set(mode) & set("wax+") else real_open)(path, mode, *arguments, **options)

    for name in _CALLS:
        setattr(os, name, guarded(name, getattr(os, name)))
    os.open = os_open  # type: ignore[assignment]
    builtins.open = io.open = open_file  # type: ignore[assignment]


# --- one run ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """How a run ended; `status` is negative for a signal."""

    status: int
    output: str

    @property
    def done(self) -> set[str]:
        return set(re.findall(r"^done crash/(\w)", self.output, re.MULTILINE))


class Place:
    """A prefix, and beside it what its runs printed and called.

    What a run left is read here without the package's own functions, as another program would read it.
    """

    max_concurrent = 1
    kills: ClassVar[tuple[str, ...]] = ("before", "half", "after")

    @staticmethod
    def faults(operations: list[str]) -> Iterator[Fault]:
        """Every fault that can meet a run of these storage operations."""
        for number, name in enumerate(operations, start=1):
            kinds = ["before", "after", "stop", "EIO"]
            kinds += ["half"] if name == "write" else []
            kinds += ["ENOSPC"] if name in _NEEDS_ROOM else []
            yield from (Fault(kind, number) for kind in kinds)

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.prefix = str(directory / "store")
        self.rivals: list[Run] = []
        self._calls = directory / "calls"

    # --- running

    def run(self, fault: Fault | None = None, *, counts: bool = False) -> Run:
        printed = self.directory / "printed"
        pid = os.fork()
        if pid == 0:
            self._child(printed, fault, counts)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            self.rivals.append(self._run_as_rival())
            os.kill(pid, signal.SIGCONT)
            _, status = os.waitpid(pid, 0)
        return Run(os.waitstatus_to_exitcode(status), printed.read_text())

    def install(self, fault: Fault | None, trace: list[str] | None) -> None:
        """Puts the fault in the way of what this process does to the store."""
        install(fault, trace)

    def _config(self) -> ExecutorMainConfig:
        return ExecutorMainConfig(prefix=self.prefix, max_concurrent=self.max_concurrent)

    def _run_as_rival(self) -> Run:
        printed = self.directory / "printed-by-rival"
        pid = os.fork()
        if pid == 0:
            # On one machine a stopped process can be seen to live, and is waited for.
            lease.machine, lease.STALE_AFTER, lease.POLL = (lambda: "another machine"), 0.05, 0.02
            self._child(printed, None, False)
        _, status = os.waitpid(pid, 0)
        return Run(os.waitstatus_to_exitcode(status), printed.read_text())

    def _child(self, printed: pathlib.Path, fault: Fault | None, counts: bool) -> None:
        status, trace = 70, ([] if counts else None)
        try:
            descriptor = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), line_buffering=True)
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
            graph, config = steps(self._calls), self._config()
            if fault is not None or counts:
                self.install(fault, trace)
            with errors.clean_exit():
                Executor(config).run(graph)
            status = 0
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        if trace is not None:
            _write(1, f"TRACE {' '.join(trace)}\n".encode())
        os._exit(status)

    # --- looking

    def calls(self) -> collections.Counter[str]:
        return collections.Counter(self._calls.read_text().split() if self._calls.exists() else ())

    def read(self, label: str, name: str) -> bytes | None:
        """A file of the step's output; None when it is not there."""
        with contextlib.suppress(OSError):
            return (self._output(label) / name).read_bytes()
        return None

    def is_attempt(self, label: str) -> bool:
        """Whether the usual path shows an attempt that was not committed."""
        return self._output(label).is_symlink()

    def ledger(self, label: str) -> list[bytes]:
        """The records of the step's ledger."""
        found = (pathlib.Path(self.prefix) / "crash" / ATTEMPTS_NAME).glob(f"{label}-*/ledger/????????.json")
        return [path.read_bytes() for path in found]

    def _output(self, label: str) -> pathlib.Path:
        directory = pathlib.Path(self.prefix) / "crash"
        found = [path for path in directory.glob(f"{label}-*") if not path.name.startswith(".")]
        assert len(found) <= 1, found
        return found[0] if found else directory / f"{label}-none"

    def commits(self, label: str) -> int:
        """How many commits stand in the step's ledger."""
        kinds = []
        for record in self.ledger(label):
            with contextlib.suppress(ValueError):
                kinds.append(json.loads(record)["kind"])
        return kinds.count("commit")

    def says_success(self, label: str) -> bool:
        return self.read(label, STATUS_NAME) == b"SUCCESS\n"

    def is_right(self, label: str) -> bool:
        """Whether the output is whole, and all of it was written by the process that its record names."""
        try:
            recorded = str(json.loads(self.read(label, INFO_NAME) or b"{}")["worker_id"]).split(":")[1]
        except (ValueError, KeyError):
            return False
        return (
            self.read(label, "data") == expected(label)
            and self.read(label, "notes.txt") == (f"notes of {label}\n" * 3).encode()
            and self.read(label, "sub/writer") == recorded.encode()
        )


# --- one point ----------------------------------------------------------------------------------------------------


def check_point(place: Place, faults: tuple[Fault, ...]) -> Iterator[str]:
    """Runs under each fault in turn, then without; yields what went wrong."""
    must_stand: set[str] = set()
    for fault in faults:
        before = place.calls()
        run = place.run(fault)
        killed = run.status == -signal.SIGKILL
        if not killed and run.status not in (0, 2):
            yield f"under {fault} the run ended with status {run.status}: {run.output[-3000:]}"
        if run.status == 2 and (count := run.output.count("\nerror: ") + run.output.startswith("error: ")) != 1:
            yield f"under {fault} the run said {count} errors: {run.output[-3000:]}"
        if "Traceback" in run.output:
            yield f"under {fault} the run ended with a traceback: {run.output[-3000:]}"
        for rival in place.rivals:
            if rival.status != 0 or "Traceback" in rival.output:
                yield f"under {fault} the rival ended with status {rival.status}: {rival.output[-3000:]}"
        again = [label for label in must_stand if place.calls()[label] != before[label]]
        if again:
            yield f"under {fault} committed steps {again} ran again"
        for label in LABELS:
            if label in run.done and not place.commits(label):
                yield f"under {fault} step {label} was reported as done without a commit"
            if place.says_success(label) and not place.is_attempt(label) and not place.is_right(label):
                yield f"after {fault} step {label} says SUCCESS, and its output is not right: a false hit"
        must_stand |= {label for label in LABELS if place.commits(label)}
        if run.status == 0:
            must_stand |= set(LABELS)
    before = place.calls()
    run = place.run()
    if run.status != 0:
        yield f"the run without faults ended with status {run.status}: {run.output[-3000:]}"
        return
    yield from _check_final(place, before, must_stand)


def _check_final(place: Place, before: collections.Counter[str], must_stand: set[str]) -> Iterator[str]:
    after = place.calls()
    for label in LABELS:
        if place.is_attempt(label) or not place.says_success(label) or not place.is_right(label):
            yield f"step {label} is not whole after the run without faults"
        if json.loads(place.read(label, INFO_NAME) or b"{}").get("output_digest") is None:
            yield f"step {label} has no complete record"
        if place.commits(label) != 1:
            yield f"step {label} has {place.commits(label)} commits"
        if label in must_stand and after[label] != before[label]:
            yield f"step {label} was committed, and ran again: a lost commit"
    run = place.run()
    if run.status != 0 or place.calls() != after:
        yield f"the run after that did not skip everything: {run.output[-2000:]}"


# --- the matrix ---------------------------------------------------------------------------------------------------


def all_points(singles: list[Fault], kills: tuple[str, ...], chance: random.Random) -> Iterator[tuple[Fault, ...]]:
    """Every single fault in random order, and between them pairs: a kill, and another of the run that repairs it."""
    singles = chance.sample(singles, len(singles))
    killing = [fault for fault in singles if fault.kind in kills]
    while True:
        # Half and half from the first on, so that a small sample has both; single faults until they are used up.
        if singles:
            yield (singles.pop(),)
        yield chance.choice(killing), chance.choice(killing)


def parse_name(name: str) -> tuple[Fault, ...]:
    return tuple(Fault(kind, int(at)) for kind, _, at in (part.partition("-") for part in name.split("+")))


def main(new_place: type[Place] = Place) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one point by its name, such as before-17 or half-9+after-3; its files are kept")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    provenance.run_context()  # asks git, once for all forks
    counting = new_place(pathlib.Path(tempfile.mkdtemp(dir=arguments.directory)))
    counted = counting.run(counts=True)
    operations = counted.output.rpartition("TRACE ")[2].split()
    assert counted.status == 0 and operations, counted.output
    chance = random.Random(arguments.seed)
    matrix = all_points(list(new_place.faults(operations)), new_place.kills, chance)
    points = iter([parse_name(arguments.only)]) if arguments.only else matrix
    tested, failed, kinds = 0, 0, collections.Counter[str]()
    for _, faults in zip(range(1 if arguments.only else arguments.points), points, strict=False):
        name = "+".join(map(str, faults))
        directory = pathlib.Path(tempfile.mkdtemp(dir=arguments.directory))
        problems = list(check_point(new_place(directory), faults))
        kinds.update(fault.kind for fault in faults)
        tested, failed = tested + 1, failed + bool(problems)
        if problems:
            print(json.dumps({"point": name, "problems": problems}), flush=True)
        if arguments.only:
            print(f"the files are in {directory}")
        else:
            shutil.rmtree(directory)
    totals = {"operations": len(operations), "points": tested, "faults": kinds, "failed": failed}
    print(json.dumps(totals | {"seed": arguments.seed}))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
