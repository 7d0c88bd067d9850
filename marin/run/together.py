"""Runs an experiment file on several processes, started alike by srun, torchrun or hand (see `marin.parallel.distributed`).

    python -m marin.run.together experiments.my_speedrun.main --prefix PREFIX

Process 0 is the executor: it runs every step. The others run none by themselves; at a step that trains they wait until
process 0 is at it, and train with it. All of them must see the same prefix.
"""

import argparse
import importlib.util
import os
import runpy
import sys
import time
from collections.abc import Sequence

from marin.errors import ConfigError, clean_exit
from marin.execution import executor
from marin.execution.flags import parse_flags
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, decide
from marin.execution.step import ExecutorStep
from marin.execution.task import make_task
from marin.parallel import distributed
from marin.speedrun.steps import SpeedrunTrainConfig
from marin.storage.prefix import resolve_prefix
from marin.training.config import TrainLmConfig

_POLL = 1.0
_TRAINING = (SpeedrunTrainConfig, TrainLmConfig)


def main(arguments: Sequence[str]) -> None:
    """Runs the experiment's module as if it were started alone, or joins the process that does."""
    parser = argparse.ArgumentParser(prog="python -m marin.run.together", description=__doc__, add_help=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("module", help="the experiment, such as experiments.speedrun.hello_world.main")
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        return
    with clean_exit():
        if arguments[0].startswith("-") or _is_missing(arguments[0]):
            raise ConfigError(
                f"there is no module {arguments[0]!r}: name one, such as experiments.speedrun.hello_world.main"
            )
        index = distributed.process_index(os.environ)
        sys.argv = list(arguments)
        if index > 0:
            executor.intercept.set(lambda steps, description: follow(steps, description, index))
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # one of the packages that it is in
        return True


def follow(steps: Sequence[ExecutorStep], description: str | None, index: int) -> None:
    """Takes part in the training steps among `steps` and what they depend on, as process `index`."""
    flags = parse_flags(sys.argv[1:], description)
    graph = Graph(steps, resolve_prefix(flags.prefix))
    if flags.dry_run:
        return
    for node in graph.nodes:
        if isinstance(node.step.config, _TRAINING) and _wait_for_start(node, index):
            task = make_task(node, graph)
            task.fn(task.config_for(node.output_path))


def _wait_for_start(node: Node, index: int) -> bool:
    """Whether process 0 is at the step; False where it is done already."""
    announced = False
    while True:
        action = decide(node, force_run_failed=True).action
        if action in (Action.WAIT, Action.SKIP):
            return action is Action.WAIT
        if not announced:
            announced = True
            print(f"process {index} waits for process 0 to begin {node.name}", file=sys.stderr)
        time.sleep(_POLL)


if __name__ == "__main__":
    main(sys.argv[1:])
