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


def _is_busy(nodes: RayNodes) -> bool:
    """Whether a task of the program runs on a node."""
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return "ray::_call" in shown


def test_without_a_cluster_nothing_asks_for_one(monkeypatch):
    from marin.data import ray_workers

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(os.environ, "MARIN_SHARDS", "ray")
    assert not ray_workers.is_on_cluster()
