"""The hello run, killed with SIGKILL at ten random moments and started again each time, ends as a run left alone does.

About a quarter of an hour. MARIN_KILL_SEED repeats a sequence of moments; the seed of this one is printed.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

NUM_KILLS = 10
SHORTEST, LONGEST = 2.0, 40.0
HELLO = "experiments.speedrun.hello_world.main"


class Hello:
    """The hello run under a prefix of its own."""

    def __init__(self, repository: Path, environment: dict[str, str], directory: Path) -> None:
        self.store = directory / "store"
        self.log = directory / "log"
        self._repository = repository
        self._environment = environment

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", HELLO, "--force_run_failed", "true", "--prefix", str(self.store)],
                cwd=self._repository,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run_to_the_end(self) -> None:
        process = self.start()
        try:
            assert process.wait(timeout=1200) == 0, self.log.read_text()[-4000:]
        finally:
            process.kill()

    def kill_after(self, seconds: float) -> bool:
        """Whether the run was still going then."""
        process = self.start()
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        assert process.returncode == 0, self.log.read_text()[-4000:]
        return False

    def where(self) -> str:
        """How far the store has got, for the person who watches."""
        states = {path.parent.name: path.read_text().strip() for path in self.store.glob("**/.executor_status")}
        logs = list(self.store.glob("checkpoints/speedrun/*/metrics.jsonl"))
        steps = logs[0].read_bytes().count(b'"event":"step"') if logs else 0
        return f"{sum(state == 'SUCCESS' for state in states.values())} steps done, {steps} training steps logged"

    def results(self) -> dict[str, Any]:
        (run,) = json.loads((self.store / "speedrun_results.json").read_text())["runs"]
        return run["run_info"]

    def parameters(self) -> dict[str, str]:
        """SHA-256 of every array in the last checkpoint, weights and optimizer state, by name."""
        state = max(self.store.glob("checkpoints/speedrun/*/checkpoints/step-*")) / "state"
        entries = json.loads((state / "_METADATA").read_text())["tree_metadata"].values()
        as_numpy = {entry["key_metadata"][0]["key"]: ocp.RestoreArgs(restore_type=np.ndarray) for entry in entries}
        arrays = ocp.PyTreeCheckpointer().restore(state, restore_args=as_numpy)
        return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in sorted(arrays.items())}


def _digest_of(parameters: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_hello_killed_at_ten_random_moments_ends_as_one_left_alone(
    repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    seed = int(os.environ.get("MARIN_KILL_SEED") or random.SystemRandom().randrange(10**6))
    print(f"\nMARIN_KILL_SEED={seed}")
    rng = random.Random(seed)
    cache = tmp_path / "compile_cache"
    cache.mkdir(mode=0o700)
    environment = plain_environment | {"MARIN_COMPILE_CACHE": str(cache)}
    for name in ("alone", "killed"):
        (tmp_path / name).mkdir()
    alone = Hello(repository, environment, tmp_path / "alone")
    killed = Hello(repository, environment, tmp_path / "killed")

    begin = time.monotonic()
    alone.run_to_the_end()
    seconds_alone = time.monotonic() - begin
    print(f"left alone: {seconds_alone:.0f} s")

    # Ten such delays come to no more than about one whole run, so the last kill still finds it at work.
    longest = min(LONGEST, seconds_alone / 5)
    kills = 0
    while kills < NUM_KILLS:
        seconds = rng.uniform(SHORTEST, longest)
        if not killed.kill_after(seconds):
            break
        kills += 1
        print(f"kill {kills} after {seconds:.1f} s: {killed.where()}")
    begin = time.monotonic()
    killed.run_to_the_end()
    print(f"last start: {time.monotonic() - begin:.0f} s")

    ours, theirs = killed.results(), alone.results()
    for name, results, run in (("left alone", theirs, alone), ("killed", ours, killed)):
        bits = results["evaluation"]["bits_per_byte"]
        print(f"{name:<11} bits per byte {bits!r}  parameters {_digest_of(run.parameters())}")
    print(f"resumed {ours['num_resumes']} times, {ours['wasted_time']:.1f} s of work done twice")
    assert kills == NUM_KILLS
    assert killed.parameters() == alone.parameters()
    assert ours["evaluation"] == theirs["evaluation"]
    assert ours["sample"] == theirs["sample"]
    assert ours["total_tokens"] == theirs["total_tokens"]
    assert (theirs["resumed"], ours["resumed"], ours["num_resumes"] >= 1) == (False, True, True)
