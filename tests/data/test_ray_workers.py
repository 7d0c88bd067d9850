"""Shards of one step on all nodes of a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.execution.ray_nodes import RayNodes

pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys, time
from marin.data.workers import run_in_processes

FAILS_AT, SECONDS = int(sys.argv[1]), float(os.environ["SECONDS"])

def square(item):
    if item == FAILS_AT:
        raise ValueError(f"item {item}")
    time.sleep(SECONDS)
    return item * item, os.getppid()

found = list(run_in_processes(square, range(24)))
assert sorted(index for index, _ in found) == list(range(24))
assert all(value == index * index for index, (value, _) in found)
print(json.dumps({"parents": len({parent for _, (_, parent) in found})}))
"""


@pytest.fixture
def run(tmp_path, plain_environment):
    def start(address: str, fails_at: int = -1, seconds: float = 0.3) -> "subprocess.Popen[str]":
        (tmp_path / "program.py").write_text(PROGRAM)
        environment = plain_environment | {"PYTHONPATH": str(Path.cwd()), "SECONDS": str(seconds)}
        environment |= {"MARIN_SHARDS": "ray", "RAY_ADDRESS": address}
        command = [sys.executable, "program.py", str(fails_at)]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_items_go_to_all_nodes_survive_the_loss_of_one_and_errors_come_back(run, plain_environment):
    nodes = RayNodes(2, 2, plain_environment)
    try:
        out, err = (process := run(nodes.address)).communicate(timeout=240)
        assert process.returncode == 0, out + err
        assert json.loads(out.splitlines()[-1])["parents"] >= 3  # this process's, and those of two nodes
        out, err = (process := run(nodes.address, fails_at=7)).communicate(timeout=240)
        assert process.returncode == 1
        assert "ValueError: item 7" in err
        process = run(nodes.address, seconds=1.5)
        while process.poll() is None and not _is_busy(nodes):
            pass
        nodes.add()
        nodes.kill(0)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err
    finally:
        nodes.close()


JOB = """
import dataclasses, os, pathlib
import marin
from marin.data.workers import run_in_processes
from marin.execution import ExecutorStep, executor_main, this_output_path

@dataclasses.dataclass(frozen=True)
class Config:
    output_path: str = this_output_path()

def look(item):
    import time
    time.sleep(1.0)
    return f"{os.environ.get('SR_GIVEN')} {os.environ.get('MARIN_GIVEN')} {'_ray_pkg' in marin.__file__} {os.getppid()}"

def work(config):
    seen = [text for _, text in run_in_processes(look, range(20))]
    pathlib.Path(config.output_path, "seen").write_text("\\n".join(seen))

if __name__ == "__main__":
    executor_main(steps=[ExecutorStep("steps/a", work, Config())])
"""


def test_shards_of_a_job_have_its_repository_and_its_variables(repository, tmp_path, plain_environment):
    (tmp_path / "main.py").write_text(JOB)
    nodes = RayNodes(1, 2, plain_environment, dashboard=True)
    try:
        command = [
            sys.executable,
            str(repository / "marin/run/ray_run.py"),
            "-e",
            "SR_GIVEN",
            "job",
            "-e",
            "MARIN_GIVEN",
            "too",
        ]
        done = subprocess.run(
            [*command, "--", sys.executable, str(tmp_path / "main.py"), "--prefix", str(tmp_path / "store")],
            cwd=tmp_path, env=plain_environment | {"RAY_ADDRESS": nodes.jobs_address},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (seen,) = (tmp_path / "store" / "steps").glob("a-*/seen")
        lines = [line.split() for line in seen.read_text().splitlines()]
        assert {tuple(line[:3]) for line in lines} == {("job", "too", "True")}
        assert len({line[3] for line in lines}) >= 2  # tasks of the cluster, beside the step's own process
    finally:
        nodes.close()


def _is_busy(nodes: RayNodes) -> bool:
    """Whether a task of the program runs on a node."""
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return "ray::_call" in shown


def test_without_a_cluster_nothing_asks_for_one(monkeypatch):
    from marin.data import ray_workers

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(os.environ, "MARIN_SHARDS", "ray")
    assert not ray_workers.is_on_cluster()
