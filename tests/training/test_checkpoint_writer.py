"""Saving beside training: what is written is the state at the call, one save at a time, and a failure reaches the loop."""

import errno
import functools
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.errors import CheckpointError
from marin.storage import files
from marin.tracking import RunRecord, RunWriter
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint import Checkpoint
from marin.training.checkpoint_writer import CheckpointWriter


def _state(value: float, size: int = 8) -> dict[str, jax.Array]:
    return {"weight": jnp.full((size, size), value), "step": jnp.asarray(int(value))}


def _value(directory: Path, step: int, size: int = 8) -> float:
    checkpoint = Checkpoint.of_step(directory, step)
    checkpoints.verify(checkpoint)
    (value,) = np.unique(checkpoints.restore(checkpoint, _state(0.0, size))["weight"])
    return float(value)


def _steps(directory: Path) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints.list_checkpoints(directory)]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Saves in the background wait for it before they flush."""
    opened, real = threading.Event(), files.sync_tree

    def sync_tree(path: str) -> None:
        assert opened.wait(60)
        real(path)

    monkeypatch.setattr(files, "sync_tree", sync_tree)
    yield opened
    opened.set()


def test_saved_state_is_that_of_the_call_while_steps_overwrite_its_buffers(tmp_path: Path) -> None:
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return jax.tree.map(lambda leaf: leaf + 1, state)

    state = step(_state(0.0, 1024))
    with CheckpointWriter(tmp_path, keep_every=100) as writer:
        for number in (1, 2):
            writer.save(state, number)
            for _ in range(20):
                state = step(state)
    assert (_value(tmp_path, 1, 1024), _value(tmp_path, 2, 1024)) == (1.0, 21.0)


def test_save_returns_before_the_checkpoint_is_there_and_the_next_save_waits_for_it(
    tmp_path: Path, gate: threading.Event
) -> None:
    with CheckpointWriter(tmp_path, keep_every=100) as writer:
        writer.save(_state(1.0), 1)
        writer.check()
        assert _steps(tmp_path) == []
        threading.Timer(0.2, gate.set).start()
        writer.save(_state(2.0), 2)
        assert 1 in _steps(tmp_path)
    assert _steps(tmp_path) == [1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's tasks outlive its event loop
@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("disk full at the flush", r"\(No space left on device\): free some space there,"),
        ("file too large while arrays are written", r"\(File too large\): mend the cause,"),
    ],
)
def test_failed_save_is_raised_at_the_next_step_and_leaves_the_checkpoints_before_it(
    tmp_path: Path, cause: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = CheckpointWriter(tmp_path, keep_every=100)
    writer.save(_state(1.0), 1)
    writer.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if cause == "disk full at the flush":
        monkeypatch.setattr(files, "sync_tree", full)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        writer.save(_state(2.0, 512), 2)
        assert writer._thread is not None
        writer._thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(CheckpointError, match=f"step 2 could not be written to .*{said}.* run the same command again"):
        writer.check()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert _value(tmp_path, 1) == 1.0
    assert not [record for record in caplog.records if record.exc_info]


def test_first_save_that_fails_does_not_promise_a_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(files, "sync_tree", refuse)
    writer = CheckpointWriter(tmp_path, keep_every=100)
    writer.save(_state(1.0), 1)
    with pytest.raises(CheckpointError, match=r"\(Permission denied\): mend the cause, .* again; it begins anew$"):
        writer.wait()


def test_what_a_killed_writer_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / ".saving-00000004-0123abcd" / "state").mkdir(parents=True)
    (tmp_path / ".saving-00000004-0123abcd" / "state" / "part").write_bytes(b"half")
    CheckpointWriter(tmp_path, keep_every=100)
    assert list(tmp_path.iterdir()) == []


def test_second_interrupt_does_not_wait_for_the_save_and_leaves_nothing_that_is_read(
    tmp_path: Path, gate: threading.Event
) -> None:
    writer = CheckpointWriter(tmp_path, keep_every=100)
    with pytest.raises(KeyboardInterrupt), writer:
        writer.save(_state(1.0), 1)
        raise KeyboardInterrupt
    assert _steps(tmp_path) == []
    assert checkpoints.latest_valid(tmp_path) == (None, [])
    gate.set()
    writer.wait()


def test_another_error_waits_for_the_save_that_is_under_way(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), CheckpointWriter(tmp_path, keep_every=100) as writer:
        writer.save(_state(1.0), 1)
        raise ZeroDivisionError
    assert _value(tmp_path, 1) == 1.0


def test_record_is_flushed_before_the_checkpoint_takes_its_place_and_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, real = [], RunWriter.sync

    def sync(self: RunWriter) -> None:
        seen.append(_steps(tmp_path / "checkpoints"))
        real(self)

    record = RunWriter(tmp_path)
    record.write_info({})
    with monkeypatch.context() as patch, CheckpointWriter(tmp_path / "checkpoints", keep_every=100, record=record) as w:
        patch.setattr(RunWriter, "sync", sync)
        for step in (1, 2):
            w.save(_state(float(step)), step)
            w.wait()
    record.close()
    assert seen == [[], [1]]
    events = RunRecord.open(tmp_path).of("checkpoint")
    assert [event["step"] for event in events] == [1, 2]
    written = sum(path.stat().st_size for path in (tmp_path / "checkpoints/step-00000002").rglob("*") if path.is_file())
    assert events[1]["bytes"] == written
    assert events[1]["seconds"] > 0


# --- which checkpoints stay ----------------------------------------------------------------------------------------


def _flip(checkpoint: Checkpoint) -> None:
    file = max((path for path in checkpoint.path.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_newest_two_checkpoints_and_multiples_of_the_export_interval_stay(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, keep_every=4) as writer:
        for step in range(1, 8):
            writer.save(_state(float(step)), step)
    assert _steps(tmp_path) == [4, 6, 7]


def test_damaged_newer_checkpoints_never_push_out_the_last_whole_one(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, keep_every=100) as writer:
        writer.save(_state(2.0), 2)
        writer.save(_state(5.0), 5)
    _flip(Checkpoint.of_step(tmp_path, 5))
    found, problems = checkpoints.latest_valid(tmp_path)
    assert found is not None
    assert (found.step, len(problems)) == (2, 1)
    with CheckpointWriter(tmp_path, keep_every=100, restored=found) as writer:
        assert _steps(tmp_path) == [2, 5]
        writer.save(_state(3.0), 3)
        writer.wait()
        assert _steps(tmp_path) == [2, 3]  # by count alone 3 and the damaged 5 would stay, and 2 go
    assert checkpoints.latest_valid(tmp_path) == (Checkpoint.of_step(tmp_path, 3), [])


def test_checkpoint_saved_where_a_damaged_one_lies_takes_its_place(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path, keep_every=100) as writer:
        writer.save(_state(1.0), 1)
        writer.wait()
        _flip(Checkpoint.of_step(tmp_path, 1))
        writer.save(_state(1.0), 1)
    assert _value(tmp_path, 1) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


FAILING_SAVES = """
import resource, sys
from pathlib import Path
import jax.numpy as jnp
from marin.errors import CheckpointError
from marin.training.checkpoint_writer import CheckpointWriter
writer = CheckpointWriter(Path(sys.argv[1]), keep_every=100)
state = {f"p{index}": jnp.ones((64, 512)) for index in range(40)}
writer.save(state, 1)
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))
for step in (2, 3, 4):
    try:
        writer.save(state, step)
        writer.wait()
    except CheckpointError as error:
        print(error)

def async_serialize_from_host():
    async def write_fragment(): pass
    return write_fragment()
async_serialize_from_host()  # as where the loop ended before a write began, which happens where the machine is busy
"""


def test_save_of_many_arrays_that_fails_says_one_thing(tmp_path, repository, plain_environment):
    done = subprocess.run(
        [sys.executable, "-c", FAILING_SAVES, str(tmp_path)],
        env=plain_environment | {"PYTHONPATH": str(repository), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stderr == ""
    assert [line[:24] for line in done.stdout.splitlines() if line.startswith("the checkpoint of step")] == [
        f"the checkpoint of step {step}" for step in (2, 3, 4)
    ]
