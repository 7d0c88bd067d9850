"""Our launcher: who is who in each process, and that one failure or a signal ends all of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TELL = """
import json, os, sys
rank = os.environ["RANK"]
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
open(f"told-{rank}.json", "w").write(json.dumps([{name: os.environ[name] for name in names}, sys.argv[1:]]))
"""
FAIL_OR_SLEEP = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(60)
"""
SAVE_ON_SIGTERM = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def stop(number, frame):
    pathlib.Path(f"saved-{rank}").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(f"ready-{rank}").touch()
time.sleep(60)
"""

SAVE_SLOWLY = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
def stop(number, frame):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
    time.sleep(1.5 * (rank == "0"))
    pathlib.Path(f"saved-{rank}").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(f"ready-{rank}").touch()
time.sleep(60)
"""


def _start(folder: Path, repository: Path, code: str, *arguments: str) -> "subprocess.Popen[str]":
    (folder / "program.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{repository}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "marin.run.launch", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _end(started: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit status, and what it said of errors."""
    _, errors = started.communicate(timeout=60)
    return started.returncode, errors


def _wait_until_ready(folder: Path, started: "subprocess.Popen[str]") -> None:
    while not all((folder / f"ready-{rank}").exists() for rank in (0, 1)):
        assert started.poll() is None
        time.sleep(0.05)


def test_each_process_is_told_who_it_is_and_gets_its_own_arguments(tmp_path, repository):
    started = _start(
        tmp_path,
        repository,
        TELL,
        *(
            "--standalone",
            "--nproc_per_node=2",
            "--nnodes=3",
            "--node_rank=1",
            "--master_addr=node0",
            "--master-port=99",
        ),
        *("-m", "program", "--", "--depth=2", "-m", "512"),
    )
    assert _end(started) == (0, "")
    told = [json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in (2, 3)]
    assert [arguments for _, arguments in told] == [["--depth=2", "-m", "512"]] * 2
    assert told[1][0] == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "99",
    }


def test_failure_of_one_process_ends_the_others_with_its_status(tmp_path, repository):
    begin = time.monotonic()
    assert _end(_start(tmp_path, repository, FAIL_OR_SLEEP, "--nproc_per_node=2", "-m", "program"))[0] == 7
    assert time.monotonic() - begin < 40


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent has died")
def test_a_launcher_that_is_killed_leaves_nobody_behind(tmp_path, repository):
    started = _start(tmp_path, repository, SAVE_SLOWLY, "--nproc_per_node=2", "-m", "program")
    _wait_until_ready(tmp_path, started)
    started.kill()
    # Its output ends when the last of the processes that it started has.
    assert _end(started)[0] == -signal.SIGKILL
    assert all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))


@pytest.mark.parametrize("program", [SAVE_ON_SIGTERM, SAVE_SLOWLY], ids=["all at once", "one takes longer"])
def test_a_request_to_stop_reaches_every_process_which_may_save(tmp_path, repository, program):
    started = _start(tmp_path, repository, program, "--nproc_per_node=2", "-m", "program")
    _wait_until_ready(tmp_path, started)
    started.send_signal(signal.SIGTERM)
    assert _end(started)[0] == 143
    assert all((tmp_path / f"saved-{rank}").exists() for rank in (0, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nproc_per_node=0", "-m", "program"], "0 processes on node 0 of 1 cannot be"),
        (["--nnodes=2", "-m", "program"], "--master_addr"),
        (["--nproc_per_node=2"], "there is nothing to run"),
        (["--nproc_per_node=2", "my_run.py", "--prefix", "store"], "there is nothing to run: name a module"),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments, message, monkeypatch):
    from marin.errors import ConfigError
    from marin.run import launch

    with pytest.raises(ConfigError, match=message):
        launch.main(arguments)
