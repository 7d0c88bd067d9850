"""Steps as tasks of a real Ray cluster on this machine, whose nodes are killed under them."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

import psutil
import pytest

from tests.execution.ray_nodes import RayNodes

pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")

EXPERIMENT = """
import dataclasses, os, pathlib, time
from marin.execution import ExecutorStep, executor_main, this_output_path
from marin.resources import CpuOnlyConfig, GpuConfig

@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    inputs: tuple = ()
    does: str = "work"
    seconds: float = 0.0
    output_path: str = this_output_path()
    marin_resumable = True

def note(text):
    with open(os.environ["MARIN_TEST_DIARY"], "a") as diary:
        diary.write(text + "\\n")

def save_when_stopped(config):
    note("begun")
    try:
        time.sleep(300)
    finally:
        time.sleep(6)  # as a large checkpoint takes
        note("saved")

def work(config):
    print(f"this is {config.label}")
    if config.does == "fail":
        raise ValueError("no luck")
    parts = pathlib.Path(config.output_path, "parts")
    begun = parts.read_text() if parts.exists() else ""
    while len(begun) < config.seconds * 10:
        begun += "."
        parts.write_text(begun)
        note(f"{config.label} {len(begun)}")
        time.sleep(0.1)
    pathlib.Path(config.output_path, "label").write_text(config.label + "".join(
        pathlib.Path(path, "label").read_text() for path in config.inputs))

def step(label, *inputs, resources=None, **more):
    return ExecutorStep(f"steps/{label}", work, Config(label, inputs, **more), resources=resources)

STEPS = {
    "diamond": lambda: [step("last", step("first"), step("second"))],
    "failing": lambda: [step("after", step("bad", does="fail")), step("alone")],
    "long": lambda: [step("long", seconds=12.0)],
    "saving": lambda: [ExecutorStep("steps/saving", save_when_stopped, Config("saving"))],
    "many": lambda: [step("all", *(step(f"s{i}", seconds=0.5 + i % 7 / 5) for i in range(100)))],
    "large": lambda: [step("large", resources=CpuOnlyConfig(num_cpus=999))],
    "gpu": lambda: [step("gpu", resources=GpuConfig(2, "H100"))],
}
if __name__ == "__main__":
    executor_main(steps=STEPS[os.environ["GRAPH"]]())
"""


class Experiment:
    def __init__(self, directory: pathlib.Path, environment: dict[str, str]):
        self.directory, self.store, self.diary = directory, directory / "store", directory / "diary"
        (directory / "main.py").write_text(EXPERIMENT)
        self.environment = environment | {"PYTHONPATH": str(pathlib.Path.cwd()), "MARIN_TEST_DIARY": str(self.diary)}

    def start(self, graph: str, address: str | None, output: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "main.py", "--prefix", "store", "--runner", "ray"],
            cwd=self.directory,
            env=self.environment | {"GRAPH": graph} | ({"RAY_ADDRESS": address} if address else {}),
            stdout=output,
            stderr=output,
            text=True,
        )

    def run(self, graph: str, address: str | None = None) -> tuple[int, str, str]:
        process = self.start(graph, address)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    def output(self, label: str) -> pathlib.Path:
        (path,) = (self.store / "steps").glob(f"{label}-*")
        return path

    def entries(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.exists() else []

    def kill_step(self) -> None:
        """Ends the process of the step that runs, as a power cut would."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get("MARIN_TEST_DIARY") == str(self.diary)
                if is_ours and any("marin.execution.processes" in part for part in process.cmdline()):
                    process.kill()

    def wait_for_entries(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.entries()) < count:
            assert time.monotonic() < deadline, self.entries()
            time.sleep(0.05)


@pytest.fixture
def experiment(tmp_path: pathlib.Path, plain_environment: dict[str, str]) -> Experiment:
    return Experiment(tmp_path, plain_environment)


@pytest.fixture(scope="module")
def nodes(plain_environment: dict[str, str]) -> Iterator[RayNodes]:
    cluster = RayNodes(2, 1, plain_environment | {"PYTHONPATH": str(pathlib.Path.cwd())})
    yield cluster
    cluster.close()


def test_steps_run_on_a_cluster_that_is_started_for_them(experiment: Experiment) -> None:
    code, out, err = experiment.run("diamond")
    assert code == 0, out + err
    assert (experiment.output("last") / "label").read_text() == "lastfirstsecond"
    assert "done steps/last in" in out
    log = pathlib.Path(json.loads((experiment.output("first") / ".executor_info").read_text())["log_path"])
    assert log.read_text() == "this is first\n"
    code, out, _ = experiment.run("diamond")  # what is done needs no cluster
    assert (code, out.splitlines()[-1]) == (0, "nothing to do: all 3 steps are done")


