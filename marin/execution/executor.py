"""Runs graphs of steps: `executor_main(steps=[...])` at the end of an experiment file, or `Executor` in a program.

Each step runs at most once for each identity: its output path holds its fingerprint, and a step that succeeded there is
not run again. Steps run in this process, one after the other, or with `--max_concurrent N` up to N at once in processes
of their own, each after what it depends on. A failure stops what depends on it; everything else still runs. Any number
of processes and machines may run the same graph under one prefix at the same time: a lease on each step lets one of
them work while the others wait, and only one can commit (see `marin.storage.lease` and `marin.execution.attempts`).
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Protocol

from marin import errors
from marin.errors import ConfigError, StepFailedError
from marin.execution import attempts, checking, logs, provenance, report
from marin.execution.flags import ExecutorMainConfig, parse_flags
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, Decision, plan, targets_of
from marin.execution.processes import ChildProcesses
from marin.execution.runner import Result, mark_dependency_failed, run_step
from marin.execution.step import (
    ExecutorStep,
    InputName,
    OutputName,
    VersionedValue,
    added_later,
    output_path_of,
    placement,
    this_output_path,
    versioned,
)
from marin.execution.task import StepTask, make_task
from marin.storage import files
from marin.storage.prefix import check_writable, resolve_place, resolve_prefix

__all__ = [
    "Executor",
    "ExecutorMainConfig",
    "ExecutorStep",
    "InputName",
    "OutputName",
    "VersionedValue",
    "added_later",
    "executor_main",
    "output_path_of",
    "placement",
    "this_output_path",
    "versioned",
]

Intercept = Callable[[Sequence[ExecutorStep], str | None], None]
intercept: ContextVar[Intercept | None] = ContextVar("intercept", default=None)
_SKIPS_SHOWN = 20


def executor_main(steps: Sequence[ExecutorStep], description: str | None = None) -> None:
    """Runs, or with `--dry_run` describes, `steps` and what they depend on, as the command line says (see `--help`).

    Whoever has set `intercept` gets the steps instead: `marin explain` asks an experiment file for them that way.

    Exits with status 2 and one message for a mistake (an empty list is one) or a failed step, 130 after Ctrl-C and 143 after
    SIGTERM.
    """
    handler = intercept.get()
    if handler is not None:
        handler(steps, description)
        return
    with errors.clean_exit():
        config = parse_flags(sys.argv[1:], description)
        executor = Executor(config, description)
        if isinstance(steps, Sized) and not steps:
            raise ConfigError(
                "there is nothing to run: `steps` is empty; pass the steps whose outputs you want, as in"
                " executor_main(steps=[step])"
            )
        if config.dry_run:
            with errors.reader_may_leave():
                executor.dry_run(steps)
        elif config.check:
            executor.check(steps)
        else:
            executor.run(steps)


class Executor:
    """Runs steps under one prefix.

    Args:
        config: which prefix, which steps; `dry_run` is for `executor_main`, call the method instead.
        description: of the experiment, for its record.
    """

    def __init__(self, config: ExecutorMainConfig | None = None, description: str | None = None):
        self._config = config or ExecutorMainConfig()
        self._description = description
        self.prefix = resolve_prefix(self._config.prefix)
        records = self._config.executor_info_base_path
        self._records = (
            resolve_place(records, "--executor_info_base_path") if records else files.join(self.prefix, "experiments")
        )

    def dry_run(self, steps: Sequence[ExecutorStep]) -> dict[Node, Decision]:
        """Prints what `run` would do and why; reads the storage and writes nothing.

        A config with a method `dry_run_info() -> str | None` has its text printed first.
        """
        graph = Graph(steps, self.prefix)
        decisions = self._plan(graph)
        for node in decisions:
            describe = getattr(node.step.config, "dry_run_info", None)
            text = describe() if callable(describe) else None
            if text:
                print(text)
        report.print_dry_run(decisions, self.prefix)
        return decisions

    def run(self, steps: Sequence[ExecutorStep]) -> dict[Node, Result]:
        """Runs what is not done yet, in order, and prints a line for each step and a table; returns what became of each.

        A config with a method `check_before_run(on_this_machine=...)` can refuse, by raising, before any step has begun.

        Raises:
            StepFailedError: a step failed, now or in an earlier run; all that does not depend on it was run.
            ExecutionError: an output path belongs to another step; nothing was run.
            StorageError: the prefix cannot be written; nothing was run.
        """
        graph = Graph(steps, self.prefix)
        decisions = self._plan(graph)
        if any(decision.action is not Action.SKIP for decision in decisions.values()):
            check_writable(self.prefix)
            _check_before_run(decisions, on_this_machine=self._config.runner == "local")
            tasks = [make_task(node, graph) for node in decisions]
            with files.placed_by("--executor_info_base_path" if self._config.executor_info_base_path else "--prefix"):
                provenance.write_experiment_record(self._records, self.prefix, tasks, self._description)
        results = self._run_all(graph, decisions)
        report.print_summary(results)
        _raise_if_failed(results)
        return results

    def check(self, steps: Sequence[ExecutorStep]) -> list[checking.Checked]:
        """Runs finished steps (all of `steps` and what they depend on, or what `run_only` names) again and compares.

        Raises:
            StepFailedError: a step made other bytes than before.
            ConfigError: a step is not done, or its output is not on this machine.
        """
        graph = Graph(steps, self.prefix)
        nodes = self._targets(graph) if self._config.run_only else graph.nodes
        checked = [checking.check_again(make_task(node, graph), logs.announce) for node in nodes]
        differing = [result.name for result in checked if result.difference is not None]
        if differing:
            raise StepFailedError(
                f"{len(differing)} of {len(checked)} steps made other bytes when they ran again: {', '.join(differing)}"
            )
        return checked

    def output_path(self, step: ExecutorStep) -> str:
        """Where `step` writes, or has written."""
        return Graph([step], self.prefix).node(step).output_path

    def _plan(self, graph: Graph) -> dict[Node, Decision]:
        return plan(graph, self._targets(graph), force_run_failed=self._config.force_run_failed)

    def _targets(self, graph: Graph) -> list[Node]:
        return targets_of(graph, self._config.run_only)

    def _run_all(self, graph: Graph, decisions: Mapping[Node, Decision]) -> dict[Node, Result]:
        force, context = self._config.force_run_failed, provenance.run_context
        _announce_skips(decisions)
        nothing_to_run = all(decision.action is Action.SKIP for decision in decisions.values())
        if self._config.runner == "ray" and not nothing_to_run:
            return self._on_ray(graph, decisions)
        if self._config.max_concurrent == 1 or nothing_to_run:

            def run_here(task: StepTask, wait: bool) -> Result:
                return run_step(task, context(), force_run_failed=force, announce=logs.announce, wait=wait)

            return _run_in_order(graph, decisions, run_here)
        children = ChildProcesses(context(), force_run_failed=force)
        return _run_at_once(graph, decisions, children, self._config.max_concurrent)

    def _on_ray(self, graph: Graph, decisions: Mapping[Node, Decision]) -> dict[Node, Result]:
        from marin.execution.ray_tasks import MOST_AT_ONCE, RayTasks

        tasks = RayTasks(provenance.run_context(), force_run_failed=self._config.force_run_failed, prefix=self.prefix)
        # The cluster's places are the limit, unless there is a lower one.
        limit = self._config.max_concurrent if self._config.max_concurrent > 1 else MOST_AT_ONCE
        return _run_at_once(graph, decisions, tasks, limit)


class Children(Protocol):
    """What runs single steps elsewhere: processes of this machine, or tasks of a cluster."""

    def run(self, task: StepTask) -> Result: ...

    def stop(self) -> None: ...


def _run_in_order(
    graph: Graph, decisions: Mapping[Node, Decision], run: Callable[[StepTask, bool], Result]
) -> dict[Node, Result]:
    """Runs each step after what it needs. A step that another process is running is put off as long as there are others
    to run, so that machines that run one graph share its work instead of waiting behind the first."""
    results: dict[Node, Result] = {}
    waiting = dict.fromkeys(decisions)
    while waiting:
        put_off: list[Node] = []
        began = len(waiting)
        for node in list(waiting):
            if any(other not in results for other in node.dependencies):
                continue
            try:
                settled = _settle(node, decisions[node], graph, results)
                results[node] = settled or run(make_task(node, graph), False)
            except errors.LeaseHeldError:
                put_off.append(node)
            else:
                del waiting[node]
        if len(waiting) == began:  # nothing is left but what others run, and what needs that
            first = put_off[0]
            results[first] = run(make_task(first, graph), True)
            del waiting[first]
    return {node: results[node] for node in decisions}


def _run_at_once(
    graph: Graph, decisions: Mapping[Node, Decision], children: Children, limit: int
) -> dict[Node, Result]:
    """Starts each step as soon as what it depends on is done and one of `limit` places is free.

    A step that another process is running takes a place, to wait for that, only while there is nothing else to start, so that
    machines that run one graph share its work.
    """
    results: dict[Node, Result] = {}
    running: dict[Future[Result], Node] = {}
    missing = {node: len(node.dependencies) for node in decisions}
    users: dict[Node, list[Node]] = {node: [] for node in decisions}
    for node in decisions:
        for other in node.dependencies:
            users[other].append(node)
    ready = deque(node for node, count in missing.items() if not count)
    held: deque[Node] = deque()

    def end(node: Node, result: Result) -> None:
        results[node] = result
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)

    with ThreadPoolExecutor(limit) as pool:
        try:
            while ready or held or running:
                while (ready or held) and len(running) < limit:
                    if not ready:
                        node = held.popleft()
                        running[pool.submit(children.run, make_task(node, graph))] = node
                        continue
                    node = ready.popleft()
                    settled = _settle(node, decisions[node], graph, results)
                    if settled is not None:
                        end(node, settled)
                    elif attempts.is_held(node.output_path):
                        held.append(node)
                    else:
                        running[pool.submit(children.run, make_task(node, graph))] = node
                if running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        node = running.pop(future)
                        end(node, future.result())
        except BaseException:
            children.stop()
            raise
    return {node: results[node] for node in decisions}


def _settle(node: Node, decision: Decision, graph: Graph, results: Mapping[Node, Result]) -> Result | None:
    """The result of a step that is not to be run; None for one that is."""
    if decision.action is Action.SKIP:
        return Result("skipped", decision.reason)
    stopped = [other.name for other in node.dependencies if not results[other].is_done]
    if stopped:
        mark_dependency_failed(make_task(node, graph))
        return Result("not run", f"needs `{stopped[0]}`, which is not done")
    if decision.action is Action.BLOCKED:
        return Result("not run", decision.reason)
    return None


def _announce_skips(decisions: Mapping[Node, Decision]) -> None:
    skipped = [(node, decision) for node, decision in decisions.items() if decision.action is Action.SKIP]
    for node, decision in skipped[:_SKIPS_SHOWN]:
        logs.announce(f"skip {node.name}: {decision.reason} -> {node.output_path}")
    if len(skipped) > _SKIPS_SHOWN:
        logs.announce(f"skip {len(skipped) - _SKIPS_SHOWN:,} more steps that are done or not needed")


def _check_before_run(decisions: Mapping[Node, Decision], *, on_this_machine: bool) -> None:
    for node, decision in decisions.items():
        check = getattr(node.step.config, "check_before_run", None)
        if decision.action is not Action.SKIP and callable(check):
            check(on_this_machine=on_this_machine)


def _raise_if_failed(results: Mapping[Node, Result]) -> None:
    unfinished = {node: result for node, result in results.items() if not result.is_done}
    if not unfinished:
        return
    failed = [node for node, result in unfinished.items() if result.kind == "failed"]
    first = failed[0] if failed else next(iter(unfinished))
    error = StepFailedError if failed else errors.PreviousStepFailedError
    raise error(
        f"{len(unfinished)} of {len(results)} steps are not done; step `{first.name}`: {unfinished[first].reason}\n"
        "Finished steps are kept: mend the cause and run the same command again."
    )
