"""One experiment file on two processes with `python -m marin.run.together`, as srun or torchrun would start them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import FinishedMiniature, Miniature, finish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _together(miniature: Miniature, *flags: str):
    """What the two processes printed and how they ended, the first of them first."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": "2"}
    shell = miniature.shell
    started = [
        shell.start("-m", "marin.run.together", "miniature", "--prefix", "store", *flags, **shared, RANK=str(rank))
        for rank in range(2)
    ]
    try:
        return [finish(process) for process in started]
    finally:
        for process in started:
            process.kill()


def test_experiment_on_two_processes_trains_as_on_one_and_is_done_afterwards(
    finished: FinishedMiniature, user_environment, tmp_path
):
    miniature = finished.miniature.copied(tmp_path / "two", trained=False)
    first, second = _together(miniature, "--force_run_failed", "true")
    assert (first.status, second.status) == (0, 0), (first, second)
    assert "bits per byte" in first.out and "bits per byte" not in second.out
    assert json.loads((miniature.run_directory / "run.json").read_text())["num_processes"] == 2
    alone, two = finished.miniature.results(), miniature.results()
    # Sums over two processes are added in another order.
    assert two["evaluation"]["bits_per_byte"] == pytest.approx(alone["evaluation"]["bits_per_byte"], abs=1e-3)
    assert [step["step"] for step in miniature.events("step")] == list(range(30))
    again = _together(miniature)
    assert [done.status for done in again] == [0, 0] and "nothing to do" in again[0].out, again


def test_experiment_with_a_budget_under_our_launcher_trains_on_both_processes(
    finished: FinishedMiniature, user_environment, tmp_path
):
    """The second comes to the budget before the first has written the log that tells what was spent."""
    miniature = finished.miniature.copied(tmp_path / "two", trained=False)
    file = miniature.shell.directory / "miniature.py"
    budget = "num_train_steps=STEPS, budget=Budget(hardware_flops=1e18),"
    text = file.read_text().replace("num_train_steps=STEPS,", budget)
    file.write_text(text.replace("import dataclasses\n", "import dataclasses\nfrom marin.training import Budget\n", 1))
    two = [
        "-m",
        "marin.run.launch",
        "--nproc_per_node",
        "2",
        "-m",
        "marin.run.together",
        "miniature",
        "--prefix",
        "store",
    ]
    done = finish(miniature.shell.start(*two))
    assert done.status == 0, done
    newest = max(miniature.store.glob("checkpoints/**/run.json"), key=lambda path: path.stat().st_mtime)
    record = json.loads(newest.read_text())
    assert record["num_processes"] == 2 and "1e+18" in json.dumps(record["config"]), record["config"]


def test_experiment_under_the_real_torchrun_trains_as_on_one_and_is_done_afterwards(
    finished: FinishedMiniature, user_environment, tmp_path
):
    peer = os.environ.get("MARIN_PEER_PYTHON")
    if peer is None or not Path(peer).with_name("torchrun").is_file():
        pytest.skip("MARIN_PEER_PYTHON names no Python with torch (docs/tutorials/time-to-gpt2.md tells how)")
    miniature = finished.miniature.copied(tmp_path / "two", trained=False)
    together = ["--standalone", "--nproc_per_node=2", "-m", "marin.run.together", "miniature", "--prefix", "store"]

    def torchrun() -> "subprocess.CompletedProcess[str]":
        # The processes it starts are of the Python that has this project.
        return subprocess.run(
            [str(Path(peer).with_name("torchrun")), *together],
            cwd=miniature.shell.directory,
            env=miniature.shell.environment | {"PYTHON_EXEC": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )

    first = torchrun()
    assert first.returncode == 0, first
    assert first.stdout.count("bits per byte") == finished.first.out.count("bits per byte")
    assert json.loads((miniature.run_directory / "run.json").read_text())["num_processes"] == 2
    alone, two = finished.miniature.results(), miniature.results()
    assert two["evaluation"]["bits_per_byte"] == pytest.approx(alone["evaluation"]["bits_per_byte"], abs=1e-3)
    assert [step["step"] for step in miniature.events("step")] == list(range(30))
    again = torchrun()
    assert again.returncode == 0 and "nothing to do" in again.stdout, again
