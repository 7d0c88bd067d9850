"""A step that needs several hosts at once waits for them; Ray is a stand-in that has them, or does not."""

import dataclasses
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from marin.execution import ray_cluster
from marin.execution.provenance import RunContext
from marin.execution.ray_tasks import RayTasks
from marin.execution.task import StepTask
from marin.resources import CpuOnlyConfig


class RayError(Exception):
    pass


class OutOfMemoryError(RayError):
    pass


OTHER_ERRORS = (
    *("GetTimeoutError", "TaskCancelledError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError"),
    *("OwnerDiedError", "ObjectLostError"),
)


class Busy:
    """A placement group whose hosts are taken: for ever, or until it was asked some times."""

    def __init__(self, times: int | None = None):
        self.asked, self._times = 0, times

    def wait(self, timeout_seconds: float) -> bool:
        self.asked += 1
        time.sleep(0.005)  # in place of `timeout_seconds`
        return self._times is not None and self.asked > self._times


def a_ray(group: Busy) -> Any:
    node = {"Alive": True, "NodeManagerAddress": "here", "Resources": {"CPU": 8.0}}
    placed = RayError("the hosts are there")  # which is as far as this one goes

    def remote(**_: object) -> None:
        raise placed

    return SimpleNamespace(
        nodes=lambda: [node, node],
        exceptions=SimpleNamespace(RayError=RayError, GetTimeoutError=RayError),
        remote=remote,
        util=SimpleNamespace(placement_group=lambda *_, **__: group, remove_placement_group=lambda _: None),
        cancel=lambda *_, **__: None,
    )


@dataclasses.dataclass(frozen=True)
class Together:
    marin_together = True


TASK = StepTask(
    name="steps/gang",
    fn=lambda config: None,
    config=Together(),
    output_path="out",
    prefix="store",
    fingerprint="0",
    parts={},
    dependencies=(),
    description=None,
    override_output_path=None,
    is_resumable=True,
    resources=CpuOnlyConfig(1, num_hosts=2),
)


@pytest.fixture
def tasks_on(monkeypatch):
    def make(group: Busy) -> RayTasks:
        monkeypatch.setattr(ray_cluster, "connect", lambda: a_ray(group))
        monkeypatch.setattr(ray_cluster, "check_prefix_is_shared", lambda ray, prefix: None)
        monkeypatch.setattr("marin.execution.ray_tasks._place", lambda group, index: index)
        return RayTasks(RunContext.__new__(RunContext), force_run_failed=False, prefix="store")

    return make


def test_a_gang_whose_hosts_are_taken_waits_until_the_run_is_stopped(tasks_on, capsys) -> None:
    group = Busy()
    tasks = tasks_on(group)
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(tasks.run(TASK)), daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while group.asked < 5:
        assert thread.is_alive() and time.monotonic() < deadline  # it neither failed nor gave up
        time.sleep(0.005)
    tasks.stop()
    thread.join(30)
    assert [result.kind for result in ended] == ["not run"]
    assert capsys.readouterr().out == "steps/gang: waits for 2 hosts that are free at once\n"


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_a_step_that_takes_all_memory_is_told_so_and_given_up_soon(
    tasks_on, capsys, monkeypatch, num_hosts: int
) -> None:
    tasks, ended = tasks_on(Busy(times=0)), []

    def get(reference: object, timeout: float | None = None) -> object:
        if reference == "address":
            return "here:1"
        raise OutOfMemoryError

    errors = {name: type(name, (RayError,), {}) for name in OTHER_ERRORS}
    tasks._ray.exceptions = SimpleNamespace(RayError=RayError, OutOfMemoryError=OutOfMemoryError, **errors)
    tasks._ray.get = get
    tasks._ray.wait = lambda pending, num_returns, timeout=None: (pending[:1], pending[1:])
    tasks._ray.cancel = lambda reference, force: ended.append(reference)
    tasks._ray.remote = lambda *_, **__: (
        lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: "address"))
    )
    monkeypatch.setattr(tasks, "_start", lambda *_: object())
    monkeypatch.setattr("marin.execution.ray_tasks.pickled", lambda *_: b"")
    result = tasks.run(dataclasses.replace(TASK, resources=CpuOnlyConfig(1, num_hosts=num_hosts)))
    assert result.kind == "failed"
    assert "its node ran out of memory 3 times" in result.reason
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and all("ran out of memory" in line and "lost" not in line for line in said)
    assert len(ended) == 3 * (num_hosts - 1)  # the rest of the gang does not go on alone


def test_a_node_that_has_just_come_is_not_taken_for_one_without_processors(tasks_on) -> None:
    tasks, asked = tasks_on(Busy(times=0)), []
    node, _ = tasks._ray.nodes()

    def nodes() -> list[dict[str, Any]]:
        asked.append(None)
        return [node if len(asked) > 2 else node | {"Resources": {}}] * 2

    tasks._ray.nodes = nodes
    # As far as this stand-in goes: hosts that are there, and lost at once.
    assert "node was lost" in tasks.run(TASK).reason


def test_a_gang_starts_once_its_hosts_are_free(tasks_on) -> None:
    group = Busy(times=3)
    tasks_on(group)._run_gang(TASK, ray_cluster.Request(({"CPU": 1.0},) * 2))
    assert group.asked == 4
