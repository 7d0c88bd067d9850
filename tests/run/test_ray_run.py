"""`python marin/run/ray_run.py`: a command as a job of a real Ray cluster on this machine."""

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from marin.errors import ConfigError
from marin.execution import ray_cluster
from marin.execution.provenance import submitted_variables
from marin.run import ray_run
from tests.execution.ray_nodes import RayNodes

HAS_RAY = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")

EXPERIMENT = """
import dataclasses, os, pathlib, sys
from marin.execution import ExecutorStep, executor_main, this_output_path

@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    output_path: str = this_output_path()

def work(config):
    pathlib.Path(config.output_path, "label").write_text(os.environ["SR_LABEL"])

if __name__ == "__main__":
    executor_main(steps=[ExecutorStep("steps/a", work, Config("a"))])
"""


SAVING = """
import dataclasses, os, pathlib, time
from marin.execution import ExecutorStep, executor_main, this_output_path

@dataclasses.dataclass(frozen=True)
class Config:
    notes: str
    output_path: str = this_output_path()

def work(config):
    notes = pathlib.Path(config.notes)
    (notes / "begun").touch()
    try:
        time.sleep(300)
    finally:
        time.sleep(6)  # as a large checkpoint takes
        (notes / "saved").touch()

if __name__ == "__main__":
    executor_main(steps=[ExecutorStep("steps/saving", work, Config(os.environ["SR_NOTES"]))])
"""


