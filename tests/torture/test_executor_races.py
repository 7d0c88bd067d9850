"""Many processes at one graph, and an owner that was stopped past its lease: each step is committed exactly once."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = pathlib.Path(__file__).with_name("race.py")
ROOT = SCRIPT.parents[2]
OWNER = SCRIPT.with_name("race_owner.py")


def environment() -> dict[str, str]:
    """Without the flags of tests; our package is found from anywhere."""
    return {k: v for k, v in os.environ.items() if not k.startswith("MARIN_")} | {"PYTHONPATH": str(ROOT)}


def race(directory: pathlib.Path, steps: int, processes: int, seed: int, *prefix: str) -> None:
    command = [sys.executable, str(SCRIPT), str(directory), str(steps), str(processes), str(seed), *prefix]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr[-4000:]}"
    print(done.stdout.strip())
    assert json.loads(done.stdout)["steps"] == steps


def test_steps_raced_for_by_6_processes_are_each_run_and_committed_once(tmp_path: pathlib.Path) -> None:
    race(tmp_path / "race", 30, 6, seed=0)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_steps_raced_for_by_32_processes_are_each_run_and_committed_once_in_20_rounds(tmp_path: pathlib.Path) -> None:
    for seed in range(20):
        race(tmp_path / str(seed), 500, 32, seed)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_steps_raced_for_on_an_object_store_are_each_run_and_committed_once(
    tmp_path: pathlib.Path, s3_prefix: str
) -> None:
    for seed in range(2):
        race(tmp_path / str(seed), 20, 6, seed, f"{s3_prefix}/{seed}")


def owner(machine: str, prefix: pathlib.Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(OWNER), machine, str(prefix)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def wait_until_it_works(process: subprocess.Popen[str], prefix: pathlib.Path) -> None:
    deadline = time.monotonic() + 60
    while not (prefix / "works").exists():
        assert process.poll() is None and time.monotonic() < deadline, "it never came to the step"
        time.sleep(0.02)


def test_owner_stopped_past_its_lease_and_continued_cannot_commit(tmp_path: pathlib.Path) -> None:
    first = owner("first", tmp_path)
    try:
        wait_until_it_works(first, tmp_path)
        first.send_signal(signal.SIGSTOP)
        second = owner("second", tmp_path)
        said, complaint = second.communicate(timeout=60)
        assert second.returncode == 0, said + complaint
        (tmp_path / "finish").touch()
        first.send_signal(signal.SIGCONT)
        said, complaint = first.communicate(timeout=60)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 2
    assert "took the step over" in complaint and "Traceback" not in said + complaint
    (output,) = (path for path in (tmp_path / "race").glob("step-*"))
    assert not output.is_symlink()
    assert (output / "machine").read_text() == "second"
    assert (output / ".executor_status").read_text() == "SUCCESS\n"
    assert not (output / "late").exists()
    records = sorted((tmp_path / "race" / ".attempts" / output.name / "ledger").iterdir())
    assert [json.loads(path.read_text())["kind"] for path in records] == ["claim", "claim", "commit"]


def test_owner_that_is_slow_but_alive_keeps_its_lease_beyond_its_length(tmp_path: pathlib.Path) -> None:
    first = owner("first", tmp_path)
    try:
        wait_until_it_works(first, tmp_path)
        second = owner("second", tmp_path)
        time.sleep(2.0)  # four times the silence after which it would be overtaken
        (tmp_path / "finish").touch()
        assert first.wait(60) == 0
        said, complaint = second.communicate(timeout=60)
        assert second.returncode == 0, said + complaint
    finally:
        first.kill()
        first.communicate()
    (output,) = (path for path in (tmp_path / "race").glob("step-*"))
    assert (output / "machine").read_text() == "first"
