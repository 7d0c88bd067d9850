"""Steps as tasks of a Ray cluster: `executor_main --runner ray`.

The driver decides, as it does for processes of one machine; each step is a Ray task that starts a child process on some node,
and the child takes the lease itself. A task whose node or worker is lost runs again elsewhere: what it had not committed is
not there, and a resumable step goes on from what it had written. A step that several hosts run together (training) is a gang:
all hosts or none, and if one is lost all start again, from the last checkpoint.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from marin.execution import logs, ray_cluster
from marin.execution.following import runs_together
from marin.execution.processes import ChildEnd, StepChild, StepContent, pickled, result_of
from marin.execution.provenance import RunContext
from marin.execution.ray_cluster import Request
from marin.execution.runner import Result
from marin.execution.task import StepTask

# How often a step is started again after its node or its worker was lost.
RESTARTS = 20
# And after Ray ended it because its node ran out of memory, which another step of the node may have used up, or the step itself.
RESTARTS_WITHOUT_MEMORY = 2
_SHORT_OF_MEMORY = (
    "its node ran out of memory {} times: give it a larger node, or ask for more processors in `resources`, so that fewer steps"
    " share one"
)
# Steps that wait for a place in the cluster, or run; each costs the driver a thread.
MOST_AT_ONCE = 256
_POLL = 0.2
# A gang that waits for its hosts looks so often whether all is being stopped; Ray takes whole seconds.
_SECONDS_TO_LOOK = 2
_SECONDS_TO_LEARN_OF_A_LOSS = 45.0
# A node that goes down kills its processes in any order: where the step's goes first, its task goes within this time.
_SECONDS_TO_GO_DOWN = 10.0


class _OutOfMemoryError(Exception):
    """A step's node ran out of memory."""


