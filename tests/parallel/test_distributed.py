"""How processes find each other by the environment, and that two of them train as one does."""

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from marin.cli.main import dispatch
from marin.data.rows import Batch
from marin.errors import ConfigError, HardwareError, MarinError
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, this_output_path
from marin.parallel import distributed
from marin.parallel.distributed import Agreement, Processes, place_batch, process_index, processes_of, start
from marin.parallel.mesh import make_mesh
from marin.run import together as run_together
from marin.tracking import RunRecord
from marin.training.checkpoint import list_checkpoints

SCRIPT = Path(__file__).with_name("two_processes.py")
TORCHRUN = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "16", "RANK": "3"}
BY_HAND = {"MARIN_COORDINATOR": "node1:12345", "MARIN_NUM_PROCESSES": "2", "MARIN_PROCESS_ID": "1"}
SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "77"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, None),  # some clusters set them for every job
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, None),
        (TORCHRUN, Processes("torchrun", "node1:29500", 16, 3)),
        (
            TORCHRUN | {"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "x"},
            Processes("torchrun", "node1:29501", 16, 3, (3,)),
        ),
        (
            SLURM | TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0", "TORCHELASTIC_RUN_ID": "x"},
            None,
        ),  # a torchrun for each task
        (TORCHRUN | {"MASTER_ADDR": "fd00::1"}, Processes("torchrun", "[fd00::1]:29500", 16, 3)),
        (BY_HAND, Processes("MARIN_COORDINATOR", "node1:12345", 2, 1)),
        (
            BY_HAND | {"MARIN_COORDINATOR": "[fd00::1]:12345"},
            Processes("MARIN_COORDINATOR", "[fd00::1]:12345", 2, 1),
        ),
        (BY_HAND | TORCHRUN, Processes("MARIN_COORDINATOR", "node1:12345", 2, 1)),
        (SLURM, Processes("SLURM")),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None),  # in a batch script, outside of srun
    ],
)
def test_the_environment_says_who_takes_part(environment, expected):
    assert processes_of(environment) == expected


def test_each_process_knows_its_number_without_asking_jax():
    assert [process_index(e) for e in ({}, TORCHRUN, BY_HAND, SLURM)] == [0, 3, 1, 2]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MARIN_COORDINATOR": "node1:1"}, "MARIN_COORDINATOR is set without MARIN_NUM_PROCESSES, MARIN_PROCESS_ID"),
        ({"RANK": "0"}, "RANK is set without MASTER_ADDR, MASTER_PORT, WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "without MASTER_ADDR, MASTER_PORT"),
        (TORCHRUN | {"RANK": "16"}, "RANK is '16': expected a whole number of at least 0 and below 16"),
        (TORCHRUN | {"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        (BY_HAND | {"MARIN_COORDINATOR": "node1"}, "write the host and port of process 0"),
        (BY_HAND | {"MARIN_COORDINATOR": "node1:123456"}, "write the host and port of process 0"),
        (BY_HAND | {"MARIN_COORDINATOR": "fd00::1:12345"}, r"as in node1:12345 or \[fd00::1\]:12345"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS is 'x'"),
        (SLURM | {"WORLD_SIZE": "1"}, "WORLD_SIZE is 1, but srun started 4 processes"),
    ],
)
def test_an_environment_that_cannot_be_right_is_refused_by_name(environment, message):
    with pytest.raises(ConfigError, match=message):
        processes_of(environment)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_process_0_is_known_to_wait_under_an_address_of_either_kind(host, monkeypatch):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        address = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        monkeypatch.setattr(os, "environ", BY_HAND | {"MARIN_COORDINATOR": address})
        listener.listen()
        assert distributed.leads()
    assert not distributed.leads()


def test_processes_that_are_named_too_late_are_refused():
    import jax

    jax.devices()
    with pytest.raises(ConfigError, match="start training in a process of its own"):
        start(BY_HAND | {"MARIN_PROCESS_ID": "0"})


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ValueError("UNKNOWN: Gloo all-reduce failed: [x/pair.cc:547] Connection closed by peer"), HardwareError, "process of this run is gone"),
        (RuntimeError("UNAVAILABLE: Failed to send RPC to coordination service."), HardwareError, "process of this run is gone"),
        (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), RuntimeError, "out of memory"),
        (ConfigError("a heartbeat is no number"), ConfigError, "^a heartbeat is no number$"),
    ],
)  # fmt: skip
def test_a_lost_process_is_told_as_such_and_other_errors_as_they_are(error, kind, words, monkeypatch):
    import jax

    left = []
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.atexit, "register", lambda *call: left.append(call[1:]))
    with pytest.raises(kind, match=words), distributed.taking_part():
        raise error
    assert left == [(2,) if isinstance(error, ConfigError) else (1,)]  # it does not wait for the others


