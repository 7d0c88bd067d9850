"""What a checkpoint proves of itself, and reading it into other shardings and device counts."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from marin.errors import CheckpointError
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint
from marin.training.checkpoint_writer import CheckpointWriter

SPECS = {"both": P("data", "model"), "rows": P("data"), "whole": P(), "step": P()}


def _values() -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(0)
    return {
        "both": numbers.standard_normal((16, 8)).astype(np.float32),
        "rows": numbers.standard_normal((8,)).astype(np.float32),
        "whole": numbers.standard_normal((3, 5)).astype(np.float32),
        "step": np.asarray(7, np.int32),
    }


def _state(shape: tuple[int, int]) -> dict[str, jax.Array]:
    """Arrays split over a mesh of so many devices along `data` and `model`."""
    mesh = Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("data", "model"))
    return {name: jax.device_put(value, NamedSharding(mesh, SPECS[name])) for name, value in _values().items()}


def _zeros(shape: tuple[int, int]) -> dict[str, jax.Array]:
    return {name: jax.device_put(jnp.zeros_like(value), value.sharding) for name, value in _state(shape).items()}


@pytest.fixture(scope="module")
def split_over_8(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    directory = tmp_path_factory.mktemp("checkpoints")
    with CheckpointWriter(directory, keep_every=10) as writer:
        writer.save(_state((4, 2)), 7)
    return Checkpoint.of_step(directory, 7)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (8, 1)])
def test_checkpoint_of_arrays_split_over_8_devices_is_read_into_any_other_split(
    split_over_8: Checkpoint, shape: tuple[int, int]
) -> None:
    like = _zeros(shape)
    restored = checkpoints.restore(split_over_8, like)
    for name, value in _values().items():
        np.testing.assert_array_equal(restored[name], value)
        assert restored[name].sharding == like[name].sharding
        assert restored[name].dtype == value.dtype


def test_checkpoint_that_moves_to_other_devices_says_that_bits_may_differ(split_over_8: Checkpoint) -> None:
    assert checkpoints.moved(split_over_8, _state((4, 2))) is None
    note = checkpoints.moved(split_over_8, _state((2, 1)))
    assert note is not None
    assert "8 cpu devices (data 4, model 2, arrays split)" in note
    assert "2 cpu devices (data 2, arrays split)" in note
    assert "bits may differ" in note
    other_mesh = checkpoints.moved(split_over_8, _state((2, 4)))
    assert other_mesh is not None and "data 2, model 4" in other_mesh
    here = _state((4, 2))
    mesh = here["whole"].sharding.mesh
    here["rows"] = jax.device_put(here["rows"], NamedSharding(mesh, P("model")))
    other_split = checkpoints.moved(split_over_8, here)
    assert other_split is not None and "another split of the arrays" in other_split


def test_checkpoint_read_in_part_leaves_the_rest_of_its_arrays_on_the_disk(split_over_8: Checkpoint) -> None:
    zeros = _zeros((1, 1))
    restored = checkpoints.restore(split_over_8, {"rows": zeros["rows"]})
    np.testing.assert_array_equal(restored["rows"], _values()["rows"])
    with pytest.raises(CheckpointError, match="has no parameter `other`"):
        checkpoints.restore(split_over_8, {"other": zeros["rows"]})
    kept = checkpoints.restore(split_over_8, {"rows": zeros["rows"], "other": zeros["whole"] + 1}, partial=True)
    np.testing.assert_array_equal(kept["rows"], _values()["rows"])
    np.testing.assert_array_equal(kept["other"], np.ones((3, 5)))


def test_arrays_below_a_prefix_are_read_whole(split_over_8: Checkpoint) -> None:
    arrays = checkpoints.read_arrays(split_over_8, "ro")
    assert list(arrays) == ["ws"]
    np.testing.assert_array_equal(arrays["ws"], _values()["rows"])
    assert checkpoints.read_arrays(split_over_8, "model.") == {}


def _damage(checkpoint: Checkpoint, what: str) -> None:
    manifest, seal = checkpoint.path / "manifest.json", checkpoint.path / "manifest.sha256"
    match what:
        case "no manifest":
            manifest.unlink()
        case "no seal":
            seal.unlink()
        case "manifest edited":
            manifest.write_text(manifest.read_text().replace('"step": 7', '"step": 8'))
        case "file of the manifest left out":
            listed = json.loads(manifest.read_text())
            del listed["files"]["state/_METADATA"]
            manifest.write_text(json.dumps(listed))
        case "file missing":
            (checkpoint.path / "state" / "_METADATA").unlink()
        case "file added":
            (checkpoint.path / "state" / "d" / "more").write_bytes(b"1")
        case "file is a directory":
            (checkpoint.path / "state" / "_METADATA").unlink()
            (checkpoint.path / "state" / "_METADATA").mkdir()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no manifest", "manifest.json cannot be read"),
        ("no seal", "manifest.sha256 cannot be read"),
        ("manifest edited", "manifest.json was changed or damaged"),
        ("file of the manifest left out", "manifest.json was changed or damaged"),
        ("file missing", "_METADATA is missing"),
        ("file added", "more is not in manifest.json: it was added later"),
        ("file is a directory", "_METADATA is missing"),
    ],
)
def test_checkpoint_with_damage_is_refused_by_the_name_of_the_file(
    split_over_8: Checkpoint, tmp_path: Path, what: str, message: str
) -> None:
    copy = Checkpoint.of_step(tmp_path, 7)
    shutil.copytree(split_over_8.path, copy.path)
    checkpoints.verify(copy)
    _damage(copy, what)
    with pytest.raises(CheckpointError, match=message):
        checkpoints.verify(copy)


def test_run_whose_checkpoints_are_all_damaged_is_to_be_trained_or_copied_again(
    split_over_8: Checkpoint, tmp_path: Path
) -> None:
    """Whoever trains it may begin anew; whoever serves or scores it has nothing to remove."""
    copy = Checkpoint.of_step(tmp_path / "checkpoints", 7)
    shutil.copytree(split_over_8.path, copy.path)
    _damage(copy, "file missing")
    with pytest.raises(CheckpointError, match=r"_METADATA is missing.*\nremove .*checkpoints to start from the first"):
        checkpoints.latest_valid(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"_METADATA is missing.*\ncopy the run again from where it was trained"):
        checkpoints.find(str(tmp_path))


def test_checkpoint_under_the_name_of_another_step_is_refused(split_over_8: Checkpoint, tmp_path: Path) -> None:
    later = Checkpoint.of_step(tmp_path, 9)
    shutil.copytree(split_over_8.path, later.path)
    with pytest.raises(CheckpointError, match="holds step 7: the directory was renamed or copied"):
        checkpoints.verify(later)
    shutil.copytree(split_over_8.path, Checkpoint.of_step(tmp_path, 7).path)
    found, problems = checkpoints.latest_valid(tmp_path)
    assert found is not None
    assert (found.step, len(problems)) == (7, 1)


@pytest.mark.slow
def test_checkpoint_that_two_processes_write_their_parts_of_is_read_by_one(
    repository: Path, plain_environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("save_from_processes.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "checkpoints"), str(port), str(number), "2"],
            cwd=repository,
            env=plain_environment | {"PYTHONPATH": str(repository)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-4000:]
    finally:
        for process in processes:
            process.kill()
    found, problems = checkpoints.latest_valid(tmp_path / "checkpoints")
    assert found is not None
    assert (found.step, problems) == (3, [])
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-00000002", "step-00000003"]
    parts = {path.name for path in (found.path / "state").glob("ocdbt.process_*")}
    assert parts == {"ocdbt.process_0", "ocdbt.process_1"}
    like = {"rows": jnp.zeros((8, 4)), "step": jnp.asarray(0)}
    restored = checkpoints.restore(found, like)
    np.testing.assert_array_equal(restored["rows"], np.arange(32, dtype=np.float32).reshape(8, 4) * 3)
    assert int(restored["step"]) == 3
    note = checkpoints.moved(found, like)
    assert note is not None and "2 cpu devices (data 2, 2 processes, arrays split)" in note


def test_step_that_was_never_saved_is_told_from_a_damaged_one(tmp_path):
    for step in (4, 12):
        checkpoints.Checkpoint.of_step(tmp_path / "checkpoints", step).path.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 7; those that it has: 4, 12$"):
        checkpoints.at_step(tmp_path, 7)
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 7; those that it has: 4, 12$"):
        checkpoints.find(str(tmp_path / "checkpoints" / "step-00000007"))
    with pytest.raises(CheckpointError, match="cannot be used.*\n.*move"):
        checkpoints.at_step(tmp_path, 4)


def test_checkpoint_in_the_home_folder_of_nobody_is_refused_by_its_path() -> None:
    with pytest.raises(CheckpointError, match="~no_such_person/run holds no checkpoint"):
        checkpoints.find("~no_such_person/run")


def test_checkpoint_of_the_last_step_that_can_be_counted_is_found_after_all_others(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, keep_every=1) as writer:
        for step in (99_999_999, 2**31 - 1):
            writer.save(_state((1, 1)), step)
    assert [found.step for found in checkpoints.list_checkpoints(tmp_path)] == [99_999_999, 2**31 - 1]
    assert checkpoints.find(str(tmp_path / f"step-{2**31 - 1}")).step == 2**31 - 1
