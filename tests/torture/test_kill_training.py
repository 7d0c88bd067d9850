"""Training that is killed and goes on; see kill_training.py beside this file for the faults and what they prove.

MARIN_KILL_SEED repeats a sequence of faults; the seed of each is printed.
"""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_training.py")


def _kill(repository: Path, environment: dict[str, str], directory: Path, kills: int, seed: int) -> None:
    print(f"\nMARIN_KILL_SEED={seed}")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), "--kills", str(kills), "--seed", str(seed)],
        cwd=repository,
        env=environment | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    totals = json.loads(done.stdout.splitlines()[-1])
    print(totals)
    assert (totals["faults met"], totals["failed"]) == (kills, 0)


def test_training_killed_at_3_random_points_ends_as_one_left_alone(
    repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    seed = int(os.environ.get("MARIN_KILL_SEED") or datetime.date.today().toordinal())
    _kill(repository, plain_environment, tmp_path, 3, seed)


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_training_killed_at_100_random_points_ends_as_one_left_alone(
    repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    _kill(repository, plain_environment, tmp_path, 100, int(os.environ.get("MARIN_KILL_SEED") or 1))
