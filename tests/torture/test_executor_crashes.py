"""The crash matrix of the executor; see crash_matrix.py beside this file for what a point is and what it proves."""

import datetime
import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("crash_matrix.py")


def run_matrix(directory: pathlib.Path, points: int, seed: int, script: pathlib.Path = SCRIPT) -> None:
    """Runs a matrix in a process without JAX and without threads, which forks a process for each run."""
    command = [sys.executable, str(script), str(directory), "--points", str(points), "--seed", str(seed)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MARIN_")}
    root = SCRIPT.parents[2]
    done = subprocess.run(
        command, cwd=root, env=environment | {"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, "\n".join([" ".join(command), *lines, done.stderr[-4000:]])
    totals = json.loads(lines[-1])
    print(totals)
    assert totals["points"] == points and totals["failed"] == 0


def test_executor_killed_or_failing_at_a_sample_of_storage_operations_loses_nothing(tmp_path: pathlib.Path) -> None:
    """MARIN_CRASH_SEED repeats a sample; by default every day has another."""
    seed = int(os.environ.get("MARIN_CRASH_SEED") or datetime.date.today().toordinal())
    print(f"MARIN_CRASH_SEED={seed}")
    run_matrix(tmp_path, 40, seed)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_executor_killed_or_failing_at_1000_points_loses_nothing(tmp_path: pathlib.Path) -> None:
    run_matrix(tmp_path, 1000, int(os.environ.get("MARIN_CRASH_SEED") or 1))


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_executor_on_an_object_store_killed_or_failing_at_100_points_loses_nothing(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("moto.server", reason="the S3 server for tests needs moto[server]")
    seed = int(os.environ.get("MARIN_CRASH_SEED") or 1)
    run_matrix(tmp_path, 100, seed, SCRIPT.with_name("crash_matrix_s3.py"))


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_steps_in_processes_of_their_own_killed_at_random_moments_lose_nothing(tmp_path: pathlib.Path) -> None:
    run_matrix(tmp_path, 60, int(os.environ.get("MARIN_CRASH_SEED") or 1), SCRIPT.with_name("crash_children.py"))
