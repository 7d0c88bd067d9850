"""The hello run as a job on a Ray cluster of three nodes, of which one is killed while it tokenizes and one while it trains.

It ends with the bytes, the parameters and the figure of a run on this machine alone. About a quarter of an hour.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.execution.ray_nodes import RayNodes
from tests.torture.test_kill_hello import HELLO, Hello

pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")


class HelloOnRay(Hello):
    """The same, submitted to a cluster."""

    def start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "marin/run/ray_run.py", "--", sys.executable, "-m", HELLO]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*command, "--force_run_failed", "true", "--prefix", str(self.store)],
                cwd=self._repository,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_tokenizing(self) -> bool:
        return any(path.read_text().strip() == "RUNNING" for path in self.store.glob("tokenized/*/.executor_status"))

    def has_trained(self, steps: int) -> bool:
        logs = list(self.store.glob("checkpoints/speedrun/*/metrics.jsonl"))
        return bool(logs) and logs[0].read_bytes().count(b'"event":"step"') >= steps

    def tokens(self) -> dict[str, str]:
        """The digest of the output of each step that makes data, by its path."""
        found = {}
        for path in self.store.glob("*/*/.executor_info"):
            if path.parent.parent.name in ("corpora", "tokenized", "tokenizers"):
                found[f"{path.parent.parent.name}/{path.parent.name}"] = json.loads(path.read_text())["output_digest"]
        return found


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_hello_on_three_nodes_that_are_killed_ends_as_a_run_on_one_machine(
    repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    environment = plain_environment | {"PYTHONPATH": str(repository)}
    for name in ("alone", "cluster"):
        (tmp_path / name).mkdir()
    alone = Hello(repository, environment, tmp_path / "alone")
    alone.run_to_the_end()
    nodes = RayNodes(3, 2, environment, dashboard=True)
    try:
        hello = HelloOnRay(repository, environment | {"RAY_ADDRESS": nodes.jobs_address}, tmp_path / "cluster")
        process = hello.start()
        for is_there in (hello.is_tokenizing, lambda: hello.has_trained(100)):
            _wait_for(is_there, process, hello)
            print(f"killing the node that works: {hello.where()}")
            _kill_the_busy_node(nodes)
        assert process.wait(timeout=1800) == 0, hello.log.read_text()[-4000:]
    finally:
        nodes.close()
    log = hello.log.read_text()
    print(f"{log.count('its node was lost')} steps lost their node")
    assert log.count("its node was lost") >= 2
    assert hello.tokens() == HelloOnRay(repository, environment, tmp_path / "alone").tokens() != {}
    assert hello.parameters() == alone.parameters()
    assert hello.results()["evaluation"] == alone.results()["evaluation"]
    assert hello.results()["sample"] == alone.results()["sample"]


def _wait_for(is_there: Callable[[], bool], process: "subprocess.Popen[bytes]", hello: Hello) -> None:
    deadline = time.monotonic() + 1200
    while not is_there():
        assert process.poll() is None and time.monotonic() < deadline, hello.log.read_text()[-4000:]
        time.sleep(0.05)


def _kill_the_busy_node(nodes: RayNodes) -> None:
    """Ends the node that runs the step; a new one takes its place."""
    nodes.kill(nodes.busiest())
    nodes.add()
