"""One function over many items, by tasks on the nodes of a Ray cluster and by the process that asks.

A step that runs as a task of a cluster (`executor_main --runner ray`) has `MARIN_SHARDS=ray` in its environment, and its shards then
go to all nodes; the function, the items and the order of what comes back are those of `marin.data.workers`. The asking process works
too, so that a full cluster only makes it slower. A task whose node is lost runs again elsewhere: what the function writes must
survive being cut off at any instant, as it must anyway.
"""

import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from marin.errors import DataError
from marin.execution import ray_cluster

T = TypeVar("T")
R = TypeVar("R")

VARIABLE = "MARIN_SHARDS"
_RETRIES = 20
_num_kept_here = 0


def is_on_cluster() -> bool:
    """Whether this process runs a step of a cluster, whose nodes are to share its work."""
    return not _num_kept_here and os.environ.get(VARIABLE) == "ray" and bool(os.environ.get("RAY_ADDRESS"))


def keep_here(change: int) -> None:
    """From +1 to its -1 all work stays on this machine: what it reads or writes lies on no other."""
    global _num_kept_here
    _num_kept_here += change


def run_on_cluster(function: Callable[[T], R], items: Sequence[T], num_workers: int = 0) -> Iterator[tuple[int, R]]:
    """`(index, function(items[index]))` for every item, in the order in which they finish.

    Args:
        num_workers: at most so many tasks at once; 0 is one a processor that is free in the cluster.
    Raises:
        DataError: a task was lost again and again, or a node cannot run it.
        Exception: what the function raised first.
    """
    import cloudpickle

    ray = ray_cluster.connect()
    program, search_path = ray.put(cloudpickle.dumps(function)), [os.path.abspath(path) for path in sys.path]
    # The Rust libraries would else start a thread for each processor in each task.
    variables = ray_cluster.passed_on() | {"RAYON_NUM_THREADS": "1"}
    todo: deque[tuple[int, T]] = deque(enumerate(items))
    running: dict[Any, int] = {}
    places = _Places(ray, num_workers)
    remote = ray.remote(num_cpus=0, max_retries=_RETRIES)(_call)
    try:
        while todo or running:
            for place in places.free(len(running)):
                if len(todo) <= 1:  # one is left for this process
                    break
                index, item = todo.popleft()
                task = remote.options(scheduling_strategy=place)
                running[task.remote(search_path, program, cloudpickle.dumps(item), variables)] = index
            if todo:
                index, item = todo.popleft()
                yield index, function(item)
            elif running:
                ray.wait(list(running), num_returns=1)
            done, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if running else ([], [])
            for reference in done:
                yield running.pop(reference), _result(ray, reference)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


class _Places:
    """Where tasks may go: the free processors of the nodes, in turn."""

    def __init__(self, ray: Any, limit: int):
        self._ray, self._limit = ray, limit
        self._next = 0

    def free(self, num_running: int) -> Iterator[Any]:
        """A place for each task that may start now."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node["NodeID"] for node in ray_cluster.alive_nodes(self._ray) if node["Resources"].get("CPU")]
        free = int(self._ray.available_resources().get("CPU", 0))
        most = min(free, self._limit - 1) if self._limit else free  # this process is one of the workers
        for _ in range(max(0, most - num_running) if nodes else 0):
            self._next += 1
            # The task asks for no processor by itself: it could wait for ever for one that a waiting step holds.
            yield NodeAffinitySchedulingStrategy(nodes[self._next % len(nodes)], soft=True)


def _call(search_path: Sequence[str], program: bytes, item: bytes, variables: Mapping[str, str]) -> tuple[bool, bytes]:
    """What a task does: the pickled result, or what the function raised."""
    os.environ.update(variables)
    import cloudpickle

    from marin.data.workers import pickled_error

    sys.path += [path for path in search_path if path not in sys.path and os.path.exists(path)]
    try:
        return True, cloudpickle.dumps(cloudpickle.loads(program)(cloudpickle.loads(item)))
    except Exception as error:
        return False, pickled_error(error)


def _result(ray: Any, reference: Any) -> Any:
    try:
        succeeded, answer = ray.get(reference)
    # `_call` keeps the function's own errors; these come before it runs.
    except (ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError) as error:
        cause = str(error).strip().rpartition("\n")[2]
        raise DataError(
            f"a node of the cluster cannot run a task of this step ({cause}): it lacks the repository or a package; start the"
            " experiment with `python marin/run/ray_run.py`, which sends the repository, and `--pip_deps`"
        ) from None
    except ray.exceptions.RayError as error:
        raise DataError(
            f"a task of the cluster was lost {_RETRIES + 1} times ({type(error).__name__}): if its node ran out of memory, use"
            " fewer workers (`num_workers`); run the same command again to go on"
        ) from None
    value = pickle.loads(answer)
    if not succeeded:
        raise value
    return value
