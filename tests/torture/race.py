"""One of many processes that run the same graph under one prefix; started by test_executor_races.py.

    python tests/torture/race.py DIRECTORY STEPS PROCESSES SEED [PREFIX]

Forks PROCESSES runs of a graph of STEPS steps at the same moment, waits for all, and checks that each step ran once,
was committed once, and has the right output. The prefix is DIRECTORY/store, or one on an object store. Prints one JSON line.
"""

import collections
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import sys
import time
import traceback
from typing import Any

from marin import errors
from marin.execution import Executor, ExecutorMainConfig, ExecutorStep, attempts, provenance, this_output_path
from marin.storage import files, lease


@dataclasses.dataclass(frozen=True)
class Config:
    label: str
    calls: str
    inputs: tuple[Any, ...] = ()
    output_path: str = this_output_path()


def content(label: str, inputs: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join([label.encode(), *inputs])).hexdigest().encode()


def work(config: Config) -> None:
    descriptor = os.open(config.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{config.label} {os.getpid()}\n".encode())
    os.close(descriptor)
    inputs = [files.read_bytes(files.join(path, "data")) for path in config.inputs]
    files.write_bytes(files.join(config.output_path, "data"), content(config.label, inputs), durable=False)


def graph(count: int, calls: pathlib.Path, seed: int) -> list[ExecutorStep]:
    """Steps that each read up to three earlier ones."""
    chance, steps = random.Random(seed), []
    for number in range(count):
        inputs = tuple(chance.sample(steps, min(len(steps), chance.randint(0, 3))))
        steps.append(ExecutorStep(f"race/{number:04d}", work, Config(f"{number:04d}", str(calls), inputs)))
    return steps


def child(directory: pathlib.Path, prefix: str, steps: list[ExecutorStep], start: float) -> int:
    descriptor = os.open(directory / f"printed-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        time.sleep(max(0.0, start - time.monotonic()))
        with errors.clean_exit():
            random.Random(os.getpid()).shuffle(steps)  # else one process leads, and all others wait behind it
            Executor(ExecutorMainConfig(prefix=prefix)).run(steps)
        return 0
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main(directory: pathlib.Path, count: int, processes: int, seed: int, prefix: str) -> int:
    directory.mkdir(parents=True)
    calls = directory / "calls"
    steps = graph(count, calls, seed)
    provenance.run_context()  # asks git, once for all
    lease.machine()
    begin = time.monotonic()
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            os._exit(child(directory, prefix, steps, begin + 0.3))
        pids.append(pid)
    problems = []
    for pid in pids:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            problems.append(f"a process ended with {status}: {(directory / f'printed-{pid}').read_text()[-1500:]}")
    ran = collections.Counter(line.split()[0] for line in calls.read_text().splitlines())
    problems += [f"step {label} ran {times} times" for label, times in ran.items() if times != 1]
    problems += [] if len(ran) == count else [f"{len(ran)} of {count} steps ran"]
    executor, right = Executor(ExecutorMainConfig(prefix=prefix)), {}
    workers = collections.Counter(line.split()[1] for line in calls.read_text().splitlines())
    for step in steps:
        config = step.config
        right[config.label] = content(config.label, [right[other.config.label] for other in config.inputs])
        output = executor.output_path(step)
        found = files.read_bytes(files.join(attempts.location(output), "data"))
        if os.path.islink(output) or found != right[config.label]:
            problems.append(f"the output of {config.label} is not right")
        ledger = files.join(attempts.ledger_directory(output), lease.LEDGER_NAME)
        records = [
            files.read_bytes(files.join(ledger, name)) for name in files.list_dir(ledger) if name.endswith(".json")
        ]
        kinds = [json.loads(record)["kind"] for record in records]
        if kinds.count("commit") != 1:
            problems.append(f"the ledger of {config.label} has {kinds}")
    seconds = round(time.monotonic() - begin, 1)
    summary = {"steps": count, "processes": processes, "workers": len(workers), "seconds": seconds, "seed": seed}
    print(json.dumps(summary | {"problems": problems[:20], "failed": len(problems)}))
    return min(len(problems), 1)


if __name__ == "__main__":
    place = pathlib.Path(sys.argv[1])
    sys.exit(main(place, *map(int, sys.argv[2:5]), sys.argv[5] if len(sys.argv) > 5 else str(place / "store")))
