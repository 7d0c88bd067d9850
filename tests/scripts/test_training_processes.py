"""base_train in processes of its own: killed and continued, and the same from several of them, however they are started."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_commands import TINY, where, write_core_bundle, write_text

from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.evaluation.core import evaluate_core
from marin.evaluation.likelihood import LikelihoodScorer
from marin.tracking import RunRecord
from marin.training.run_model import load_run_model

pytestmark = pytest.mark.slow

LONG = [*TINY, "--num-iterations=60", "--eval-every=20", "--sample-every=-1", "--checkpoint-interval=0.01"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A base directory with a tokenizer, text, and a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("prepared")
    write_text(folder)
    train_tokenizer(
        TrainTokenizerConfig(str(folder / "text" / "a.jsonl.zst"), 300, output_path=str(folder / "tokenizer"))
    )
    status, errors = _end(_start(folder, ["-m", "scripts.base_train"]))
    assert status == 0, errors
    return folder


def _start(folder: Path, program: list[str], *flags: str, **variables: str) -> "subprocess.Popen[str]":
    repository = Path(__file__).parents[2]
    # Without the virtual devices that this process has.
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = plain | {"MARIN_CPU_PEAK_FLOPS": "1e11", "WANDB_MODE": "disabled", **variables}
    command = [sys.executable, *program, *LONG, *where(folder), *flags]
    return subprocess.Popen(
        command, cwd=repository, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _end(started: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit status, and the end of what it said of errors."""
    _, errors = started.communicate(timeout=400)
    return started.returncode, errors[-2000:]


def _fresh(prepared: Path, folder: Path) -> Path:
    """A copy in which the model has not been trained."""
    shutil.copytree(prepared, folder, ignore=shutil.ignore_patterns("base_checkpoints", "report", ".attempts"))
    return folder


def _figures(folder: Path) -> dict[str, float]:
    return json.loads((folder / "base_checkpoints" / "d2" / "base_train.json").read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "asked to stop"])
def test_training_that_is_stopped_goes_on_to_the_same_figures(prepared, tmp_path, number):
    folder = _fresh(prepared, tmp_path / "stopped")
    log = folder / "base_checkpoints" / "d2" / "metrics.jsonl"
    started = _start(folder, ["-m", "scripts.base_train"])
    while not (log.exists() and log.read_text().count('"step_time"') > 6):
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(number)
    assert _end(started)[0] == (-9 if number == signal.SIGKILL else 143)
    status, errors = _end(_start(folder, ["-m", "scripts.base_train"]))
    assert status == 0, errors
    assert _figures(folder)["val_bpb"] == _figures(prepared)["val_bpb"]
    assert len(RunRecord.open(folder / "base_checkpoints" / "d2").steps()) == 60


def _port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _as_torchrun_sets_them(folder: Path) -> list["subprocess.Popen[str]"]:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port(), "WORLD_SIZE": "2"}
    return [_start(folder, ["-m", "scripts.base_train"], **shared, RANK=str(rank)) for rank in range(2)]


def _with_our_launcher(folder: Path) -> list["subprocess.Popen[str]"]:
    return [_start(folder, ["-m", "marin.run.launch", "--nproc_per_node=2", "-m", "scripts.base_train", "--"])]


def test_two_processes_measure_core_and_write_samples_during_training(prepared, tmp_path):
    folder = _fresh(prepared, tmp_path / "measured")
    bundle = write_core_bundle(folder / "eval_bundle")
    launched = ["-m", "marin.run.launch", "--nproc_per_node=2", "-m", "scripts.base_train", "--"]
    flags = ["--core-metric-every=40", "--core-metric-max-per-task=4", "--sample-every=40"]
    status, errors = _end(_start(folder, launched, *flags))
    assert status == 0, errors
    run = folder / "base_checkpoints" / "d2"
    measured = [entry for entry in RunRecord.open(run).of("evaluation") if "partial_core_metric" in entry]
    assert [entry["step"] for entry in measured] == [40]
    loaded = load_run_model(run)
    scorer = LikelihoodScorer(loaded.model, precision=loaded.precision)
    alone = evaluate_core(scorer, loaded.tokenizer, bundle, max_per_task=4)
    assert _figures(folder)["partial_core_metric"] == alone.partial_core_metric
    written = [json.loads((run / f"samples-{step:06d}.json").read_text()) for step in (40, 60)]
    assert all(len(samples["prompted"]) == 7 and len(samples["free"]) == 2 for samples in written)


def _with_torchrun(folder: Path) -> list["subprocess.Popen[str]"]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "scripts.base_train", "--"]
    return [_start(folder, torchrun)]


@pytest.mark.parametrize("start", [_as_torchrun_sets_them, _with_our_launcher, _with_torchrun])
def test_two_processes_reach_what_one_does(prepared, tmp_path, start):
    folder = _fresh(prepared, tmp_path / "two")
    for status, errors in [_end(process) for process in start(folder)]:
        assert status == 0, errors
    two, alone = _figures(folder), _figures(prepared)
    assert (two["processes"], alone["processes"]) == (2, 1)
    # Sums over two processes are added in another order.
    assert two["val_bpb"] == pytest.approx(alone["val_bpb"], abs=2e-3)
    assert two["steps"] == alone["steps"] == 60
