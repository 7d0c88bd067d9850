"""What a shard gets from the step that sends it to a cluster, and how its failures are told apart; no cluster is started."""

import os
import pickle
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from marin.data import ray_workers
from marin.data.documents import Document
from marin.data.scratch import Scratch
from marin.data.shards import write_shards
from marin.errors import DataError
from marin.execution import ray_cluster

ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")


def test_a_shard_has_the_variables_of_its_step_before_its_function_is_loaded(monkeypatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "64")
    monkeypatch.setenv("SR_LABEL", "")
    program = cloudpickle.dumps(lambda item: (item, os.environ["RAYON_NUM_THREADS"], os.environ["SR_LABEL"]))
    variables = {"RAYON_NUM_THREADS": "1", "SR_LABEL": "given"}
    succeeded, answer = ray_workers._call([], program, cloudpickle.dumps(5), variables)
    assert succeeded and pickle.loads(answer) == (5, "1", "given")


def test_what_belongs_to_one_process_is_not_passed_on(monkeypatch) -> None:
    given = {"HF_HOME": "/models", "SR_LABEL": "a", "MARIN_PREFIX": "store"}
    own = {"MARIN_PARENT_PID": "1", "MARIN_SHARDS": "ray", "MARIN_PROCESS_ID": "1", ray_cluster.GIVEN_TO_JOB: "{}"}
    for name, value in (given | own | {"SOME_SECRET": "x"}).items():
        monkeypatch.setenv(name, value)
    passed = ray_cluster.passed_on()
    assert given.items() <= passed.items()
    assert not passed.keys() & {*own, "SOME_SECRET"}


def test_a_step_joins_the_cluster_with_what_its_job_was_given(monkeypatch) -> None:
    joined: list[dict[str, Any]] = []
    stand_in = SimpleNamespace(is_initialized=lambda: False, init=lambda **options: joined.append(options))
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: stand_in)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv(ray_cluster.GIVEN_TO_JOB, '{"working_dir": "gcs://a.zip", "env_vars": {"A": "1"}}')
    ray_cluster.connect()
    monkeypatch.setenv(ray_cluster.GIVEN_TO_JOB, "{}")
    ray_cluster.connect()
    assert [each["runtime_env"] for each in joined] == [
        {"working_dir": "gcs://a.zip", "env_vars": {"A": "1"}},
        None,
    ]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ray.exceptions.RayTaskError(
                "_call", "Traceback:\nModuleNotFoundError: No module named 'marin'", ImportError()
            ),
            r"cannot run a task of this step \(ModuleNotFoundError: No module named 'marin'\): it lacks the repository",
        ),
        (ray.exceptions.RuntimeEnvSetupError("no such package"), r"cannot run a task of this step \(.*no such package"),
        (
            ray.exceptions.WorkerCrashedError(),
            r"was lost 21 times \(WorkerCrashedError\): if its node ran out of memory",
        ),
    ],
)
def test_a_node_that_cannot_run_a_shard_is_told_from_one_that_was_lost(error, message) -> None:
    def get(reference: object) -> None:
        raise error

    with pytest.raises(DataError, match=message):
        ray_workers._result(SimpleNamespace(get=get, exceptions=ray.exceptions), None)


def test_arrays_that_lie_on_this_machine_alone_are_made_and_read_here(monkeypatch, tmp_path) -> None:
    def leaves(*given: Any) -> None:
        raise AssertionError("shards went to other nodes, which write to disks of their own")

    made = [Document(str(number), "text", "test") for number in range(3)]
    source = write_shards(str(tmp_path / "in"), made, stage="make", settings={}, shard_bytes=1)
    monkeypatch.setenv(ray_workers.VARIABLE, "ray")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setattr(ray_workers, "run_on_cluster", leaves)
    with Scratch("memory://arrays/out", "pass", source, "a") as scratch:
        scratch.compute(lambda shard, index: {"index": np.array([index])}, num_workers=2)
        assert [scratch.read(index, "index").tolist() for index in range(3)] == [[0], [1], [2]]
    with (
        Scratch(str(tmp_path / "out"), "pass", source, "a") as scratch,
        pytest.raises(AssertionError, match="other nodes"),
    ):
        scratch.compute(lambda shard, index: {"index": np.array([index])}, num_workers=2)
