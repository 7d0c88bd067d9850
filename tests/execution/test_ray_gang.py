"""Training on several hosts of a Ray cluster at once: the same curve as one process, also when a host is lost."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.execution.ray_nodes import RayNodes
from tests.training.conftest import data

pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
__all__ = ["data"]

EXPERIMENT = """
import dataclasses, os
from marin.execution import ExecutorStep, executor_main, this_output_path
from marin.models import LlamaConfig
from marin.optim import MuonConfig
from marin.resources import CpuOnlyConfig
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig
from marin.training.loop import train_lm

HOSTS, STEPS, DATA = int(os.environ["SR_HOSTS"]), int(os.environ["SR_STEPS"]), os.environ["SR_DATA"]
RESOURCES = CpuOnlyConfig(num_cpus=1, num_hosts=HOSTS)
config = TrainLmConfig(
    model=LlamaConfig(seq_len=32, hidden_dim=16, intermediate_dim=24, num_layers=1, num_heads=2, num_kv_heads=1,
                      gradient_checkpointing=False),
    train=SimpleTrainConfig(
        RESOURCES, train_batch_size=8, num_train_steps=STEPS, learning_rate=0.02, checkpoint_interval=1,
        optimizer_config=MuonConfig(learning_rate=0.02, adam_lr=0.01, warmup=0, decay=0.5),
        watch=WatchConfig(watch_targets=[]),
    ),
    data=os.path.join(DATA, "tokens"), tokenizer=DATA, vocab_size=300, output_path=this_output_path(),
)
if __name__ == "__main__":
    executor_main(steps=[ExecutorStep("train", train_lm, config, resources=RESOURCES)])
"""


class Training:
    def __init__(
        self, directory: Path, environment: dict[str, str], data: Path, hosts: int, steps: int, address: str | None
    ):
        directory.mkdir()
        self.directory = directory
        (directory / "main.py").write_text(EXPERIMENT)
        environment = environment | {"PYTHONPATH": str(Path.cwd()), "SR_HOSTS": str(hosts), "SR_STEPS": str(steps)}
        environment |= {"SR_DATA": str(data)} | ({"RAY_ADDRESS": address} if address else {})
        self.process = subprocess.Popen(
            [sys.executable, "main.py", "--prefix", "store", "--runner", "ray" if address else "local"],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> str:
        out, _ = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, out[-4000:]
        return out

    @property
    def run(self) -> Path:
        (path,) = (self.directory / "store").glob("train-*")
        return path

    def steps(self) -> list[dict[str, float]]:
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["event"] == "step"]

    def losses(self) -> list[float]:
        """By step; a step that was taken again counts once."""
        return [loss for _, loss in sorted({row["step"]: row["loss"] for row in self.steps()}.items())]

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + 240
        while True:
            assert self.process.poll() is None, self.process.communicate()
            try:
                if self.steps()[-1]["step"] >= step:
                    return
            except (ValueError, IndexError, OSError):  # no run yet, or a line that is being written
                pass
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_two_hosts_train_as_one_process_does(tmp_path, plain_environment, data):
    nodes = RayNodes(2, 1, plain_environment)
    try:
        alone = Training(tmp_path / "one", plain_environment, data, 1, 12, None)
        alone.end()
        both = Training(tmp_path / "two", plain_environment, data, 2, 12, nodes.address)
        both.end()
    finally:
        nodes.close()
    assert json.loads((both.run / "run.json").read_text())["num_processes"] == 2
    assert len(both.losses()) == 12
    np.testing.assert_allclose(both.losses(), alone.losses(), atol=1e-5)


def test_a_host_that_is_lost_while_training_costs_the_work_since_the_last_checkpoint(tmp_path, plain_environment, data):
    steps = int(os.environ.get("GANG_STEPS", "240"))
    nodes = RayNodes(2, 1, plain_environment)
    try:
        whole = Training(tmp_path / "whole", plain_environment, data, 2, steps, nodes.address)
        whole.end()
        broken = Training(tmp_path / "broken", plain_environment, data, 2, steps, nodes.address)
        broken.wait_for_step(steps // 2)
        nodes.add()
        nodes.kill(1)
        out = broken.end()
    finally:
        nodes.close()
    assert "its node was lost; it starts again" in out
    np.testing.assert_allclose(broken.losses(), whole.losses(), atol=1e-5)
    taken = [row["step"] for row in broken.steps()]
    assert taken[0] == 0 and len(taken) < 1.6 * steps, "it began anew"
