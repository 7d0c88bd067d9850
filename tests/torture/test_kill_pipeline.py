"""Stages of the pipeline that are killed and go on; see kill_pipeline.py beside this file for what they must leave.

MARIN_KILL_SEED repeats a sequence of kills; the seed of each is printed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_pipeline.py")


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_stages_killed_at_40_random_points_leave_what_they_leave_undisturbed(
    repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    seed = os.environ.get("MARIN_KILL_SEED") or "7"
    print(f"\nMARIN_KILL_SEED={seed}")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "pipeline"), "--kills", "40", "--seed", seed],
        cwd=repository,
        env=plain_environment | {"PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    totals = json.loads(done.stdout.splitlines()[-1])
    print(totals)
    assert totals["failed"] == 0 and sum(totals["kills"].values()) >= 40 and len(totals["kills"]) == 4
    # Otherwise stages began anew, and continuing was not tried.
    assert totals["continued"].keys() == {"base_train", "chat_sft"}
