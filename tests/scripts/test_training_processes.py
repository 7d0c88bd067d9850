"""Training commands in processes of their own: killed and continued, and the same from several, however they are started."""

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

from marin.data.conversation import SPECIAL_TOKENS
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.evaluation.core import evaluate_core
from marin.evaluation.likelihood import LikelihoodScorer
from marin.tracking import RunRecord
from marin.training.run_model import load_run_model

# A busy machine gives several processes little: what takes a minute alone has taken ten.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LONG = [*TINY, "--num-iterations=60", "--eval-every=20", "--sample-every=-1", "--checkpoint-interval=0.1"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A base directory with a tokenizer, text, and a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("prepared")
    write_text(folder)
    text, output = str(folder / "text" / "a.jsonl.zst"), str(folder / "tokenizer")
    train_tokenizer(TrainTokenizerConfig(text, 300, output_path=output, special_tokens=SPECIAL_TOKENS))
    status, errors = _end(_start(folder, ["-m", "scripts.base_train"]))
    assert status == 0, errors
    return folder


def _start(
    folder: Path, program: list[str], *flags: str, runner: str = sys.executable, **variables: str
) -> "subprocess.Popen[str]":
    """Of base_train."""
    return _start_with(folder, program, [*LONG, *where(folder), *flags], runner, variables)


