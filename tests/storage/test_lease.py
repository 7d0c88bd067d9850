"""Leases: one holder at a time, whatever happens to the holder, and no commit by one that was overtaken."""

import errno
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from marin.errors import LeaseHeldError, StorageError
from marin.storage import exclusive, files
from marin.storage import lease as lease_module
from marin.storage.lease import Lease, read_commit, read_state

HOLD = """
import sys
from marin.storage import lease
if len(sys.argv) > 2:
    lease.machine = lambda: sys.argv[2]
held = lease.Lease(sys.argv[1]).acquire()
print("held", flush=True)
sys.stdin.readline()
print(held.verify(), held.commit({"who": "first"}), held.lost, flush=True)
held.release()
"""

COUNT = """
import pathlib, sys
from marin.storage.lease import Lease
counter = pathlib.Path(sys.argv[1], "counter")
for _ in range(6):
    with Lease(sys.argv[1], poll=0.001).acquire():
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def holder_process(directory: pathlib.Path, *machine: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(directory), *machine]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def ledger(directory: str) -> list[str]:
    """The kinds of all records in order, proven to be numbered from 1 without a gap."""
    folder = files.join(directory, "ledger")
    names = [name for name in files.list_dir(folder) if not name.startswith(".")]
    assert names == [f"{number:08d}.json" for number in range(1, len(names) + 1)]
    return [files.read_json(files.join(folder, name))["kind"] for name in names]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return met


# --- taking, committing, releasing --------------------------------------------------------------------------------


def test_lease_taken_and_released_is_free_again(store: str) -> None:
    assert read_state(store) is None
    with Lease(store).acquire() as lease:
        assert lease.token == 1
        assert lease.verify()
        state = read_state(store)
        assert state is not None and state.kind == "claim"
        holder = state.holder
        assert holder is not None and holder.pid == os.getpid() and not holder.is_dead()
        with pytest.raises(LeaseHeldError, match=f":{os.getpid()}:"):
            Lease(store).acquire(wait=False)
    state = read_state(store)
    assert state is not None and state.kind == "release"
    with Lease(store).acquire(wait=False) as lease:
        assert lease.token == 3
    assert ledger(store) == ["claim", "release", "claim", "release"]


def test_lease_committed_keeps_its_payload_and_lets_the_next_in(store: str) -> None:
    with Lease(store).acquire() as lease:
        assert lease.commit({"attempt": lease.token, "location": "é"})
        assert lease.verify() and not lease.lost
    state = read_state(store)
    assert state is not None
    assert (state.number, state.kind, state.attempt) == (2, "commit", 1)
    assert state.payload == {"attempt": 1, "location": "é"}
    with Lease(store).acquire(wait=False) as lease:
        assert lease.token == 3
        assert read_commit(store) == state
    assert read_commit(store) == state
    assert ledger(store) == ["claim", "commit", "claim", "release"]


def test_lease_claims_flush_nothing_and_commits_flush_record_and_directories(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    directory = tmp_path / ".attempts" / "step"
    with Lease(str(directory)).acquire() as lease:
        assert flushed == []
        assert lease.commit({})
    assert set(flushed) >= {str(path) for path in (tmp_path, tmp_path / ".attempts", directory, directory / "ledger")}
    assert any(".00000002" in path or "00000002" in path for path in flushed[:-1])
    assert flushed[-1] == str(directory / "ledger")


def test_lease_whose_put_arrived_without_an_answer_is_taken(s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create = exclusive.create

    def lose_the_answer(path: str, data: bytes, **options: bool) -> bool:
        create(path, data, **options)
        return create(path, data, **options)

    monkeypatch.setattr(exclusive, "create", lose_the_answer)
    with Lease(s3_prefix).acquire() as lease:
        assert lease.commit({})
    assert ledger(s3_prefix) == ["claim", "commit"]


def test_lease_whose_commit_stands_but_could_not_be_flushed_says_so_and_is_not_lost(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_after_the_record(descriptor: int) -> None:
        if (tmp_path / "ledger" / "00000002.json").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    lease = Lease(str(tmp_path)).acquire()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_after_the_record)
        with pytest.raises(StorageError, match="Input/output error"):
            lease.commit({"attempt": 1})
    assert lease.verify() and not lease.lost
    lease.release()
    assert ledger(str(tmp_path)) == ["claim", "commit"]


# --- dead holders -------------------------------------------------------------------------------------------------


def test_lease_held_by_a_live_process_is_refused_and_after_sigkill_taken_at_once(tmp_path: pathlib.Path) -> None:
    process = holder_process(tmp_path)
    try:
        with pytest.raises(LeaseHeldError, match=f":{process.pid}:"):
            Lease(str(tmp_path)).acquire(wait=False)
    finally:
        end(process)
    with Lease(str(tmp_path)).acquire(wait=False) as lease:
        assert lease.verify()


def rewrite_record(directory: pathlib.Path, **changes: object) -> None:
    path = directory / "ledger" / "00000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_lease_of_a_recycled_process_number_is_taken_at_once(tmp_path: pathlib.Path) -> None:
    first = Lease(str(tmp_path)).acquire()
    record = json.loads((tmp_path / "ledger" / "00000001.json").read_text())
    rewrite_record(tmp_path, process_start=record["process_start"] - 100)
    with Lease(str(tmp_path)).acquire(wait=False):
        assert not first.verify()
    first.release()


@pytest.mark.parametrize("changes", [{"machine": "elsewhere"}, {"machine": ""}, {"pid": 0}, {"pid": 10**30}])
def test_lease_of_a_process_that_cannot_be_seen_is_not_taken_before_silence(
    tmp_path: pathlib.Path, changes: dict[str, object]
) -> None:
    Lease(str(tmp_path)).acquire()
    rewrite_record(tmp_path, process_start=1.0, **changes)
    with pytest.raises(LeaseHeldError):
        Lease(str(tmp_path)).acquire(wait=False)
    start = time.monotonic()
    with Lease(str(tmp_path), stale_after=0.2, poll=0.01).acquire() as lease:
        assert lease.token == 2
    assert time.monotonic() - start >= 0.2


# --- waiting ------------------------------------------------------------------------------------------------------


def test_lease_waits_says_once_for_whom_and_gets_it_when_the_holder_dies(tmp_path: pathlib.Path) -> None:
    process = holder_process(tmp_path)
    said: list[str] = []

    def on_wait(message: str) -> None:
        said.append(message)
        threading.Timer(0.1, end, [process]).start()

    with Lease(str(tmp_path), poll=0.01).acquire(announce=on_wait):
        assert len(said) == 1
        assert str(process.pid) in said[0]


def test_lease_waited_for_is_had_when_released(store: str) -> None:
    first = Lease(store).acquire()
    with Lease(store, poll=0.01).acquire(announce=lambda _: first.release()) as second:
        assert second.token == 3
    assert ledger(store) == ["claim", "release", "claim", "release"]


def test_lease_of_a_silent_holder_is_overtaken_who_can_then_neither_commit_nor_release(store: str) -> None:
    first = Lease(store, heartbeat=60).acquire()
    start = time.monotonic()
    with Lease(store, stale_after=0.3, poll=0.01).acquire() as second:
        assert time.monotonic() - start >= 0.3
        assert second.verify()
        assert not first.commit({"who": "first"})
        assert first.lost and not first.verify()
        first.release()
        assert second.verify()
        assert second.commit({"who": "second"})
    assert ledger(store) == ["claim", "claim", "commit"]
    state = read_state(store)
    assert state is not None and state.payload == {"who": "second"}


def test_lease_overtaken_between_look_and_commit_is_not_committed(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Lease(store).acquire()
    verify = first.verify

    def pause_after_look() -> bool:
        stands = verify()
        second.append(Lease(store, stale_after=0.0, poll=0.01).acquire())
        return stands

    second: list[Lease] = []
    monkeypatch.setattr(first, "verify", pause_after_look)
    assert not first.commit({})
    assert first.lost
    assert second[0].commit({})
    assert ledger(store) == ["claim", "claim", "commit"]


def test_lease_of_a_process_stopped_past_its_lease_cannot_be_committed_when_it_continues(
    tmp_path: pathlib.Path,
) -> None:
    process = holder_process(tmp_path, "another machine")
    try:
        process.send_signal(signal.SIGSTOP)
        with Lease(str(tmp_path), stale_after=0.2, poll=0.01).acquire() as second:
            process.send_signal(signal.SIGCONT)
            said, _ = process.communicate("\n", timeout=20)
            assert said == "False False True\n"
            assert second.commit({"who": "second"})
    finally:
        end(process)
    assert ledger(str(tmp_path)) == ["claim", "claim", "commit"]


class Enough(Exception):
    """Raised in a watcher that has looked often enough."""


def watch_beats(watcher: Lease, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets it wait for eight renewals, of which each comes half a second after the one before by its own clock.

    By the machine's clock a busy machine may pause the holder for as long as it takes to lose the lease.
    """
    clock, seen = [0.0], []

    def sleep(_: float) -> None:
        if len(seen) == 8:
            raise Enough
        assert wait_for(lambda: bool(beats := renewals()) and beats != seen[-1:])
        seen.extend(renewals())
        clock[0] += 0.5

    def renewals() -> list[bytes]:
        path = files.join(directory, "heartbeat-1.json")
        return [files.read_bytes(path)] if files.exists(path) else []

    watched = types.SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    with monkeypatch.context() as patch, pytest.raises(Enough):
        patch.setattr(lease_module, "time", watched)
        watcher.acquire()


