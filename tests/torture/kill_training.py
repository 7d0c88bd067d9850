"""Kills a small training run at random moments, starts it again, and compares its end with that of a run left alone.

    python tests/torture/kill_training.py DIRECTORY --kills 100 --seed 7

Each run goes on through up to five faults until it is done. A fault is a SIGKILL at a random moment, while the process
starts or later; a SIGTERM or Ctrl-C at such a moment; a SIGKILL just before or after one of the stages of a save that goes on in the background; a disk that is
full when a checkpoint is flushed; or a limit on the size of files that a checkpoint meets while its arrays are written. A
run that met one of the last two must say one error and leave with status 2, one that was asked to stop with 143 or 130. At its end a run must have

- the SHA-256 of all arrays of the last checkpoint, as read from the disk, that the run left alone has;
- a record of every step, once, with the same losses to the bit;
- no file that a killed process left half-written.

Processes are forks of this one, which has imported everything and started no JAX backend. Prints a JSON line for each run
that failed and one with totals; exits with 1 if any failed.
"""

import argparse
import collections
import dataclasses
import errno
import hashlib
import importlib.metadata
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "MARIN_CPU_PEAK_FLOPS": "1e11", "TOKENIZERS_PARALLELISM": "false"}
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # the program is small: it is all compiling
if importlib.metadata.version("jaxlib").startswith("0.10."):  # see tests/conftest.py
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

import numpy as np
import orbax.checkpoint  # noqa: F401  # imported once, for all forks

from marin import errors
from marin.data.cache import TokenizeConfig, tokenize
from marin.data.documents import Document, write_documents
from marin.data.tokenizer import TrainTokenizerConfig, train_tokenizer
from marin.execution.replaced_code import replaced_code
from marin.models import LlamaConfig
from marin.nn import Precision
from marin.nn.trees import named_leaves
from marin.resources import CpuOnlyConfig
from marin.storage import files
from marin.tracking import RunRecord, RunWriter
from marin.training import SimpleTrainConfig, TrainLmConfig, WatchConfig, checkpoint_writer
from marin.training import checkpoint as checkpoints
from marin.training.checkpoint_manifest import Manifest
from marin.training.loop import train_lm

NUM_STEPS, VOCABULARY = 12, 300
FAULTS_A_RUN = 5
# Where a save can be cut in two: (owner, name) of what its background thread calls, in order.
STAGES: tuple[tuple[Any, str], ...] = (
    (checkpoint_writer.CheckpointWriter, "_begin"),
    (Manifest, "write"),
    (files, "sync_tree"),
    (RunWriter, "sync"),
    (checkpoint_writer.CheckpointWriter, "_put_in_place"),
    (checkpoint_writer.CheckpointWriter, "_remove_old"),
)


@dataclasses.dataclass(frozen=True)
class Fault:
    """`kind` is the name of a signal (`at` in seconds from the first step, below 0 while starting), "before", "after",
    "full" or "limit" (at the `at`-th call of a stage)."""

    kind: str
    at: float
    stage: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.at:.2f}:{STAGES[self.stage][1]}"


def draw(chance: random.Random, seconds: float) -> Fault:
    kinds = ["SIGKILL", "starting", "SIGTERM", "SIGINT", "before", "after", "full", "limit"]
    kind = chance.choices(kinds, [8, 2, 1, 1, 3, 3, 1, 1])[0]
    if kind.startswith("SIG"):
        return Fault(kind, chance.uniform(0, seconds))
    if kind == "starting":
        return Fault("SIGKILL", -chance.uniform(0.01, 1))
    stage = {"full": 2, "limit": 0}.get(kind, chance.randrange(len(STAGES)))
    return Fault(kind, chance.randint(1, 3), stage)


def install(fault: Fault) -> None:
    """Puts the fault in the way of the saves of this process."""
    owner, name = STAGES[fault.stage]
    real, calls = getattr(owner, name), 0

    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fault.at and fault.kind == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls >= fault.at and fault.kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if calls == fault.at and fault.kind == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))
        result = real(*arguments)
        if calls == fault.at and fault.kind == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, staticmethod(call) if owner is Manifest else call)


def make_data(folder: Path) -> None:
    choose = np.random.default_rng(0)
    words = ["graph", "node", "edge", "path", "tree", "matrix", "vector", "sum", "limit", "proof", "returns", "value"]
    texts = [" ".join(choose.choice(words, 60)) for _ in range(60)]
    documents = str(folder / "docs.jsonl.zst")
    write_documents(documents, [Document(str(i), text, "test") for i, text in enumerate(texts)])
    train_tokenizer(TrainTokenizerConfig(documents=documents, vocab_size=VOCABULARY, output_path=str(folder)))
    tokenize(TokenizeConfig(documents=documents, tokenizer=str(folder), output_path=str(folder / "tokens")))


