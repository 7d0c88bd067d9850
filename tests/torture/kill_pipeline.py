"""Kills the stages of a tiny Time-to-GPT-2 pipeline at random moments, starts them again, and compares what they leave.

    python tests/torture/kill_pipeline.py DIRECTORY --kills 40 --seed 7

First the whole pipeline runs once and nothing disturbs it: tokenizer, base_train with CORE and samples, base_eval, chat_sft,
chat_eval. Then one stage after another is run again from what the stages before it had left, and killed with SIGKILL up to three
times at random moments between its start and about its usual end. At its end it must have left what it leaves undisturbed:

- of training: the SHA-256 of all arrays of the last checkpoint, the loss of every step once, the figures that are not times,
  CORE and samples;
- of base_eval: the CSV file, the records of every item, bits per byte, samples, and its section of the report;
- of chat_eval: every reply.

Processes are forks of this one, which has imported everything and started no JAX backend. Prints a JSON line for each run that
failed and one with totals; exits with 1 if any failed.
"""

import argparse
import collections
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "MARIN_CPU_PEAK_FLOPS": "1e11", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {"MARIN_DTYPE": "float32", "WANDB_MODE": "disabled"}
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # the programs are small: it is all compiling

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import orbax.checkpoint  # noqa: F401  # imported once, for all forks
from small_commands import write_core_bundle, write_text

from marin import errors
from marin.tracking import RunRecord
from scripts import base_eval, base_train, chat_eval, chat_sft, tok_train

KILLS_A_RUN = 3
_TRAIN = [
    "--depth=2", "--aspect-ratio=16", "--head-dim=16", "--max-seq-len=64", "--total-batch-size=256", "--device-batch-size=4",
    "--device-type=cpu", "--num-iterations=24", "--eval-every=10", "--eval-tokens=300", "--core-metric-every=16",
    "--core-metric-max-per-task=4", "--sample-every=12", "--save-every=8", "--checkpoint-interval=0.2",
]  # fmt: skip
_SFT = [
    "--device-type=cpu", "--made=60", "--num-iterations=120", "--eval-every=50", "--eval-tokens=300", "--chatcore-every=-1",
    "--checkpoint-interval=0.2",
]  # fmt: skip
_ASK = ["--device-type=cpu", "-a", "Spelling|Arithmetic|Identity", "-m", "6", "-b", "4", "-x", "6"]
# In order: the command, its flags, whether it reads the text, and the folders that it leaves.
STAGES: dict[str, tuple[ModuleType, list[str], bool, tuple[str, ...]]] = {
    "base_train": (base_train, _TRAIN, True, ("base_checkpoints", "tokenized")),
    "base_eval": (base_eval, ["--device-batch-size=4", "--split-tokens=300", "--max-per-task=5"], True, ("base_eval",)),
    "chat_sft": (chat_sft, _SFT, False, ("chatsft_checkpoints", "chatsft_data")),
    "chat_eval": (chat_eval, _ASK, False, ("chat_eval",)),
}


# ---- the pipeline ----------------------------------------------------------------------------------------------------


def run_command(command: ModuleType, arguments: list[str]) -> None:
    sys.argv = [command.__name__, *arguments]
    with errors.clean_exit():
        command.main()


def start(base: Path, stage: str) -> int:
    """A process that runs a stage, with its output in a file beside the base directory."""
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        descriptor = os.open(base.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if stage == "tok_train":
            write_text(base, 120, 12)
            write_core_bundle(base / "eval_bundle")
            run_command(tok_train, [f"--base-dir={base}", f"--dataset={base}/text", "--vocab-size=300"])
        else:
            command, flags, reads_text, _ = STAGES[stage]
            text = [f"--dataset={base}/text"] if reads_text else []
            run_command(command, [*flags, f"--base-dir={base}", *text])
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_stage(base: Path, stage: str, kill_after: float | None = None) -> int:
    """The exit status of a process that runs a stage; below 0 for a signal."""
    pid = start(base, stage)
    if kill_after is not None:
        deadline = time.monotonic() + kill_after
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- what stages leave -----------------------------------------------------------------------------------------------

# What says how long, on what or where, in which folder; all others must be the same to the bit.
_TIMES = {
    "total_training_time", "total_training_time_after_10_steps", "compile_time", "tokens_per_second", "mfu",
    "peak_memory_bytes", "resumes", "seconds", "reused", "records", "training_time", "missing", "incomplete",
    "not CORE, as data is missing",
}  # fmt: skip


CONTINUED = "times that it went on from a checkpoint"


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in _TIMES}
    return value


def training(run: Path, figures: str) -> dict[str, Any]:
    """The weights and the record of a run; checkpoints hold their arrays compressed in one way, so bytes can be compared."""
    from marin.training import checkpoint as checkpoints

    last = checkpoints.find(str(run))
    whole = hashlib.sha256()
    for name, array in sorted(checkpoints.read_arrays(last, "").items()):
        whole.update(name.encode() + array.tobytes())
    record = RunRecord.open(run)
    steps = record.steps()
    found = {
        CONTINUED: sum(start["from_step"] > 0 for start in record.of("start")),
        "step": last.step,
        "arrays": whole.hexdigest(),
        "losses": [[step["step"], step["loss"]] for step in steps],
        "figures": lasting(json.loads((run / figures).read_text())),
    }
    return found | {path.name: path.read_text() for path in sorted(run.glob("samples-*.json"))}


