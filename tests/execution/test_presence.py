"""Those that wait for process 0 end when it is gone, and not before: it is a process of its own here, or a file of one elsewhere."""

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from marin.errors import ExecutionError
from marin.execution import presence
from marin.execution.presence import Watch, directory_of, shown
from marin.storage import files, lease

PROCESS_0 = """
import sys
from marin.execution.presence import shown
with shown(sys.argv[1]):
    print("there", flush=True)
    sys.exit(sys.stdin.readline().strip() or None)
"""


@pytest.fixture
def directory(tmp_path) -> str:
    return directory_of(str(tmp_path), "port-1-of-2")


@contextlib.contextmanager
def process_0(directory: str):
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS_0, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(Path(presence.__file__).parents[2])},
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def refusal(watch: Watch, looks: int = 20) -> str | None:
    """What a watch says that looks so often."""
    try:
        for _ in range(looks):
            watch.look("trained")
            time.sleep(0.01)
    except ExecutionError as error:
        return str(error)
    return None


def elsewhere(directory: str, beat: int, *, ended: float = 0) -> None:
    """The file of a process 0 of another machine."""
    holder = {"worker_id": "node2:7:x", "date": "", "machine": "node2", "pid": 7, "process_start": 1.0}
    files.write_json(files.join(directory, "node2.json"), {**holder, "beat": beat, "ended": ended})


@pytest.mark.parametrize("how", ["is refused", "is killed", "is done"])
def test_a_watch_ends_soon_after_process_0_has(how, directory):
    watch = Watch(directory, 3600, "raise it")
    with process_0(directory) as process:
        assert refusal(watch) is None
        if how == "is killed":
            process.kill()
            process.communicate()
        else:
            process.communicate("refused\n" if how == "is refused" else "\n", timeout=30)
        assert "process 0 has ended, and step `trained`" in (refusal(watch) or "")
    assert not os.path.exists(directory) or how != "is done"  # nothing is left of a good end


def test_a_watch_sees_a_process_0_that_came_and_failed_between_two_of_its_looks(directory):
    watch = Watch(directory, 3600, "raise it")
    with process_0(directory) as process:
        process.communicate("refused\n", timeout=30)
    assert "has ended" in (refusal(watch) or "")


@pytest.mark.parametrize("how", ["refused\n", None], ids=["is refused", "is killed"])
def test_a_watch_sees_a_process_0_that_came_and_failed_since_this_process_began(how, directory):
    """Both import what takes seconds, and the first may be refused a moment after."""
    with process_0(directory) as process:
        if how is None:
            process.kill()
        process.communicate(how, timeout=30)
    assert "has ended" in (refusal(Watch(directory, 3600, "raise it")) or "")


def test_a_process_0_of_an_earlier_start_says_nothing_of_this_one(directory, monkeypatch):
    now = lease.this_process()
    monkeypatch.setattr(lease, "this_process", lambda: dataclasses.replace(now, process_start=math.inf))
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: math.inf)
    for way in ("refused\n", None):
        with process_0(directory) as process:
            if way is None:
                process.kill()
            process.communicate(way, timeout=30)
        watch = Watch(directory, 3600, "raise it")
        assert refusal(watch) is None
    with process_0(directory):  # which removes what the others left
        assert len(os.listdir(directory)) == 1 and refusal(watch) is None


def test_a_stopped_process_0_of_this_machine_is_waited_for_however_long(directory):
    watch = Watch(directory, 0.05, "raise it")
    with process_0(directory) as process:
        process.send_signal(signal.SIGSTOP)
        assert refusal(watch) is None
        process.send_signal(signal.SIGCONT)


def test_another_process_0_may_take_the_place_of_one_that_has_ended(directory):
    watch = Watch(directory, 3600, "raise it")
    for _ in range(2):
        with process_0(directory) as process:
            assert refusal(watch) is None
            process.communicate("refused\n", timeout=30)
        assert refusal(watch, looks=5) is None


def test_a_process_0_of_another_machine_is_gone_when_it_is_silent_for_longer_than_the_timeout(directory):
    watch = Watch(directory, 0.3, "raise it")
    for beat in range(40):  # slow, and there: longer than the timeout in all
        elsewhere(directory, beat)
        assert refusal(watch, looks=1) is None
    assert "process 0 was not heard of for 0 s" in (refusal(watch, looks=100) or "")


def test_a_process_0_of_another_machine_that_says_that_it_ended_is_gone(directory):
    elsewhere(directory, 0)
    watch = Watch(directory, 3600, "raise it")
    assert refusal(watch) is None
    elsewhere(directory, -1, ended=time.time())
    assert "has ended" in (refusal(watch) or "")


def test_a_process_0_that_never_comes_is_waited_for_as_long_as_was_asked(directory):
    watch = Watch(directory, 0.1, "raise MARIN_START_TIMEOUT")
    message = refusal(watch, looks=100) or ""
    assert "process 0 has not come" in message and "raise MARIN_START_TIMEOUT" in message


def test_a_watch_that_was_itself_stopped_does_not_count_that_time(directory, monkeypatch):
    monkeypatch.setattr(presence, "_LONGEST_LOOK", 0.01)
    watch = Watch(directory, 0.5, "raise it")
    time.sleep(0.6)
    assert refusal(watch, looks=5) is None


def test_process_0_renews_its_file_and_needs_no_store_that_can_be_written(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT", 0.01)
    with shown(directory):
        path = Path(directory, os.listdir(directory)[0])
        deadline = time.monotonic() + 30
        while json.loads(path.read_text())["beat"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (tmp_path / "file").write_text("")
    with shown(str(tmp_path / "file" / "below")):
        pass
