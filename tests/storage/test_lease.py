"""Leases: one holder at a time, whatever happens to the holder."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from marin.errors import LeaseHeldError
from marin.storage import lease as lease_module
from marin.storage.lease import LOCK_NAME, Lease, read_holder

HOLD = """
import sys, time
from marin.storage.lease import Lease
lease = Lease(sys.argv[1]).acquire()
print("held", flush=True)
time.sleep(60)
"""

COUNT = """
import pathlib, sys
from marin.storage.lease import Lease
counter = pathlib.Path(sys.argv[1], "counter")
for _ in range(10):
    with Lease(sys.argv[1], poll=0.001).acquire():
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def holder_process(directory: pathlib.Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_lease_held_by_a_live_process_is_refused_and_after_sigkill_taken_at_once(tmp_path: pathlib.Path) -> None:
    process = holder_process(tmp_path)
    try:
        with pytest.raises(LeaseHeldError, match=f":{process.pid}:"):
            Lease(str(tmp_path)).acquire(wait=False)
    finally:
        end(process)
    start = time.monotonic()
    with Lease(str(tmp_path)).acquire(wait=False) as lease:
        assert lease.verify()
    assert time.monotonic() - start < 1


def test_lease_of_a_recycled_process_number_is_taken_at_once(tmp_path: pathlib.Path) -> None:
    first = Lease(str(tmp_path)).acquire()
    holder = read_holder(str(tmp_path))
    assert holder is not None
    recycled = dataclasses.replace(holder, process_start=holder.process_start - 100)
    (tmp_path / LOCK_NAME).write_text(json.dumps(dataclasses.asdict(recycled)))
    with Lease(str(tmp_path)).acquire(wait=False):
        assert not first.verify()
    first.release()


def test_lease_waits_says_for_whom_and_gets_it_when_released(tmp_path: pathlib.Path) -> None:
    process = holder_process(tmp_path)
    said: list[str] = []

    def on_wait(message: str) -> None:
        said.append(message)
        end(process)

    with Lease(str(tmp_path), poll=0.01).acquire(announce=on_wait):
        assert len(said) == 1
        assert str(process.pid) in said[0]


def test_lease_of_a_stopped_process_is_taken_after_silence_and_its_holder_learns_it(tmp_path: pathlib.Path) -> None:
    first = Lease(str(tmp_path), heartbeat=60).acquire()
    start = time.monotonic()
    with Lease(str(tmp_path), stale_after=0.3, poll=0.01).acquire() as second:
        assert time.monotonic() - start >= 0.3
        assert second.verify()
        assert not first.verify()
        assert first.lost
        first.release()
        assert second.verify()


def test_lease_that_is_renewed_is_not_taken_over(tmp_path: pathlib.Path) -> None:
    with Lease(str(tmp_path), heartbeat=0.05).acquire() as first:
        watcher = Lease(str(tmp_path), stale_after=0.3, poll=0.01)
        deadline = time.monotonic() + 0.8

        class GaveUp(Exception):
            pass

        def give_up(_: float) -> None:
            if time.monotonic() > deadline:
                raise GaveUp
            real_sleep(0.01)

        real_sleep = time.sleep
        with pytest.MonkeyPatch.context() as patch, pytest.raises(GaveUp):
            patch.setattr(lease_module.time, "sleep", give_up)
            watcher.acquire()
        assert first.verify()


def test_heartbeat_of_a_removed_lock_sets_lost(tmp_path: pathlib.Path) -> None:
    with Lease(str(tmp_path), heartbeat=0.02).acquire() as lease:
        (tmp_path / LOCK_NAME).unlink()
        deadline = time.monotonic() + 2
        while not lease.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.lost


@pytest.mark.parametrize("content", ["", "{", "[]", '{"worker_id": 3}'])
def test_lease_with_a_damaged_lock_is_held_until_silence(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / LOCK_NAME).write_text(content)
    with pytest.raises(LeaseHeldError, match="unknown worker"):
        Lease(str(tmp_path)).acquire(wait=False)
    with Lease(str(tmp_path), stale_after=0.05, poll=0.01).acquire() as lease:
        assert lease.verify()


def test_lease_raced_for_by_processes_never_has_two_holders(tmp_path: pathlib.Path) -> None:
    (tmp_path / "counter").write_text("0")
    dead = holder_process(tmp_path)
    end(dead)
    command = [sys.executable, "-c", COUNT, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "counter").read_text() == "40"
    assert sorted(os.listdir(tmp_path)) == ["counter"]


def test_lease_on_a_remote_store_is_taken_and_released(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(lease_module, "_SETTLE", 0.0)
    directory = f"memory://{tmp_path}"
    with Lease(directory).acquire() as lease:
        assert lease.verify()
        with pytest.raises(LeaseHeldError):
            Lease(directory).acquire(wait=False)
    assert read_holder(directory) is None