def test_lease_that_is_renewed_is_not_overtaken(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Lease(store, heartbeat=0.02).acquire() as first:
        watch_beats(Lease(store, stale_after=0.7), store, monkeypatch)
        assert first.verify()


def test_lease_is_renewed_under_any_clock(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dates = itertools.cycle(["2099-01-01T00:00:00+00:00", "1970-01-01T00:00:00+00:00"])
    monkeypatch.setattr(lease_module, "_now", lambda: next(dates))
    with Lease(str(tmp_path), heartbeat=0.02).acquire() as first:
        with pytest.raises(LeaseHeldError):
            Lease(str(tmp_path)).acquire(wait=False)
        watch_beats(Lease(str(tmp_path), stale_after=0.7), str(tmp_path), monkeypatch)
        assert first.verify()


@pytest.mark.parametrize("damage", ["remove", "directory", "same"])
def test_lease_whose_heartbeat_cannot_be_read_counts_as_silent(tmp_path: pathlib.Path, damage: str) -> None:
    first = Lease(str(tmp_path)).acquire()
    beat = tmp_path / f"heartbeat-{first.token}.json"

    def spoil(_: str) -> None:
        if damage == "directory":
            beat.mkdir()
        elif damage == "same":
            beat.write_text("{")

    with Lease(str(tmp_path), stale_after=0.2, poll=0.01).acquire(announce=spoil) as second:
        assert second.token == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"worker_id": 3}', b'{"kind": "commit"}', b'{"kind": "other", "worker_id": "a"}'],
)
def test_lease_with_a_damaged_record_is_an_unknown_workers_until_silence(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "00000007.json").write_bytes(content)
    (tmp_path / "ledger" / ".00000009.json.1.tmp").write_bytes(b"left by a crash")
    with pytest.raises(LeaseHeldError, match="unknown worker"):
        Lease(str(tmp_path)).acquire(wait=False)
    state = read_state(str(tmp_path))
    assert state is not None and (state.number, state.kind) == (7, "claim")
    with Lease(str(tmp_path), stale_after=0.05, poll=0.01).acquire() as lease:
        assert lease.token == 8
        assert lease.verify()