def test_a_platform_without_devices_here_is_named(repository, plain_environment):
    code = """
from marin.errors import clean_exit
from marin.parallel import distributed
with clean_exit(), distributed.taking_part():
    raise AssertionError("there is a GPU")
"""
    environment = plain_environment | {"JAX_PLATFORMS": "cuda"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert (
        "error: JAX found no device (this machine shows no NVIDIA GPU" in done.stderr
        and "JAX_PLATFORMS is 'cuda', unset it" in done.stderr
    )


@dataclasses.dataclass(frozen=True)
class Alone:
    output_path: str = this_output_path()


@dataclasses.dataclass(frozen=True)
class Together(Alone):
    marin_together: ClassVar[bool] = True


def train(config: Alone) -> None:
    start(BY_HAND | {"MARIN_PROCESS_ID": "0"})


@pytest.mark.parametrize(
    ("config", "reason"),
    [(Alone(), "`trained` is run by process 0 alone, but trains"), (Together(), "JAX already runs in this one alone")],
)
def test_training_in_a_step_that_the_other_processes_do_not_take_part_in_is_refused_at_once(config, reason, tmp_path):
    import jax

    jax.devices()
    with pytest.raises(MarinError, match=reason):
        Executor(ExecutorMainConfig(prefix=str(tmp_path))).run([ExecutorStep("trained", train, config)])


def test_a_process_whose_first_never_comes_says_where_it_looked(repository, plain_environment, tmp_path):
    port = _free_port()
    variables = {"MARIN_COORDINATOR": f"127.0.0.1:{port}", "MARIN_NUM_PROCESSES": "2", "MARIN_PROCESS_ID": "1"}
    code = "from marin.parallel import distributed; distributed.start()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        env=plain_environment | variables | {"MARIN_START_TIMEOUT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert f"did not listen on 127.0.0.1:{port} in 1 s" in done.stderr


def test_alone_a_process_agrees_with_itself_at_once():
    assert Agreement().any(True, False) == (True, False)


def test_a_batch_is_placed_by_rows_and_positions():
    rows = Batch(*(np.arange(8 * 4).reshape(8, 4).astype(kind) for kind in (np.int32, np.int32, np.float32, np.int32)))
    placed = place_batch(
        lambda first, count: Batch(*(leaf[first : first + count] for leaf in rows)),
        8,
        make_mesh({"fsdp": 4, "sequence": 2}),
    )
    for leaf, own in zip(placed, rows, strict=True):
        np.testing.assert_array_equal(leaf, own)
        assert leaf.addressable_shards[0].data.shape == (2, 2)


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def _launch(repository: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), *arguments]
    environment = environment | {
        "PYTHONPATH": str(repository),
        "MARIN_COMPILE_CACHE": os.environ["MARIN_COMPILE_CACHE"],
    }
    return subprocess.Popen(
        command, cwd=repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _losses(directory: Path) -> list[float]:
    return [step["loss"] for step in RunRecord.open(directory).steps()]


@pytest.fixture(scope="module")
def together(repository, plain_environment):
    """Runs the script in two processes, by torchrun's variables; returns what each printed, and its exit status."""

    def run(data: Path, output: Path, steps: int, *more: str, stop: int | None = None, **variables: str):
        port = _free_port()
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", **variables}
        started = [
            _launch(
                repository,
                plain_environment | shared | {"RANK": str(rank)},
                *(str(data), str(output), str(steps), *(more if rank == stop else ())),
            )
            for rank in range(2)
        ]
        try:
            return [(*process.communicate(timeout=240), process.returncode) for process in started]
        finally:
            for process in started:
                process.kill()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", ["0", "1"], ids=["data", "fsdp"])
def test_two_processes_train_as_one_does(together, repository, plain_environment, data, tmp_path, fsdp):
    alone = _launch(repository, plain_environment, str(data), str(tmp_path / "one"), "8")
    said = alone.communicate(timeout=240)
    assert alone.returncode == 0, said
    done = together(data, tmp_path / "two", 8, TEST_FSDP=fsdp)
    assert [status for _, _, status in done] == [0, 0], done
    np.testing.assert_allclose(_losses(tmp_path / "two"), _losses(tmp_path / "one"), atol=1e-5)
    record = RunRecord.open(tmp_path / "two")
    assert record.is_complete and record.info["num_processes"] == 2
    assert "loss" in done[0][0]
    assert "loss" not in done[1][0]  # only the first speaks


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "template"])
def test_two_processes_that_hold_a_half_each_export_the_whole_model(together, data, tmp_path, model):
    run, half = tmp_path / "run", tmp_path / "half"
    done = together(data, run, 4, TEST_FSDP="1", TEST_EXPORT="1", TEST_MODEL=model)
    assert [status for _, _, status in done] == [0, 0], done
    assert sorted(path.name for path in (run / "hf").iterdir()) == ["step-3", "step-4"]
    # The export of a checkpoint reads it whole in one process.
    assert dispatch(["export", str(run), str(half)]) == 0
    for name in ("model.safetensors", "config.json"):
        assert (run / "hf" / "step-4" / name).read_bytes() == (half / name).read_bytes()
    # A run that was killed before its export makes up for it, when all of its processes are there again.
    shutil.rmtree(run / "hf" / "step-4")
    done = together(data, run, 4, TEST_FSDP="1", TEST_EXPORT="1", TEST_MODEL=model)
    assert [status for _, _, status in done] == [0, 0], done
    assert (run / "hf" / "step-4" / "model.safetensors").read_bytes() == (half / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_two_processes_that_slurm_started_find_each_other(repository, plain_environment, data, tmp_path):
    step = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_TASKS": "2"}
    step |= {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    started = [
        _launch(
            repository,
            plain_environment | step | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            *(str(data), str(tmp_path / "run"), "2"),
        )
        for rank in range(2)
    ]
    done = [(*process.communicate(timeout=240), process.returncode) for process in started]
    assert [status for _, _, status in done] == [0, 0], done
    assert RunRecord.open(tmp_path / "run").info["num_processes"] == 2


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step_and_they_resume(together, data, tmp_path):
    run = tmp_path / "run"
    done = together(data, run, 12, "--stop-after", "4", stop=1)
    # Both end there: a script that went on after training would take a model that is not trained for one.
    assert [status for _, _, status in done] == [128 + signal.SIGTERM] * 2, done
    assert "trained to the end" not in done[0][0]
    stopped = list_checkpoints(run / "checkpoints")[-1].step
    assert 4 <= stopped < 8 and len(_losses(run)) == stopped
    assert not RunRecord.open(run).is_complete
    # Processors wait 30 seconds for each other inside of a program; a process that is later than that is waited for too.
    done = together(data, run, 12, TEST_LATE="40")
    assert [status for _, _, status in done] == [0, 0], done
    whole = tmp_path / "whole"
    together(data, whole, 12)
    assert _losses(run) == _losses(whole)


@pytest.mark.slow
def test_two_processes_save_once_for_each_interval_that_has_passed(together, data, tmp_path):
    # Shorter than any step: what is raised while a save is agreed on asks for that save, and what comes after it for another.
    done = together(data, tmp_path / "run", 9, TEST_INTERVAL="0.000001")
    assert [status for _, _, status in done] == [0, 0], done
    assert [saved["step"] for saved in RunRecord.open(tmp_path / "run").of("checkpoint")] == [2, 4, 6, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_fails_takes_the_others_with_it(together, data, tmp_path, rank):
    done = together(data, tmp_path / "run", 400, TEST_FAILS=str(rank))
    assert "this process is out of luck" in done[rank][1]
    assert done[rank][2] == 1 and done[1 - rank][2] != 0, done
    if rank == 1:  # process 0 has what JAX ends the others with
        assert "another process of this run is gone" in done[0][1]


@pytest.mark.parametrize("module", ["experiments.no_such.main", "no_such_package.main", "2", "--prefix"])
def test_module_that_is_not_there_is_named(module, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_together.main([module])
    assert stopped.value.code == 2
    assert f"there is no module {module!r}" in capsys.readouterr().err
