"""`python -m marin.run.together` in processes that are started by hand, where something goes wrong before they train."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENT = """
import dataclasses, os
from typing import ClassVar
from marin.errors import ConfigError
from marin.execution import ExecutorStep, executor_main, this_output_path

is_first = os.environ["MARIN_PROCESS_ID"] == "0"
if is_first and os.environ.get("FAILS") == "import":
    raise RuntimeError("the first has no such package")

@dataclasses.dataclass(frozen=True)
class Config:
    marin_together: ClassVar[bool] = True
    output_path: str = this_output_path()

    def check_before_run(self, *, on_this_machine):
        if os.environ.get("FAILS") == "check":
            raise ConfigError("the first is refused")

@dataclasses.dataclass(frozen=True)
class Alone:
    output_path: str = this_output_path()

def work(config):
    if isinstance(config, Config):
        from marin.parallel import distributed
        distributed.start()

executor_main(steps=[ExecutorStep("trained", work, Config()), ExecutorStep("other", work, Alone())])
"""


def start(
    folder: Path, repository: Path, environment: dict[str, str], *flags: str, **variables: str
) -> list[tuple[int, str]]:
    """Exit status and all output of the two processes, the first of them first."""
    (folder / "experiment.py").write_text(EXPERIMENT)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = environment | {"PYTHONPATH": os.pathsep.join([str(repository), str(folder)])} | variables
    shared |= {"MARIN_COORDINATOR": f"127.0.0.1:{port}", "MARIN_NUM_PROCESSES": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "marin.run.together", "experiment", "--prefix", "store", *flags],
            cwd=folder,
            env=shared | {"MARIN_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in (1, 0)
    ]
    try:
        said = [process.communicate(timeout=90) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, text) for process, (text, _) in zip(started, said, strict=True)][::-1]


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["import", "check"])
def test_a_helper_ends_where_process_0_is_refused_before_any_step(fails, tmp_path, repository, plain_environment):
    first, second = start(tmp_path, repository, plain_environment, FAILS=fails)
    assert first[0] != 0 and "the first" in first[1]
    assert second[0] == 2 and second[1].count("error: ") == 1
    assert "error: process 0 has ended, and step `trained`" in second[1]


@pytest.mark.slow
def test_check_on_several_processes_is_refused_at_once_for_a_step_that_they_train_and_else_left_to_the_first(
    tmp_path, repository, plain_environment
):
    done = start(tmp_path, repository, plain_environment)
    assert [status for status, _ in done] == [0, 0], done
    # Less time than they would wait for each other, if they did.
    for status, said in start(tmp_path, repository, plain_environment, "--check", MARIN_START_TIMEOUT="300"):
        assert status == 2 and said.count("error: ") == 1 and "step `trained` is one that several train" in said
    first, second = start(tmp_path, repository, plain_environment, "--check", "--run_only", "other")
    assert (first[0], second[0]) == (0, 0), (first, second)
    assert "same other: a second run made the same bytes" in first[1] and "other" not in second[1]