# --- the heartbeat ------------------------------------------------------------------------------------------------


def test_heartbeat_of_an_overtaken_holder_sets_lost(store: str) -> None:
    first = Lease(store, heartbeat=0.02).acquire()
    assert exclusive.create(files.join(store, "ledger", "00000002.json"), b"{}")
    assert wait_for(lambda: first.lost)
    first.release()
    assert len(files.list_dir(files.join(store, "ledger"))) == 2


def test_heartbeat_of_a_removed_ledger_sets_lost_and_makes_nothing_again(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "sub"
    with Lease(str(directory), heartbeat=0.02).acquire() as lease:
        directory.rename(tmp_path / "removed")  # at once: a renewal may come while files are removed one by one
        files.remove_tree(str(tmp_path / "removed"))
        assert wait_for(lambda: lease.lost)
        assert not lease.commit({})
    assert os.listdir(tmp_path) == []


def test_heartbeat_of_a_ledger_removed_after_its_look_makes_nothing_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, verify = tmp_path / "sub", Lease.verify

    def remove_after_look(lease: Lease) -> bool:
        stands = verify(lease)
        files.remove_tree(str(directory))
        return stands

    monkeypatch.setattr(Lease, "verify", remove_after_look)
    with Lease(str(directory), heartbeat=0.02).acquire() as lease:
        assert wait_for(lambda: lease.lost)
    assert os.listdir(tmp_path) == []


def test_heartbeat_of_a_short_step_is_never_written(tmp_path: pathlib.Path) -> None:
    with Lease(str(tmp_path)).acquire() as lease:
        assert lease.commit({})
    assert os.listdir(tmp_path) == ["ledger"]


def test_heartbeat_on_a_full_disk_is_tried_again_until_others_may_have_overtaken(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = files.write_bytes, []

    def fill_disk(path: str, data: bytes, **options: bool) -> None:
        tries.append(path)
        if is_full:
            raise StorageError("the disk is full")
        write(path, data, **options)

    is_full = True
    monkeypatch.setattr(files, "write_bytes", fill_disk)
    with Lease(str(tmp_path), heartbeat=0.02, stale_after=60).acquire() as lease:
        assert wait_for(lambda: len(tries) > 3)
        is_full = False
        assert wait_for(lambda: (tmp_path / "heartbeat-1.json").exists())
        assert lease.verify()
    is_full = True
    with Lease(str(tmp_path), heartbeat=0.02, stale_after=0.1).acquire() as lease:
        assert wait_for(lambda: lease.lost)
        assert not lease.commit({})


def test_release_on_a_full_disk_hides_nothing_and_blocks_nobody_for_ever(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError), monkeypatch.context() as patch, Lease(str(tmp_path)).acquire():

        def fill_disk(*_: object, **__: object) -> bool:
            raise StorageError("the disk is full")

        patch.setattr(exclusive, "create", fill_disk)
        raise KeyError
    with Lease(str(tmp_path), stale_after=0.05, poll=0.01).acquire() as lease:
        assert lease.token == 2


# --- races --------------------------------------------------------------------------------------------------------


def test_lease_raced_for_by_threads_has_one_holder_and_numbers_without_gaps(store: str) -> None:
    threads, rounds = (4, 2) if store.startswith("s3://") else (8, 6)
    holders: list[int] = []
    most: list[int] = []

    def work(worker: int) -> None:
        for turn in range(rounds):
            with Lease(store, poll=0.005).acquire() as lease:
                holders.append(worker)
                most.append(len(holders))
                holders.remove(worker)
                if turn % 2:
                    assert lease.commit({})

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert most == [1] * (threads * rounds)
    kinds = ledger(store)
    assert kinds[::2] == ["claim"] * (threads * rounds)
    assert sorted(kinds[1::2]) == ["commit"] * (threads * rounds // 2) + ["release"] * (threads * rounds // 2)


def test_lease_raced_for_by_processes_never_has_two_holders(tmp_path: pathlib.Path) -> None:
    (tmp_path / "counter").write_text("0")
    end(holder_process(tmp_path))
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    assert (tmp_path / "counter").read_text() == "48"
    assert ledger(str(tmp_path)) == ["claim"] + ["claim", "release"] * 48


def test_holder_is_over_once_it_has_let_go_or_its_process_here_is_gone(tmp_path: pathlib.Path) -> None:
    with Lease(str(tmp_path)).acquire():
        assert not lease_module.is_over(str(tmp_path), 1)
    assert lease_module.is_over(str(tmp_path), 1)
    for number, machine in ((3, ()), (4, ("another",))):
        process = holder_process(tmp_path, *machine)
        assert not lease_module.is_over(str(tmp_path), number)
        end(process)
        assert lease_module.is_over(str(tmp_path), number) is not bool(machine)
    assert lease_module.is_over(str(tmp_path), 3)
    assert not lease_module.is_over(str(tmp_path), 9)
