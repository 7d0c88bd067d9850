"""Prints how a training step is divided between devices, and refuses what does not fit into their memory."""

import argparse
import resource
import sys
import time

from marin.errors import clean_exit
from marin.models.lm import LmConfig
from marin.training.config import SimpleTrainConfig
from marin.training.memory_plan import plan_memory


def main(model: LmConfig, vocab_size: int, train: SimpleTrainConfig, arguments: list[str] | None = None) -> None:
    """The command line of files such as `experiments/marin_8b.py`."""
    parser = argparse.ArgumentParser(description="Trace and shard a training step; nothing is allocated or trained.")
    parser.add_argument("--devices", type=int, help="plan for so many devices in place of the config's")
    args = parser.parse_args(arguments)
    if args.devices is not None and args.devices < 1:
        parser.error(f"argument --devices: at least 1 device is needed, not {args.devices}")
    with clean_exit():
        started = time.perf_counter()
        plan = plan_memory(model, vocab_size, train, args.devices)
        print(plan.text())
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is kilobytes on Linux and bytes on macOS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        print(f"planned in {time.perf_counter() - started:.1f} s with {peak / 2**30:.2f} GiB of this machine's memory")
        plan.check()
