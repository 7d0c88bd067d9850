"""Several steps at once, each in a process of its own, as `--max_concurrent N` runs them."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from marin.execution.attempts import ledger_directory
from marin.storage.lease import Lease

EXPERIMENT = """
import dataclasses, os, pathlib, signal, sys, time
from marin.execution import ExecutorStep, executor_main, this_output_path

@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    inputs: tuple = ()
    does: str = "meet"
    output_path: str = this_output_path()

def work(config):
    print(f"this is {config.label}")
    os.system(f"echo a child of {config.label}")
    meeting = pathlib.Path(os.environ["MEETING"])
    if config.does == "fail":
        raise ValueError("no luck")
    if config.does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.does == "meet":
        (meeting / config.label).touch()
        deadline = time.monotonic() + 60
        while len(list(meeting.iterdir())) < int(os.environ.get("GUESTS", "2")):
            assert time.monotonic() < deadline, "nobody else came"
            time.sleep(0.01)
    pathlib.Path(config.output_path, "label").write_text(config.label + "".join(
        pathlib.Path(path, "label").read_text() for path in config.inputs))

def step(label, *inputs, does="meet"):
    return ExecutorStep(f"steps/{label}", work, Config(label, inputs, does))

FIRST, SECOND = step("first"), step("second")
STEPS = {
    "diamond": [step("last", FIRST, SECOND, does="nothing")],
    "failing": [step("after", step("bad", does="fail"), does="nothing"), step("alone", does="nothing")],
    "dying": [step("dead", does="die"), step("alone", does="nothing")],
    "waiting": [FIRST, SECOND],
    "wide": [step(f"wide{number}", does="nothing") for number in range(4)],
}
if __name__ == "__main__":
    executor_main(steps=STEPS[os.environ["GRAPH"]])
"""


class Experiment:
    def __init__(self, directory: pathlib.Path, environment: dict[str, str]):
        self.directory, self.store, self.meeting = directory, directory / "store", directory / "meeting"
        self.meeting.mkdir()
        (directory / "main.py").write_text(EXPERIMENT)
        self.environment = environment | {"PYTHONPATH": str(pathlib.Path.cwd()), "MEETING": str(self.meeting)}

    def start(self, graph: str, max_concurrent: int = 2, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "main.py", "--prefix", "store", "--max_concurrent", str(max_concurrent)],
            cwd=self.directory,
            env=self.environment | {"GRAPH": graph} | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, graph: str, **more: str) -> tuple[int, str, str]:
        process = self.start(graph, **more)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def output(self, label: str) -> pathlib.Path:
        (path,) = (self.store / "steps").glob(f"{label}-*")
        return path

    def wait_for_guests(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(list(self.meeting.iterdir())) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def experiment(tmp_path: pathlib.Path, plain_environment: dict[str, str]) -> Experiment:
    return Experiment(tmp_path, plain_environment)


def test_independent_steps_run_at_once_and_what_needs_both_comes_after(experiment: Experiment) -> None:
    code, out, err = experiment.run("diamond")
    assert (code, err) == (0, "")
    assert (experiment.output("last") / "label").read_text() == "lastfirstsecond"
    for label in ("first", "second", "last"):
        assert f"done steps/{label} in" in out
        assert f"this is {label}" not in out
        log = pathlib.Path(json.loads((experiment.output(label) / ".executor_info").read_text())["log_path"])
        assert log.read_text() == f"this is {label}\na child of {label}\n"
    code, out, _ = experiment.run("diamond")
    assert (code, out.splitlines()[-1]) == (0, "nothing to do: all 3 steps are done")


def test_failure_in_one_process_stops_its_dependents_only(experiment: Experiment) -> None:
    code, out, err = experiment.run("failing")
    assert code == 2
    assert "ValueError: no luck (traceback in " in err
    assert "Traceback" not in out + err
    assert (experiment.output("alone") / "label").read_text() == "alone"
    assert (experiment.output("bad") / ".executor_status").read_text() == "FAILED\n"
    assert 'raise ValueError("no luck")' in (experiment.output("bad") / ".executor_error.txt").read_text()
    assert (experiment.output("after") / ".executor_status").read_text() == "DEP_FAILED\n"


def test_process_that_is_killed_is_a_failed_step_and_the_rest_goes_on(experiment: Experiment) -> None:
    code, _, err = experiment.run("dying")
    assert code == 2
    assert "step `steps/dead`: its process was killed by SIGKILL; its log is " in err
    assert (experiment.output("alone") / "label").read_text() == "alone"
    assert (experiment.output("dead") / ".executor_status").read_text() == "FAILED\n"
    said = (experiment.output("dead") / ".executor_error.txt").read_text()
    assert said.startswith("its process was killed by SIGKILL; its log is ")
    code, out, _ = experiment.run("dying")
    assert code == 2
    assert "RUN steps/dead" in out
    assert "(failed before), prints into .executor_log.txt there" in out


def test_interrupt_stops_all_processes_and_the_next_run_does_the_work(experiment: Experiment) -> None:
    process = experiment.start("waiting", GUESTS="3")
    experiment.wait_for_guests(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    code, out, _ = experiment.run("waiting")
    assert code == 0
    assert out.count("interrupted; starts over") >= 2


def test_processes_of_a_run_in_the_background_stop_with_it(experiment: Experiment) -> None:
    """A shell has SIGINT ignored by what a script starts with `&`, which is inherited."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = experiment.start("waiting", GUESTS="3")
    finally:
        signal.signal(signal.SIGINT, before)
    experiment.wait_for_guests(2)
    process.terminate()
    _, err = process.communicate(timeout=30)  # the steps wait for a third guest for a minute
    assert process.returncode == 143
    assert "terminated" in err
    assert (experiment.output("first") / ".executor_status").read_text() == "RUNNING\n"