def _start_with(
    folder: Path, program: list[str], flags: list[str], runner: str, variables: dict[str, str]
) -> "subprocess.Popen[str]":
    repository = Path(__file__).parents[2]
    # Without the virtual devices that this process has.
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = plain | {"MARIN_CPU_PEAK_FLOPS": "1e11", "WANDB_MODE": "disabled", **variables}
    command = [runner, *program, *flags]
    return subprocess.Popen(
        command, cwd=repository, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _end(started: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit status, and the end of what it said of errors."""
    _, errors = started.communicate(timeout=1500)
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
    started = _start(folder, ["-m", "scripts.base_train"])
    _wait_for_steps(folder, started)
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


def _torchrun() -> str:
    """The `torchrun` beside the Python that `MARIN_PEER_PYTHON` names: PyTorch is no dependency of this project."""
    peer = os.environ.get("MARIN_PEER_PYTHON")
    if peer is None:
        pytest.skip("MARIN_PEER_PYTHON names no Python with torch (docs/tutorials/time-to-gpt2.md tells how)")
    program = Path(peer).with_name("torchrun")
    if not program.is_file():
        pytest.skip(f"{program} is not there: the environment of MARIN_PEER_PYTHON has no torch")
    return str(program)


def _with_torchrun(folder: Path, *own: str) -> list["subprocess.Popen[str]"]:
    launched = ["--standalone", "--nproc_per_node=2", *own, "-m", "scripts.base_train", "--"]
    # The processes it starts are of the Python that has this project.
    return [_start(folder, launched, runner=_torchrun(), PYTHON_EXEC=sys.executable)]


def _losses(folder: Path) -> dict[int, float]:
    """By step; each step must be in the log once."""
    log = folder / "base_checkpoints" / "d2" / "metrics.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [entry for entry in entries if entry["event"] == "step"]
    losses = {step["step"]: step["loss"] for step in steps}
    assert len(losses) == len(steps)
    return losses


def _left_by(base: Path) -> list[str]:
    """The names of what a run left, but for the signs of life that each process gives."""
    names = (path.name for path in (base / "base_checkpoints").rglob("*.json*"))
    return sorted(name for name in names if not name.startswith("heartbeat-"))


@pytest.mark.parametrize("start", [_as_torchrun_sets_them, _with_our_launcher, _with_torchrun])
def test_two_processes_reach_what_one_does(prepared, tmp_path, start):
    folder = _fresh(prepared, tmp_path / "two")
    for status, errors in [_end(process) for process in start(folder)]:
        assert status == 0, errors
    two, alone = _figures(folder), _figures(prepared)
    assert (two["processes"], alone["processes"]) == (2, 1)
    assert two["steps"] == alone["steps"] == 60
    # Sums over two processes are added in another order.
    assert _losses(folder) == pytest.approx(_losses(prepared), rel=1e-5)
    assert two["val_bpb"] == pytest.approx(alone["val_bpb"], rel=1e-5)
    assert _left_by(folder) == _left_by(prepared)


def test_torchrun_that_is_asked_to_stop_and_started_again_goes_on_and_then_has_nothing_to_do(prepared, tmp_path):
    folder = _fresh(prepared, tmp_path / "stopped")
    (started,) = _with_torchrun(folder)
    _wait_for_steps(folder, started)
    started.send_signal(signal.SIGTERM)
    assert _end(started)[0] != 0
    run = folder / "base_checkpoints" / "d2"
    saved = len(RunRecord.open(run).steps())
    assert 6 < saved < 60
    (again,) = _with_torchrun(folder)
    status, errors = _end(again)
    assert status == 0, errors
    # Nothing that was saved is done twice.
    assert _losses(folder) == pytest.approx(_losses(prepared), rel=1e-5)
    assert [entry["from_step"] for entry in RunRecord.open(run).of("start")] == [0, saved]
    before = (run / "metrics.jsonl").read_bytes()
    (third,) = _with_torchrun(folder)
    assert _end(third)[0] == 0 and (run / "metrics.jsonl").read_bytes() == before


def test_torchrun_restarts_the_processes_when_one_is_killed_and_they_go_on(prepared, tmp_path):
    folder = _fresh(prepared, tmp_path / "killed")
    (started,) = _with_torchrun(folder, "--max_restarts=1")
    _wait_for_steps(folder, started)
    os.kill(_process_of_rank(started.pid, 1), signal.SIGKILL)
    status, errors = _end(started)
    assert status == 0, errors
    assert len(RunRecord.open(folder / "base_checkpoints" / "d2").of("start")) == 2
    steps = {step["step"]: step["loss"] for step in RunRecord.open(folder / "base_checkpoints" / "d2").steps()}
    assert steps == pytest.approx(_losses(prepared), rel=1e-5)


def test_finetuning_in_two_processes_is_killed_with_its_launcher_and_reaches_what_one_does(prepared, tmp_path):
    def start(name: str, *launcher: str) -> "subprocess.Popen[str]":
        if not (tmp_path / name).exists():
            shutil.copytree(prepared, tmp_path / name)
        flags = [f"--base-dir={tmp_path / name}", "--device-type=cpu", "--made=60", "--num-iterations=60", "--eval-every=30",
                 "--eval-tokens=300", "--chatcore-every=-1", "--checkpoint-interval=0.1"]  # fmt: skip
        return _start_with(tmp_path / name, ["-m", *launcher], flags, sys.executable, {})

    launched = ("marin.run.launch", "--nproc_per_node=2", "-m", "scripts.chat_sft", "--")
    killed = start("two", *launched)
    _wait_for_steps(tmp_path / "two", killed, "chatsft_checkpoints")
    killed.kill()
    assert _end(killed)[0] == -signal.SIGKILL
    for process in (start("two", *launched), start("one", "scripts.chat_sft")):
        status, errors = _end(process)
        assert status == 0, errors
        assert errors.count("warning: training goes") == 1
    one, two = (tmp_path / name / "chatsft_checkpoints" / "d2" for name in ("one", "two"))
    assert [entry["from_step"] > 0 for entry in RunRecord.open(two).of("start")] == [False, True]
    losses = [{step["step"]: step["loss"] for step in RunRecord.open(run).steps()} for run in (one, two)]
    assert len(losses[0]) == 60 and losses[1] == pytest.approx(losses[0], rel=1e-5)
    told = [json.loads((run / "sft.json").read_text())["val_bpb"] for run in (one, two)]
    assert told[1] == pytest.approx(told[0], rel=1e-5)


def _wait_for_steps(folder: Path, started: "subprocess.Popen[str]", kind: str = "base_checkpoints") -> None:
    log = folder / kind / "d2" / "metrics.jsonl"
    while not (log.exists() and log.read_text().count('"step_time"') > 6):
        assert started.poll() is None, _end(started)
        time.sleep(0.02)


def _process_of_rank(launcher: int, rank: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (found,) = [
        int(pid) for pid in children if f"\0RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    return found
