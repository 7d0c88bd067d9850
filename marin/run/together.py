"""Runs an experiment file on several processes, started alike by srun, torchrun or hand (see `marin.parallel.distributed`).

    python -m marin.run.together experiments.my_speedrun.main --prefix PREFIX

Process 0 is the executor: it runs every step. The others run none by themselves; at a step that trains they wait until
process 0 is at it, and train with it. All of them must see the same prefix.
"""

import contextlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence

from marin.errors import ConfigError, clean_exit
from marin.execution import executor
from marin.execution.flags import ExecutorMainConfig, parse_flags
from marin.execution.following import follow, runs_together
from marin.execution.graph import Graph
from marin.execution.plan import targets_of
from marin.execution.presence import Watch
from marin.execution.step import ExecutorStep
from marin.flags import Parser
from marin.parallel import distributed
from marin.storage.prefix import resolve_prefix


def main(arguments: Sequence[str]) -> None:
    """Runs the experiment's module as if it were started alone, or joins the process that does."""
    parser = Parser(prog="python -m marin.run.together", description=__doc__, add_help=False)
    parser.add_argument("module", help="the experiment, such as experiments.speedrun.hello_world.main")
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        return
    with clean_exit():
        if arguments[0].startswith("-") or _is_missing(arguments[0]):
            raise ConfigError(
                f"there is no module {arguments[0]!r}: name one, such as experiments.speedrun.hello_world.main"
            )
        sys.argv = list(arguments)
        with _part_of_this_process(arguments[1:]):
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _part_of_this_process(arguments: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """What the experiment is to run in: process 0 shows that it is there, the others follow it instead of running steps.

    It begins before the experiment is imported, as that may fail in one of the processes.
    """
    index, environment = distributed.process_index(os.environ), os.environ
    if distributed.name_of_start(environment) is None:
        return contextlib.nullcontext()
    if {"-h", "--help"} & set(arguments) or (flags := parse_flags(arguments)).dry_run:
        if index > 0:
            executor.intercept.set(lambda steps, description: None)
        return contextlib.nullcontext()
    prefix = resolve_prefix(flags.prefix)
    if flags.check:
        executor.intercept.set(lambda steps, description: _check(steps, description, prefix, flags, index))
        return contextlib.nullcontext()
    if index > 0:
        watch = distributed.watch_process_0(prefix, environment)
        executor.intercept.set(lambda steps, description: _follow(steps, prefix, flags, index, watch))
    return distributed.show_process_0(prefix, environment)


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # one of the packages that it is in
        return True


def _follow(
    steps: Sequence[ExecutorStep], prefix: str, flags: ExecutorMainConfig, index: int, watch: Watch | None
) -> None:
    """Takes part in the training steps of the experiment, as process `index`."""
    follow(
        steps,
        prefix,
        index,
        distributed.leads,
        watch=watch,
        run_only=flags.run_only,
        force_run_failed=flags.force_run_failed,
    )


def _check(
    steps: Sequence[ExecutorStep], description: str | None, prefix: str, flags: ExecutorMainConfig, index: int
) -> None:
    """Has process 0 check the steps, which the others have no part in.

    Raises:
        ConfigError: several processes would have to run one of them.
    """
    graph = Graph(steps, prefix)
    checked = targets_of(graph, flags.run_only) if flags.run_only else graph.nodes
    together = [node.name for node in checked if runs_together(node.step.config)]
    if together:
        raise ConfigError(
            f"`--check` runs steps in one process, and step `{together[0]}` is one that several train, whose log holds times, so"
            " that its bytes always differ: name the steps to check with `--run_only`"
        )
    if index == 0:
        executor.intercept.set(None)
        executor.executor_main(steps, description)


if __name__ == "__main__":
    main(sys.argv[1:])
