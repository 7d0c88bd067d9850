"""What the executor costs: checking a finished graph, its memory, and running a step that does nothing.

    python -m benchmarks.executor            # 10,000 steps and the overhead of a step
    python -m benchmarks.executor --large    # 100,000 steps too; writes 200,000 small files into a temporary directory

Prints one JSON line a figure: name, value, unit, n (repetitions), context. A check is what a second run of a finished
experiment does: every fingerprint is computed from the configs, and every record on the disk is read and compared. Each
figure comes from a process of its own. `loop_seconds` in the context is what ten million additions in a Python loop
take on this machine (0.5 s on a usual one of 2025), as absolute times mean little without it.
"""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, this_output_path
from marin.execution.graph import Graph
from marin.execution.plan import Action, plan
from marin.execution.provenance import step_info
from marin.execution.status import Status, write_info, write_status
from marin.execution.task import make_task
from marin.flags import HelpFormatter

_REPETITIONS = 5
_TRIVIAL_STEPS = 100


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    learning_rate: float = 0.003
    warmup: int = 100
    schedule: str = "cosine"


@dataclasses.dataclass(frozen=True)
class ShardConfig:
    """About what a step of a data pipeline has: a dozen fields, and an earlier step."""

    index: int
    source: Any
    optimizer: OptimizerConfig
    learning_rate: float = 0.003
    num_layers: int = 12
    tokenizer: str = "a tokenizer"
    tags: tuple[str, ...] = ("web", "code")
    weights: dict[str, float] = dataclasses.field(default_factory=lambda: {"web": 0.5, "code": 0.5})
    shuffle: bool = True
    seed: int | None = None
    output_path: str = this_output_path()


_STARTED: list[float] = []


def do_nothing(config: ShardConfig) -> None:
    _STARTED.append(time.perf_counter())


def graph_of_steps(num_steps: int) -> list[ExecutorStep]:
    """Steps of which each but the first needs an earlier one: a tree in which a step has two that read it."""
    steps: list[ExecutorStep] = []
    for index in range(num_steps):
        source = steps[(index - 1) // 2] / "shard.jsonl" if index else None
        config = ShardConfig(index, source, OptimizerConfig(learning_rate=0.001 * index))
        steps.append(ExecutorStep(f"shards/shard_{index}", do_nothing, config))
    return steps


def finish(graph: Graph) -> None:
    """Writes what finished steps leave, without running them: 100,000 commits with their flushes would take an hour."""
    for node in graph.nodes:
        os.makedirs(node.output_path)
        write_info(node.output_path, step_info(make_task(node, graph)), durable=False)
        write_status(node.output_path, Status.SUCCESS, durable=False)


def measure_check(num_steps: int, store: str) -> dict[str, Any]:
    """Seconds to check a finished graph, and the memory that the check needs beyond the steps themselves."""
    steps = graph_of_steps(num_steps)
    finish(Graph(steps, store))
    return _in_a_new_process("check", num_steps, store)


def check(num_steps: int, store: str) -> dict[str, Any]:
    steps = graph_of_steps(num_steps)
    before = _resident_bytes()
    seconds = []
    for _ in range(_REPETITIONS if num_steps <= 20_000 else 3):
        start = time.perf_counter()
        graph = Graph(steps, store)
        decisions = plan(graph, graph.targets, force_run_failed=True)
        seconds.append(time.perf_counter() - start)
        if len(seconds) == 1:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert len(decisions) == num_steps
        assert all(decision.action is Action.SKIP for decision in decisions.values())
        del graph, decisions
    return {"seconds": seconds, "bytes_per_step": (peak - before) / num_steps}


def measure_overhead(store: str) -> dict[str, Any]:
    """Seconds between the beginnings of successive steps that do nothing, each with its lease, records and commit."""
    return _in_a_new_process("overhead", _TRIVIAL_STEPS, store)


def overhead(num_steps: int, store: str) -> dict[str, Any]:
    Executor(ExecutorMainConfig(prefix=store)).run(graph_of_steps(num_steps))
    return {"seconds": [after - before for before, after in itertools.pairwise(_STARTED)]}


def _in_a_new_process(name: str, num_steps: int, store: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.executor", "--measure", name, str(num_steps), store]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _loop_seconds() -> float:
    start = time.perf_counter()
    total = 0
    for index in range(10_000_000):
        total += index
    return time.perf_counter() - start


def _print_figure(name: str, value: float, unit: str, n: int, **context: Any) -> None:
    print(
        json.dumps({"name": name, "value": float(f"{value:.4g}"), "unit": unit, "n": n, "context": context}), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--large", action="store_true", help="100,000 steps too")
    parser.add_argument("--store", help="a directory to make the temporary one in (default: the system's)")
    parser.add_argument("--measure", nargs=3, metavar=("NAME", "STEPS", "STORE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, num_steps, store = args.measure
        print(json.dumps({"check": check, "overhead": overhead}[name](int(num_steps), store)))
        return
    machine = {"loop_seconds": round(_loop_seconds(), 2), "python": platform.python_version(), "cpus": os.cpu_count()}
    for num_steps, target in [(10_000, 1.0), (100_000, 10.0)][: 2 if args.large else 1]:
        with tempfile.TemporaryDirectory(dir=args.store) as store:
            found = measure_check(num_steps, store)
        seconds = found["seconds"]
        _print_figure(
            f"check_{num_steps}_steps", statistics.median(seconds), "s", len(seconds),
            target=target, lowest=round(min(seconds), 3), highest=round(max(seconds), 3), **machine,
        )  # fmt: skip
        _print_figure(f"check_{num_steps}_memory_per_step", found["bytes_per_step"], "bytes", 1, **machine)
    with tempfile.TemporaryDirectory(dir=args.store) as store:
        seconds = measure_overhead(store)["seconds"]
    milliseconds = [1000 * value for value in seconds]
    _print_figure(
        "trivial_step_overhead", statistics.median(milliseconds), "ms", len(milliseconds),
        target=10, highest=round(max(milliseconds), 2), **machine,
    )  # fmt: skip


if __name__ == "__main__":
    main()
