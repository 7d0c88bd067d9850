"""What XLA's own compiler makes of a pod's training step for TPUs that are not there: needs libtpu, and no TPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PYTHON = os.environ.get("MARIN_TPU_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _PYTHON, reason="MARIN_TPU_PYTHON names no Python with the packages of the extra `tpu` (no TPU is needed)"
    ),
]


def _compile(*options: str, fails: bool = False) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [str(_PYTHON), "-m", "benchmarks.absent_tpu", *options],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert (done.returncode != 0) == fails, done.stderr[-2000:]
    return done


def test_each_chip_holds_its_part_and_gradients_are_reduced_to_parts():
    found = json.loads(_compile("--topology", "v5p:2x2x1", "--layers", "1", "--batch", "16").stdout.splitlines()[-1])
    assert found["chips"] == 4
    # Parameters and optimizer state are divided as planned, to the byte but for the step's counters and padding of tiles.
    assert found["state_gib"] == pytest.approx(found["planned_state_gib"], rel=0.01)
    assert found["compiled_gib"] < found["of_gib"]
    assert found["compiled_gib"] == pytest.approx(found["planned_gib"], rel=0.25)
    # Splash attention forward, again where the block is recomputed, and twice backward (queries; keys and values).
    assert found["attention"] == 4
    assert found["sent"]["all-gather"] > 0
    assert found["sent"]["reduce-scatter"] > 0


def test_an_unknown_topology_is_one_line():
    failed = _compile("--topology", "v5p:nonsense", fails=True)
    assert "no topology 'v5p:nonsense'" in failed.stderr
    assert "Traceback" not in failed.stderr