def test_processes_end_when_the_one_that_started_them_is_killed(experiment: Experiment) -> None:
    scratch = experiment.directory / "scratch"
    scratch.mkdir()
    process = experiment.start("waiting", GUESTS="3", TMPDIR=str(scratch))
    experiment.wait_for_guests(2)
    claims = [json.loads(path.read_text()) for path in experiment.store.glob("steps/.attempts/*/ledger/*.json")]
    workers = [int(claim["pid"]) for claim in claims]
    assert len(workers) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(_lives(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(scratch.iterdir()) == []  # what they were sent
    assert experiment.run("waiting")[0] == 0


@pytest.mark.parametrize("max_concurrent", [1, 2])
def test_steps_that_others_are_at_do_not_keep_places_from_those_that_nobody_is_at(
    experiment: Experiment, max_concurrent: int
) -> None:
    command = [sys.executable, "main.py", "--prefix", "store", "--dry_run"]
    environment = experiment.environment | {"GRAPH": "wide"}
    listed = subprocess.run(
        command, cwd=experiment.directory, env=environment, capture_output=True, text=True, check=True
    )
    outputs = [line.strip() for line in listed.stdout.splitlines() if line.startswith(" ")]
    assert len(outputs) == 4
    with Lease(ledger_directory(outputs[0])).acquire(), Lease(ledger_directory(outputs[1])).acquire():
        process = experiment.start("wide", max_concurrent)
        deadline = time.monotonic() + 60
        while not all(pathlib.Path(path, "label").is_file() for path in outputs[2:]):
            assert time.monotonic() < deadline, "the two free steps wait behind those of this process"
            time.sleep(0.02)
        assert not any(pathlib.Path(path, "label").exists() for path in outputs[:2])
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
    assert all(pathlib.Path(path, "label").is_file() for path in outputs)


def _lives(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_cannot_be_sent_to_a_process_is_refused_with_the_way_out(tmp_path: pathlib.Path) -> None:
    script = (
        "import dataclasses, threading\n"
        "from marin.execution import ExecutorStep, executor_main\n"
        "LOCK = threading.Lock()\n"
        "def work(config):\n    LOCK.acquire()\n"
        "executor_main(steps=[ExecutorStep('a', work, None)])\n"
    )
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "main.py", "--prefix", "store", "--max_concurrent", "2"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(pathlib.Path.cwd())}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cannot be sent to a process of its own" in done.stderr
    assert "use `--max_concurrent 1`" in done.stderr


MODULE_EXPERIMENT = """
import dataclasses, pathlib
import equinox as eqx
from marin.execution import ExecutorStep, executor_main, this_output_path

class Layer(eqx.Module):
    weight: int
    name: str = eqx.field(static=True, default="layer")

    def __init__(self, weight):
        self.weight = weight

@dataclasses.dataclass(frozen=True)
class Config:
    size: int
    output_path: str = this_output_path()

    def build(self):
        return Layer(self.size)

def work(config):
    pathlib.Path(config.output_path, "label").write_text(f"{type(config).__module__} {config.build().weight}")

if __name__ == "__main__":
    executor_main(steps=[ExecutorStep(f"steps/{size}", work, Config(size)) for size in (1, 2)])
"""


@pytest.mark.parametrize(
    ("command", "on_path"),
    [(["-m", "ideas.mine.main"], "."), (["ideas/mine/main.py"], "folder"), (["ideas/my-idea/2_main.py"], "folder")],
)
def test_steps_whose_classes_stand_in_the_started_script_run_in_processes_of_their_own(
    tmp_path: pathlib.Path, command: list[str], on_path: str
) -> None:
    """Equinox's modules, of which every copy of the template is made, cannot be sent by value."""
    for place in ("mine/main.py", "my-idea/2_main.py"):
        (tmp_path / "ideas" / place).parent.mkdir(parents=True)
        (tmp_path / "ideas" / place).write_text(MODULE_EXPERIMENT)
    search = [str(pathlib.Path.cwd()), *([str(tmp_path)] if on_path == "folder" else [])]
    done = subprocess.run(
        [sys.executable, *command, "--prefix", "store", "--max_concurrent", "2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    labels = sorted(path.read_text() for path in tmp_path.glob("store/steps/*/label"))
    module = command[-1].removesuffix(".py").replace("/", ".")
    assert labels == [f"{module} 1", f"{module} 2"]