class RayTasks:
    """Runs tasks on a cluster; `stop` ends them all. Methods may be called from several threads.

    Raises:
        ConfigError: there is no Ray, or no cluster.
        StorageError: not all nodes see the prefix.
    """

    def __init__(self, context: RunContext, *, force_run_failed: bool, prefix: str):
        self._ray = ray_cluster.connect()
        ray_cluster.check_prefix_is_shared(self._ray, prefix)
        self._context, self._force_run_failed = context, force_run_failed
        self._search_path = [os.path.abspath(path) for path in sys.path]
        self._variables = ray_cluster.passed_on()
        self._running: set[Any] = set()
        self._guard = threading.Lock()
        self._stopped = False

    def run(self, task: StepTask) -> Result:
        """Runs one task and waits for it.

        Raises:
            ConfigError: the task cannot be sent to another process.
            HardwareError: no node has what the step asks for.
            MarinError: what the child refused to do.
        """
        grows = "RAY_CLUSTER_GROWS" in os.environ
        nodes = ray_cluster.alive_nodes(self._ray) if grows else ray_cluster.known_nodes(self._ray)
        request = ray_cluster.request_for(task.resources, nodes, grows=grows)
        ray_cluster.check_fits(task.name, request, nodes, grows=grows)
        together = request.num_hosts > 1 and runs_together(task.config)
        shortages = 0
        for _ in range(RESTARTS + 1):
            what = "its node was lost"
            try:
                end = self._run_gang(task, request) if together else self._run_alone(task, request)
            except _OutOfMemoryError:
                end, shortages, what = None, shortages + 1, "its node ran out of memory, so that Ray ended it"
            if end is not None:
                return result_of(task, end, is_stopped=self._stopped)
            if self._stopped:
                return Result("not run", "interrupted; run the same command again to continue")
            if shortages > RESTARTS_WITHOUT_MEMORY:
                return Result("failed", _SHORT_OF_MEMORY.format(shortages))
            logs.announce(f"{task.name}: {what}; it starts again on what is left of the cluster")
        return Result("failed", f"its node was lost {RESTARTS + 1} times; run the same command again to go on")

    def stop(self) -> None:
        """Asks every step to stop, as Ctrl-C would; `run` then returns for each."""
        with self._guard:
            self._stopped = True
            for reference in self._running:
                self._ray.cancel(reference, force=False)

    def _run_alone(self, task: StepTask, request: Request) -> ChildEnd | None:
        content = pickled(task, StepContent(task, self._context, self._force_run_failed))
        reference = self._start(task, content, {}, _task_options(request.bundles[0]))
        if reference is None:
            return ChildEnd(130, None)
        return self._end_of(reference)

    def _run_gang(self, task: StepTask, request: Request) -> ChildEnd | None:
        """One try to run the step on all its hosts; None if one of them was lost."""
        ray = self._ray
        strategy = (
            "STRICT_SPREAD" if any("GPU" in bundle or "TPU" in bundle for bundle in request.bundles) else "SPREAD"
        )
        group = ray.util.placement_group(list(request.bundles), strategy=strategy)
        try:
            if not self._wait_for_place(task, group, request):
                return ChildEnd(130, None)
            places = [_place(group, index) for index in range(request.num_hosts)]
            address = ray.remote(num_cpus=0, max_retries=0)(ray_cluster.coordinator_address)
            coordinator = ray.get(address.options(scheduling_strategy=places[0]).remote())
            members = []
            for index, (bundle, place) in enumerate(zip(request.bundles, places, strict=True)):
                content = pickled(task, StepContent(task, self._context, self._force_run_failed, follower=index))
                variables = {
                    "MARIN_COORDINATOR": coordinator,
                    "MARIN_NUM_PROCESSES": str(request.num_hosts),
                    "MARIN_PROCESS_ID": str(index),
                }
                member = self._start(task, content, variables, _task_options(bundle) | {"scheduling_strategy": place})
                if member is not None:
                    members.append(member)
            return self._end_of_gang(members)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
            return None
        finally:
            ray.util.remove_placement_group(group)

    def _wait_for_place(self, task: StepTask, group: Any, request: Request) -> bool:
        """Waits until all hosts are free at once, however long others need them; False if all is stopped before."""
        announced = False
        while not self._stopped:
            if group.wait(_SECONDS_TO_LOOK):
                return True
            if not announced:
                announced = True
                logs.announce(f"{task.name}: waits for {request.num_hosts} hosts that are free at once")
        return False

    def _end_of_gang(self, members: Sequence[Any]) -> ChildEnd | None:
        """How process 0 ended; None if a host was lost, after ending what is left of the gang.

        A process that loses another ends with an error of its own, often before Ray has noticed the loss: a bad end counts
        only if all hosts are still there after a while.
        """
        ray = self._ray
        pending, first = list(members), None
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            try:
                end = self._end_of(done[0])
            except _OutOfMemoryError:
                self._force_end(pending)
                raise
            except ray.exceptions.RayError:
                end = None
            if end is None:
                self._force_end(pending)
                return None
            if done[0] == members[0]:
                first = end
            if end.status not in (0, 130, 143) and pending:
                _, pending = ray.wait(pending, num_returns=len(pending), timeout=_SECONDS_TO_LEARN_OF_A_LOSS)
                if pending:  # they wait for the one that failed, and will not end by themselves
                    self._force_end(pending)
                lost = [member for member in members if member != done[0] and self._was_lost(member)]
                return None if lost else (first or end)
        return first

    def _was_lost(self, member: Any) -> bool:
        ray = self._ray
        try:
            ray.get(member, timeout=1)
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.LocalRayletDiedError):
            return True
        except ray.exceptions.RayError:
            return False
        return False

    def _force_end(self, members: Sequence[Any]) -> None:
        for member in members:
            self._ray.cancel(member, force=True)

    def _start(
        self, task: StepTask, content: bytes, variables: Mapping[str, str], options: Mapping[str, Any]
    ) -> Any | None:
        """The reference to a child's end; None if all is being stopped."""
        remote = self._ray.remote(run_child).options(name=task.name, max_retries=0, **options)
        with self._guard:
            if self._stopped:
                return None
            reference = remote.remote(content, self._search_path, {**self._variables, **variables})
            self._running.add(reference)
            return reference

    def _end_of(self, reference: Any) -> ChildEnd | None:
        """How a child ended; None if its node or its worker was lost.

        Raises:
            _OutOfMemoryError: Ray ended it, to keep its node alive.
        """
        exceptions = self._ray.exceptions
        try:
            return ChildEnd(*self._ray.get(reference))
        except exceptions.TaskCancelledError:
            return ChildEnd(130, None)
        except exceptions.OutOfMemoryError as error:
            raise _OutOfMemoryError from error
        except (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
            exceptions.OwnerDiedError,
            exceptions.ObjectLostError,
        ):
            return None
        finally:
            with self._guard:
                self._running.discard(reference)


def run_child(content: bytes, search_path: Sequence[str], variables: Mapping[str, str]) -> tuple[int, Any]:
    """What a Ray task does: runs the step in a child, and asks it to stop when the task is cancelled."""
    here = [path for path in search_path if os.path.exists(path)]
    context = ray_cluster.import_ray().get_runtime_context()
    # The step's own shards may use the cluster too (see `marin.data.ray_workers`), with what the job was given.
    variables = {**variables, "RAY_ADDRESS": context.gcs_address, "MARIN_SHARDS": "ray"}
    variables[ray_cluster.GIVEN_TO_JOB] = json.dumps(dict(context.runtime_env))
    child = StepChild(content, [*here, *(path for path in sys.path if path not in here)], variables)
    asked = 0
    while True:
        try:
            end = child.ended_within(_POLL)
            if end is not None:
                if end.status == -signal.SIGKILL and not asked:
                    time.sleep(_SECONDS_TO_GO_DOWN)
                return end.status, end.record
        except KeyboardInterrupt:  # Ray's way to cancel
            asked += 1
            child.ask_to_stop(signal.SIGINT if asked == 1 else signal.SIGKILL)
            time.sleep(_POLL)


def _task_options(bundle: Mapping[str, float]) -> dict[str, Any]:
    rest = {key: amount for key, amount in bundle.items() if key not in ("CPU", "GPU")}
    options: dict[str, Any] = {"num_cpus": bundle.get("CPU", 0.0)}
    if bundle.get("GPU"):
        options["num_gpus"] = bundle["GPU"]
    return options | ({"resources": rest} if rest else {})


def _place(group: Any, index: int) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