def run(
    repository: Path, directory: Path, environment: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "marin/run/ray_run.py"), *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to run: write the command after `--`"),
        (["python", "-m", "x"], "unrecognized arguments: python -m x"),
        (["-e", "NAME", "a", "b", "--", "true"], "is no variable: write `-e NAME VALUE`"),
        (["-e", "NOT-ONE", "a", "--", "true"], "is no variable"),
        (["--no_wait", "--", "true"], "`--no_wait` needs a cluster that stays"),
        (["--address", "http://127.0.0.1:9", "--", "true"], "nothing answers at http://127.0.0.1:9"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_write(arguments, message, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError) as refused:
        ray_run.main(arguments)
    assert message in str(refused.value)


def test_a_server_that_is_no_cluster_is_refused():
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with pytest.raises(ConfigError, match=f"the cluster at {address} does not take the job"):
                ray_run.main(["--address", address, "--", "true"])
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("script", "seconds", "said"),
    [("echo starting; echo no room left; exit 1", 60, "no room left"), ("sleep 60", 0, "it said nothing")],
)
def test_a_cluster_of_its_own_that_does_not_start_is_one_message(script, seconds, said, monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(ray_run, "_SECONDS_TO_START", seconds)
    with pytest.raises(ConfigError, match=rf"Ray did not start on this machine \({said}\)"):
        ray_run.main(["--", "true"])


def test_a_cluster_for_an_experiment_that_does_not_start_in_time_is_one_message(monkeypatch):
    def late(**settings: Any) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray says it, of no narrower class

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(HAS_RAY, "init", late)
    with pytest.raises(ConfigError, match=r"Ray did not start on this machine \(The current node timed out"):
        ray_cluster.connect()


def test_a_secret_of_the_command_line_is_not_shown(monkeypatch):
    with pytest.raises(ConfigError) as refused:
        ray_run.main(["-e", "NAME", "hf_" + "a" * 34, "b", "--", "true"])
    assert "aaaa" not in str(refused.value)


def test_a_cluster_behind_a_forwarded_port_gets_the_repository(monkeypatch):
    """`ray dashboard` forwards the port of a cluster elsewhere to http://localhost:8265."""
    submitted: list[dict[str, Any]] = []

    class Client:
        def __init__(self, address: str, headers: dict[str, str] | None):
            self.address, self.headers = address, headers

        def submit_job(self, **job: Any) -> str:
            submitted.append(job)
            return "raysubmit_1"

    monkeypatch.setattr("ray.job_submission.JobSubmissionClient", Client)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        arguments = ["--address", f"http://localhost:{port}", "--no_wait", "--", "python", "-m", "x"]
        assert ray_run.main(arguments) == 0
    (job,) = submitted
    assert Path(job["runtime_env"]["working_dir"], "marin", "run").is_dir()
    assert "PYTHONPATH" not in job["runtime_env"]["env_vars"]
    assert job["entrypoint"] == "python -m x"  # the cluster's, not this machine's


@pytest.mark.slow
def test_a_cluster_that_asks_for_the_token_of_this_machine_gets_it(repository, tmp_path, plain_environment):
    """As one does that `ray start --head` started where `--runner ray` has run before, of Ray 2.60."""
    shown = []

    class Dashboard(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization"))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    command = [
        sys.executable,
        "marin/run/ray_run.py",
        "--address",
        f"http://127.0.0.1:{server.server_port}",
        "--",
        "true",
    ]
    environment = {name: value for name, value in plain_environment.items() if not name.startswith("RAY_")}
    try:
        done = subprocess.run(
            command, cwd=repository, env=environment | {"HOME": str(tmp_path)}, timeout=120, check=False
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 2 and set(shown) == {"Bearer " + "a" * 64}


def test_what_a_job_gets(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARIN_PREFIX", raising=False)
    options, command = ray_run._parse(
        [
            "-e",
            "A",
            "1",
            "--env_vars",
            "B",
            "--pip_deps",
            "einops,rich",
            "--pip_deps",
            "tqdm",
            "--",
            "python",
            "-m",
            "x",
            "--",
            "y",
        ]
    )
    assert command == ["python", "-m", "x", "--", "y"]
    remote = ray_run.runtime_environment(options, is_here=False)
    given = remote["env_vars"]
    assert int(given.pop("RAY_JOB_STOP_WAIT_TIME_S")) >= 60
    of_code = submitted_variables(ray_run.ROOT)  # none where the tests do not run in a clone
    assert given.items() >= of_code.items()
    given = {name: value for name, value in given.items() if name not in of_code}
    assert given == {
        "MARIN_RUNNER": "ray",
        "MARIN_SUBMITTED_FROM": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "A": "1",
        "B": "",
    }
    assert remote["pip"] == ["einops", "rich", "tqdm"]
    assert Path(remote["working_dir"], "marin", "run").is_dir() and ".git" in remote["excludes"]
    here = ray_run.runtime_environment(options, is_here=True)
    assert "working_dir" not in here and here["env_vars"]["PYTHONPATH"].startswith(remote["working_dir"])


@pytest.mark.parametrize(
    ("is_here", "again", "end"),
    [
        (True, "Ctrl-C again kills it with its cluster", "has not ended: it is killed with its cluster"),
        (False, "Ctrl-C again leaves it to itself", "has not ended: `ray job stop --address http://head:8265 job_1`"),
    ],
)
def test_a_job_that_does_not_end_when_it_is_stopped_is_not_left_without_a_word(
    is_here, again, end, monkeypatch, capsys
):
    class Client:
        def tail_job_logs(self, job: str) -> None:
            raise KeyboardInterrupt

        def stop_job(self, job: str) -> None:
            pass

        def get_job_status(self, job: str) -> Any:
            return types.SimpleNamespace(value="RUNNING")

    monkeypatch.setattr(ray_run, "_SECONDS_TO_SAVE", 0)
    monkeypatch.setattr(ray_run, "_SECONDS_TO_STOP", 0)
    with pytest.raises(KeyboardInterrupt):
        ray_run._follow(Client(), "job_1", "http://head:8265", is_here=is_here)
    said = capsys.readouterr().err
    assert again in said and end in said


@pytest.mark.slow
def test_a_job_runs_the_steps_on_a_cluster_of_its_own(repository, tmp_path, plain_environment):
    (tmp_path / "main.py").write_text(EXPERIMENT)
    command = ["-e", "SR_LABEL", "made", "--", "python", "main.py", "--prefix", "store"]
    with contextlib.ExitStack() as beside:
        # The agent's usual port is another cluster's; where it cannot be taken, it is one already.
        with contextlib.suppress(OSError):
            beside.enter_context(socket.create_server(("", 52365)))
        done = run(repository, tmp_path, plain_environment, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starting a cluster on this machine" in done.stdout
    assert "(steps/a pid=" in done.stdout and "done steps/a in" in done.stdout
    (label,) = (tmp_path / "store" / "steps").glob("a-*/label")
    assert label.read_text() == "made"


@pytest.fixture(scope="module")
def nodes(plain_environment):
    cluster = RayNodes(1, 1, plain_environment, dashboard=True)
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_the_exit_status_is_the_commands(repository, tmp_path, plain_environment, nodes):
    environment = plain_environment | {"RAY_ADDRESS": nodes.jobs_address}
    done = run(repository, tmp_path, environment, "--", "bash", "-c", "echo said; exit 7")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "said" in done.stdout
    left = run(repository, tmp_path, environment, "--no_wait", "--", "sleep", "1")
    assert left.returncode == 0 and "ray job logs" in left.stdout


def _stopped_once_begun(process, folder):
    """Ctrl-C as soon as the job has written `begun` into the folder; returns what the command says on standard error."""
    deadline = time.monotonic() + 120
    while not (folder / "begun").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    return err


@pytest.mark.slow
def test_ctrl_c_cancels_the_job(repository, tmp_path, plain_environment, nodes):
    command = [sys.executable, str(repository / "marin/run/ray_run.py"), "--", "bash", "-c"]
    process = subprocess.Popen(
        [*command, f"echo begun; touch {tmp_path}/begun; sleep 60; touch {tmp_path}/ended"],
        cwd=tmp_path,
        env=plain_environment | {"RAY_ADDRESS": nodes.jobs_address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "stopping raysubmit_" in _stopped_once_begun(process, tmp_path)
    time.sleep(1.0)
    assert not (tmp_path / "ended").exists()


@pytest.mark.slow
def test_a_job_that_is_cancelled_ends_once_its_step_has_saved(repository, tmp_path, plain_environment, nodes):
    (tmp_path / "main.py").write_text(SAVING)
    environment = plain_environment | {"RAY_ADDRESS": nodes.jobs_address}
    command = [sys.executable, str(tmp_path / "main.py"), "--prefix", "store"]
    process = subprocess.Popen(
        [sys.executable, str(repository / "marin/run/ray_run.py"), "-e", "SR_NOTES", str(tmp_path), "--", *command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = _stopped_once_begun(process, tmp_path)
    assert (tmp_path / "saved").exists(), said


@pytest.mark.slow
def test_a_cluster_that_is_lost_while_a_job_is_followed_is_one_message(repository, tmp_path, plain_environment):
    cluster = RayNodes(1, 1, plain_environment, dashboard=True)
    try:
        process = subprocess.Popen(
            [sys.executable, str(repository / "marin/run/ray_run.py"), "--", "bash", "-c", "echo begun; sleep 60"],
            cwd=tmp_path,
            env=plain_environment | {"RAY_ADDRESS": cluster.jobs_address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        while process.stdout.readline() != "begun\n":
            assert process.poll() is None
    finally:
        cluster.close()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2, out + err
    assert f"error: the connection to the cluster at {cluster.jobs_address} was lost" in err
    assert "Traceback" not in err