def train(data: Path, run: Path, interval: float) -> None:
    """One process of the run; at its end it writes what it came to beside it."""
    config = TrainLmConfig(
        model=LlamaConfig(
            seq_len=32, hidden_dim=32, intermediate_dim=48, num_layers=1, num_heads=2, num_kv_heads=1,
            gradient_checkpointing=False,
        ),
        train=SimpleTrainConfig(
            CpuOnlyConfig(), train_batch_size=4, num_train_steps=NUM_STEPS, learning_rate=0.01, steps_per_export=5,
            steps_per_hf_export=-1,
            checkpoint_interval=interval, watch=WatchConfig(watch_targets=[]),
            precision=Precision("f32"),
        ),
        data=str(data / "tokens"), tokenizer=str(data), vocab_size=VOCABULARY, output_path=str(run),
    )  # fmt: skip
    state = train_lm(config)
    saved = checkpoints.restore(checkpoints.at_step(run, NUM_STEPS), state)
    whole = hashlib.sha256()
    for name, array in sorted(named_leaves(saved).items()):
        whole.update(name.encode() + np.asarray(array).tobytes())
    steps = RunRecord.open(run).steps()
    result = {"parameters": whole.hexdigest(), "losses": [[step["step"], step["loss"]] for step in steps]}
    run.with_suffix(".json").write_text(json.dumps(result))


# How a process may end that met the fault in time; for another kind by SIGKILL.
STATUSES = {"SIGTERM": 143, "SIGINT": 130, "full": 2, "limit": 2}


def start(data: Path, run: Path, interval: float, fault: Fault | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        descriptor = os.open(run.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if fault is not None and not fault.kind.startswith("SIG"):
            install(fault)
        with errors.clean_exit():
            train(data, run, interval)
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_with(data: Path, run: Path, interval: float, fault: Fault | None) -> int:
    """The status of one process that met the fault, below 0 for a signal."""
    log = run / "metrics.jsonl"
    before = log.stat().st_size if log.exists() else 0
    pid = start(data, run, interval, fault)
    ended = 0
    if fault is not None and fault.kind.startswith("SIG"):
        if fault.at < 0:
            time.sleep(-fault.at)
        else:  # a process writes its first line when all is compiled
            while not ended and (log.stat().st_size if log.exists() else 0) <= before:
                time.sleep(0.005)
                ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                time.sleep(fault.at)
        if not ended:
            os.kill(pid, signal.Signals[fault.kind])
    if not ended:
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def check(run: Path, expected: dict[str, Any]) -> str | None:
    found = json.loads(run.with_suffix(".json").read_text())
    for name in ("parameters", "losses"):
        if found[name] != expected[name]:
            return f"{name} differ from those of the run left alone: {found[name]}, {expected[name]}"
    if left := [path.name for path in (run / "checkpoints").iterdir() if not path.name.startswith("step-")]:
        return f"left behind: {left}"
    # A Ctrl-C that comes within a callback of Python's own weak references is said and lost by Python.
    log = re.sub(r"Exception ignored in: .*\nTraceback", "", run.with_suffix(".log").read_text())
    if "Traceback" in log:
        return "a process ended with a traceback"
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    root, chance = arguments.directory.resolve(), random.Random(arguments.seed)
    data = root / "data"
    data.mkdir(parents=True)
    cache = root / "compiled"
    cache.mkdir(mode=0o700)
    os.environ["MARIN_COMPILE_CACHE"] = str(cache)
    child = os.fork()  # tokenizing starts threads, which forks of this process must not have
    if child == 0:
        make_data(data)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    replaced_code()  # reads all of Marin's files the first time, which no fork then does
    alone = root / "alone"
    assert run_with(data, alone, 600.0, None) == 0, alone.with_suffix(".log").read_text()[-3000:]
    expected = json.loads(alone.with_suffix(".json").read_text())
    lines = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
    seconds = (lines[-1]["time"] - lines[0]["time"]) * 2 + 0.1  # saving more often takes longer
    totals: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    while totals["faults met"] < arguments.kills:
        run, interval = root / f"run{totals['runs']}", chance.choice([1e-6, 0.05, 600.0])
        history, problem = [], None
        for _ in range(FAULTS_A_RUN):
            if totals["faults met"] == arguments.kills:
                break
            fault = draw(chance, seconds)
            status = run_with(data, run, interval, fault)
            history.append(f"{fault} -> {status}")
            kinds[fault.kind] += status != 0
            totals["faults met"] += status != 0
            totals["within a save"] += status == -signal.SIGKILL and any(run.glob("checkpoints/.saving-*"))
            if status == 0:
                break
            if status != STATUSES.get(fault.kind, -signal.SIGKILL):
                problem = f"a process ended with status {status}"
        status = run_with(data, run, interval, None)
        problem = problem or (check(run, expected) if status == 0 else f"the last process ended with status {status}")
        totals["runs"] += 1
        if problem:
            totals["failed"] += 1
            log = run.with_suffix(".log").read_text()[-3000:]
            print(json.dumps({"run": run.name, "problem": problem, "faults": history, "log": log}), flush=True)
        else:
            shutil.rmtree(run)
    summary = {**totals, "failed": totals["failed"], "kinds": kinds, "seed": arguments.seed}
    print(json.dumps(summary | {"sha256": expected["parameters"]}))
    return min(totals["failed"], 1)


if __name__ == "__main__":
    sys.exit(main())
