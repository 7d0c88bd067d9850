"""Stopping a run: signals before, within and after a step, each in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marin.training.stopping import StopRequest

IGNORED = """
import signal
from marin.training.stopping import StopRequest
signal.signal(signal.SIGINT, signal.SIG_IGN)
with StopRequest() as stop:
    signal.raise_signal(signal.SIGINT)
    print(stop.requested)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    signal.raise_signal(signal.SIGTERM)
    print(stop.requested)
"""


def test_a_job_in_the_background_does_not_stop_for_another_s_ctrl_c(
    plain_environment: dict[str, str], repository
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IGNORED],
        cwd=repository,
        env=plain_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False", "True"] and done.returncode == 128 + 15


IN_A_TERMINAL = """
import fcntl, pathlib, signal, sys, termios, time
if sys.argv[2] != "launched":  # by one whose terminal it is
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from marin.training.stopping import StopRequest
if sys.argv[2] == "nohup":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with StopRequest() as stop:
    print("step", flush=True)
    while not stop.requested and sys.argv[2] != "nohup":
        time.sleep(0.01)
    print("saving", flush=True)
    pathlib.Path(sys.argv[1]).write_text("saved")
"""


@pytest.mark.parametrize("way", ["plain", "nohup", "launched"])
def test_a_run_whose_terminal_ends_saves_as_after_a_sigterm(
    way: str, plain_environment: dict[str, str], repository, tmp_path
) -> None:
    """As where a connection by ssh is lost."""
    person, terminal = os.openpty()
    command = [sys.executable, "-c", IN_A_TERMINAL, str(tmp_path / "state"), way]
    process = subprocess.Popen(
        command, cwd=repository, env=plain_environment, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )  # fmt: skip
    os.close(terminal)
    assert os.read(person, 4) == b"step"
    if way != "nohup":
        os.close(person)
    if way == "launched":
        process.terminate()
    assert process.wait(60) == {"plain": 128 + signal.SIGHUP, "launched": 128 + signal.SIGTERM, "nohup": 0}[way]
    assert (tmp_path / "state").read_text() == "saved"
    if way == "nohup":
        os.close(person)


WITH_STREAMS = """
import pathlib, signal, sys
from marin.training.stopping import StopRequest
class Tee:  # as experiments write them
    def write(self, text):
        return sys.__stdout__.write(text)
    def flush(self):
        sys.__stdout__.flush()
sys.stdout = {"pipe": sys.stdout, "own": Tee(), "own pipe": Tee(), "none": None}[sys.argv[2]]
with StopRequest() as stop:
    signal.raise_signal(signal.SIGTERM)
    print("saving", flush=True)
    pathlib.Path(sys.argv[1]).write_text("saved")
"""


@pytest.mark.parametrize("stream", ["pipe", "own", "own pipe", "none"])
def test_a_run_that_is_stopped_saves_whatever_its_standard_output_is(
    stream: str, plain_environment: dict[str, str], repository, tmp_path
) -> None:
    """`| tee` ends with the terminal, an experiment may have put its own object there, and a service may have closed it."""
    read, written = os.pipe()
    command = [sys.executable, "-c", WITH_STREAMS, str(tmp_path / "state"), stream]
    process = subprocess.Popen(command, cwd=repository, env=plain_environment, stdout=written, stderr=subprocess.PIPE)
    os.close(written)
    if "pipe" in stream:
        os.close(read)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGTERM, b"")
    assert (tmp_path / "state").read_text() == "saved"
    if "pipe" not in stream:
        os.close(read)


# A step in C, which Python's handlers wait for.
STEP = """
import hashlib, sys
from marin.training import stopping
stopping._PATIENCE = float(sys.argv[2])
with stopping.StopRequest(lambda line: print(line, flush=True)) as stop:
    print("step", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(sys.argv[1]))
    print("requested" if stop.requested else "went on", flush=True)
"""


@pytest.fixture
def step(plain_environment: dict[str, str], repository: Path):
    """Starts a process with a step of so many iterations, of which it tells after `patience` seconds; it is in the step when this returns."""
    started = []

    def start(iterations: int, patience: float = 0.1) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", STEP, str(iterations), str(patience)],
            cwd=repository,
            env=plain_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "step\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_a_long_step_is_told_before_it_ends_and_a_second_ctrl_c_does_not_wait_for_it(step, number):
    process = step(2**31 - 1)  # half an hour
    process.send_signal(number)
    assert process.stdout.readline() == (
        "stopping after this step, with a checkpoint; Ctrl-C again stops at once, without one\n"
    )
    process.send_signal(signal.SIGTERM)  # which a scheduler sends twice
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == "\ninterrupted; run the same command again to continue\n"


def test_a_step_that_ends_soon_is_waited_for_in_silence(step):
    process = step(1_000_000, patience=1000.0)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + 15, "requested\n", "")


def test_signals_are_heard_as_before_once_training_is_over():
    read, written = os.pipe()
    os.set_blocking(written, False)
    before = signal.set_wakeup_fd(written)
    try:
        with StopRequest() as stop:
            assert not stop.requested
        assert signal.set_wakeup_fd(before) == written
    finally:
        os.close(read)
        os.close(written)


FORK = """
import os, signal
from marin.training.stopping import StopRequest
with StopRequest():
    if (child := os.fork()) == 0:
        os._exit(signal.set_wakeup_fd(-1) != -1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_does_not_answer_for_its_parent(plain_environment: dict[str, str], repository: Path):
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        cwd=repository,
        env=plain_environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == "0\n"
