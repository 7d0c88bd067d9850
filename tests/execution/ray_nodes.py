"""A Ray cluster of a head and several nodes on this machine, in a process of its own that takes orders. No step runs on the head.

    python tests/execution/ray_nodes.py NODES CPUS [dashboard]

prints the addresses of the cluster and of its dashboard; then each line "kill I" on the standard input ends node I as a power cut
would, with everything on it, and "add" puts a new one in; both are answered by the number of nodes. The end of the input ends
the cluster.
"""

import contextlib
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ORDERS = Path(__file__)


class RayNodes:
    """The process, as a test uses it."""

    def __init__(self, num_nodes: int, cpus: int, environment: dict[str, str], *, dashboard: bool = False):
        command = [sys.executable, str(ORDERS), str(num_nodes), str(cpus), *(["dashboard"] if dashboard else [])]
        for is_last in (False, True):
            self._start(command, environment)
            try:
                self.address, self.jobs_address = self._answer().split()
            except AssertionError:
                self.close()
                if is_last:  # on a busy machine Ray gives up its own head now and then, which is no test's matter
                    raise
            else:
                return

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        self._said = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - the process writes to it as long as it lives
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,
        )

    def kill(self, node: int) -> int:
        """Ends a node, and says how many are left."""
        return int(self._say(f"kill {node}"))

    def add(self) -> int:
        return int(self._say("add"))

    def busiest(self) -> int:
        """The node whose workers run a step, by its number; 0 where none does."""
        return int(self._say("busiest"))

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._said.close()

    def _say(self, order: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        self._said.seek(0)
        raise AssertionError(f"the cluster's process ended: {self._said.read()[-2000:]}")


def main(num_nodes: int, cpus: int, dashboard: bool) -> None:
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 << 20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args=memory | {"num_cpus": 0, "include_dashboard": dashboard, "dashboard_agent_listen_port": 0},
    )
    numbers = itertools.count()

    def add() -> Any:
        # A node unpacks what a job brings over what is there; nodes of several machines do that each in a folder of its own.
        return cluster.add_node(num_cpus=cpus, runtime_env_dir_name=f"runtime_resources_{next(numbers)}", **memory)

    others = [add() for _ in range(num_nodes)]
    cluster.wait_for_nodes()
    print(f"> {cluster.address} http://{cluster.webui_url}", flush=True)
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "busiest":
            print(f"> {_busiest(others)}", flush=True)
            continue
        if order == "kill":
            cluster.remove_node(others.pop(int(rest[0])), allow_graceful=False)
        else:
            others.append(add())
        print(f"> {len(others)}", flush=True)
    cluster.shutdown()


def _busiest(nodes: "list[Any]") -> int:
    """The node below whose raylet a child runs a step."""
    import psutil

    for number, node in enumerate(nodes):
        (raylet,) = node.all_processes["raylet"]
        for process in psutil.Process(raylet.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("marin.execution.processes" in part for part in process.cmdline()):
                    return number
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["dashboard"])