def of_base_eval(base: Path) -> dict[str, Any]:
    folder = base / "base_eval"
    texts = [*folder.glob("*.csv"), *folder.rglob("*.jsonl"), *folder.rglob("samples.json")]
    found: dict[str, Any] = {str(path.relative_to(folder)): path.read_text() for path in sorted(texts)}
    for path in [*sorted(folder.glob("*.json")), *sorted(folder.rglob("bits_per_byte.json"))]:
        found[str(path.relative_to(folder))] = lasting(json.loads(path.read_text()))
    section = json.loads((base / "report" / "base-model-evaluation.json").read_text())
    return found | {"section": lasting(section["figures"])}


def of_chat_eval(base: Path) -> dict[str, Any]:
    return {str(path.relative_to(base)): path.read_text() for path in sorted((base / "chat_eval").rglob("*.jsonl"))}


LEFT: dict[str, Callable[[Path], dict[str, Any]]] = {
    "base_train": lambda base: training(base / "base_checkpoints" / "d2", "base_train.json"),
    "base_eval": of_base_eval,
    "chat_sft": lambda base: training(base / "chatsft_checkpoints" / "d2", "sft.json"),
    "chat_eval": of_chat_eval,
}


def what_is_left(base: Path, stage: str) -> dict[str, Any]:
    """Read in a process of its own, as reading a checkpoint starts threads, which forks of this process must not have."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            content = json.dumps(LEFT[stage](base))
        except Exception:
            content = json.dumps({"cannot be read": traceback.format_exc()[-1500:]})
        with os.fdopen(writer, "w") as out:
            out.write(content)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        content = source.read()
    os.waitpid(pid, 0)
    return dict(json.loads(content))


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    names = sorted(name for name in {*found, *expected} - {CONTINUED} if found.get(name) != expected.get(name))
    return [f"{name}: {str(found.get(name))[:400]}, undisturbed {str(expected.get(name))[:400]}" for name in names]


# ---- killing ---------------------------------------------------------------------------------------------------------


def before(whole: Path, copy: Path, stage: str) -> None:
    """A base directory as it was before a stage."""
    names = list(STAGES)
    later = [folder for name in names[names.index(stage) :] for folder in STAGES[name][3]]
    shutil.copytree(whole, copy, symlinks=True, ignore=shutil.ignore_patterns(*later, ".attempts", "report"))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", default=",".join(STAGES))
    arguments = parser.parse_args()
    root, chance = arguments.directory.resolve(), random.Random(arguments.seed)
    (root / "compiled").mkdir(parents=True, mode=0o700)
    os.environ["MARIN_COMPILE_CACHE"] = str(root / "compiled")
    whole = root / "whole"
    whole.mkdir()
    stages, seconds, expected = arguments.stages.split(","), {}, {}
    for stage in ["tok_train", *STAGES]:
        status = run_stage(whole, stage)
        if status:
            print(whole.with_suffix(".log").read_text()[-3000:])
            return 1
    # Once more with everything compiled: how long a stage takes, and that it leaves the same.
    totals: collections.Counter[str] = collections.Counter()
    continued: collections.Counter[str] = collections.Counter()
    problems = 0
    for stage in stages:
        expected[stage] = what_is_left(whole, stage)
        base = root / f"again-{stage}"
        before(whole, base, stage)
        begin = time.monotonic()
        status = run_stage(base, stage)
        seconds[stage] = time.monotonic() - begin
        problems += report(base, stage, [f"undisturbed -> {status}"], expected[stage], continued)
    number = 0
    while sum(totals.values()) < arguments.kills:
        stage = stages[number % len(stages)]
        base, history = root / f"run{number}", []
        number += 1
        before(whole, base, stage)
        for _ in range(KILLS_A_RUN):
            after = chance.uniform(0.0, 1.1) * seconds[stage]
            status = run_stage(base, stage, after)
            history.append(f"{after:.2f} s -> {status}")
            totals[stage] += status == -signal.SIGKILL
            if status != -signal.SIGKILL:
                break
        history.append(f"-> {run_stage(base, stage)}")
        problems += report(base, stage, history, expected[stage], continued)
    times = {stage: round(value, 2) for stage, value in seconds.items()}
    told = {"kills": totals, "continued": +continued, "runs": number, "failed": problems, "seed": arguments.seed}
    print(json.dumps(told | {"seconds": times}))
    return min(problems, 1)


def report(
    base: Path, stage: str, history: list[str], expected: dict[str, Any], continued: collections.Counter[str]
) -> int:
    """1 and a line where something differs from what the stage leaves undisturbed; else 0, and the directory is removed."""
    log = base.with_suffix(".log").read_text()
    found = what_is_left(base, stage)
    wrong = differences(found, expected)
    continued[stage] += found.get(CONTINUED, 0)
    if "Traceback" in log:
        wrong.append("a process ended with a traceback")
    if not history[-1].endswith("-> 0"):
        wrong.append("the last process failed")
    if wrong:
        print(json.dumps({"stage": stage, "kills": history, "wrong": wrong, "log": log[-2000:]}), flush=True)
        return 1
    shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