@pytest.mark.slow
def test_a_failed_step_on_a_cluster_stops_its_dependents_only(experiment: Experiment, nodes: RayNodes) -> None:
    code, out, err = experiment.run("failing", nodes.address)
    assert code == 2
    assert "ValueError: no luck (traceback in " in err
    assert "Traceback" not in out + err
    assert (experiment.output("alone") / "label").read_text() == "alone"
    assert (experiment.output("bad") / ".executor_status").read_text() == "FAILED\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            "large",
            "asks for 999 CPU on one node, and no node of the cluster has that: there are no processors; 1 CPU; 1 CPU",
        ),
        ("gpu", "no node of the cluster has a GPU of type H100: there are none"),
    ],
)
def test_what_no_node_has_is_refused_at_once(experiment: Experiment, nodes: RayNodes, graph: str, message: str) -> None:
    code, _, err = experiment.run(graph, nodes.address)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_step_whose_process_alone_is_killed_has_failed(experiment: Experiment, nodes: RayNodes) -> None:
    process = experiment.start("long", nodes.address)
    experiment.wait_for_entries(10)
    experiment.kill_step()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 2, out + err
    assert "its process was killed by SIGKILL; its log is" in out + err, out + err


@pytest.mark.slow
@pytest.mark.parametrize("first", ["the node", "the step's process"])
def test_a_step_whose_node_is_lost_goes_on_elsewhere(experiment: Experiment, first: str) -> None:
    nodes = RayNodes(1, 1, experiment.environment)
    try:
        process = experiment.start("long", nodes.address)
        experiment.wait_for_entries(10)
        nodes.add()
        if first == "the step's process":
            experiment.kill_step()
            time.sleep(1.0)  # its task sees that before it goes itself
        nodes.kill(0)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err
    finally:
        nodes.close()
    assert "steps/long: its node was lost; it starts again" in out
    numbers = [int(entry.split()[1]) for entry in experiment.entries()]
    assert numbers[-1] == 120
    assert len(numbers) < 130, "it did not go on from what it had written"
    assert (experiment.output("long") / "label").read_text() == "long"


@pytest.mark.slow
def test_ctrl_c_stops_steps_on_a_cluster_and_the_next_run_goes_on(experiment: Experiment, nodes: RayNodes) -> None:
    process = experiment.start("long", nodes.address)
    experiment.wait_for_entries(10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    time.sleep(1.0)
    count = len(experiment.entries())
    time.sleep(1.0)
    assert len(experiment.entries()) == count, "the step goes on"
    code, out, err = experiment.run("long", nodes.address)
    assert code == 0, out + err
    numbers = [int(entry.split()[1]) for entry in experiment.entries()]
    assert numbers == sorted(numbers)
    assert "interrupted; continues" in out


@pytest.mark.slow
@pytest.mark.parametrize(("signal_number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_driver_that_is_stopped_waits_until_its_step_has_saved(
    experiment: Experiment, nodes: RayNodes, signal_number: signal.Signals, expected: int
) -> None:
    process = experiment.start("saving", nodes.address)
    experiment.wait_for_entries(1)
    process.send_signal(signal_number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == expected, out + err
    assert experiment.entries() == ["begun", "saved"]
    assert err.splitlines()[-1].endswith("run the same command again to continue"), err
    assert "SIGTERM received" not in err, "Ray's handler was at work"


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_hundred_steps_over_three_nodes_that_are_killed_commit_once_each(experiment: Experiment) -> None:
    draw = random.Random(int(os.environ.get("TORTURE_SEED", "0")))
    nodes = RayNodes(3, 4, experiment.environment)
    kills, log = 0, experiment.directory / "log"
    try:
        # Ray says much of each lost node: more than a pipe holds that nobody reads.
        with log.open("w") as output:
            process = experiment.start("many", nodes.address, output)
        experiment.wait_for_entries(5)
        while process.poll() is None:
            time.sleep(draw.uniform(2.0, 8.0))
            if process.poll() is None:
                nodes.kill(draw.randrange(2))
                nodes.add()
                kills += 1
        out = log.read_text()
        assert process.returncode == 0, out[-3000:]
    finally:
        nodes.close()
    assert kills >= 3
    print(f"{kills} nodes killed; {out.count('its node was lost')} steps lost")
    outputs = sorted((experiment.store / "steps").glob("s*-*"))
    assert len(outputs) == 100
    for output in outputs:
        assert (output / ".executor_status").read_text() == "SUCCESS\n"
        assert not output.is_symlink()
        ledger = experiment.store / "steps" / ".attempts" / output.name / "ledger"
        kinds = [json.loads(record.read_text())["kind"] for record in sorted(ledger.glob("*.json"))]
        assert kinds.count("commit") == 1, (output.name, kinds)
    code, out, _ = experiment.run("many", None)
    assert (code, out.splitlines()[-1]) == (0, "nothing to do: all 101 steps are done")
