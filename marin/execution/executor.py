"""Runs graphs of steps: `executor_main(steps=[...])` at the end of an experiment file, or `Executor` in a program.

Each step runs at most once for each identity: its output path holds its fingerprint, and a step that succeeded there is
not run again. Steps run in this process, one after the other, each after what it depends on. A failure stops what
depends on it; everything else still runs. Any number of processes may run the same graph under one local prefix at the same
time: a lease on each output path lets one of them work while the others wait.
"""

import re
import sys
from collections.abc import Mapping, Sequence

from marin import errors
from marin.errors import ConfigError, StepFailedError
from marin.execution import provenance, report
from marin.execution.flags import ExecutorMainConfig, parse_flags
from marin.execution.graph import Graph, Node
from marin.execution.plan import Action, Decision, plan
from marin.execution.runner import Outcome, mark_dependents_failed, run_step
from marin.execution.step import (
    ExecutorStep,
    InputName,
    OutputName,
    VersionedValue,
    output_path_of,
    placement,
    this_output_path,
    versioned,
)
from marin.storage import files
from marin.storage.prefix import check_writable, resolve_prefix

__all__ = [
    "Executor",
    "ExecutorMainConfig",
    "ExecutorStep",
    "InputName",
    "OutputName",
    "VersionedValue",
    "executor_main",
    "output_path_of",
    "placement",
    "this_output_path",
    "versioned",
]


def executor_main(steps: Sequence[ExecutorStep], description: str | None = None) -> None:
    """Runs, or with `--dry_run` describes, `steps` and what they depend on, as the command line says (see `--help`).

    Exits with status 2 and one message for a mistake or a failed step, 130 after Ctrl-C and 143 after SIGTERM.
    """
    with errors.clean_exit():
        config = parse_flags(sys.argv[1:], description)
        executor = Executor(config, description)
        if config.dry_run:
            executor.dry_run(steps)
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

    def run(self, steps: Sequence[ExecutorStep]) -> list[Outcome]:
        """Runs what is not done yet, in order, and prints a line for each step and a table.

        A config with a method `check_before_run()` can refuse, by raising, before any step has begun.

        Raises:
            StepFailedError: a step failed, now or in an earlier run; all that does not depend on it was run.
            ExecutionError: an output path belongs to another step; nothing was run.
            StorageError: the prefix cannot be written; nothing was run.
        """
        graph = Graph(steps, self.prefix)
        decisions = self._plan(graph)
        if any(decision.action is not Action.SKIP for decision in decisions.values()):
            check_writable(self.prefix)
            _check_before_run(decisions)
            base_path = self._config.executor_info_base_path or files.join(self.prefix, "experiments")
            provenance.write_experiment_record(base_path, graph, list(decisions), self._description)
        outcomes: dict[Node, Outcome] = {}
        for node, decision in decisions.items():
            outcomes[node] = self._advance(node, decision, graph, outcomes)
        report.print_summary(list(outcomes.values()))
        _raise_if_failed(list(outcomes.values()))
        return list(outcomes.values())

    def output_path(self, step: ExecutorStep) -> str:
        """Where `step` writes, or has written."""
        return Graph([step], self.prefix).node(step).output_path

    def _plan(self, graph: Graph) -> dict[Node, Decision]:
        return plan(graph, self._targets(graph), force_run_failed=self._config.force_run_failed)

    def _targets(self, graph: Graph) -> list[Node]:
        patterns = self._config.run_only
        if patterns is None:
            return graph.targets
        chosen = [node for node in graph.nodes if any(re.search(pattern, node.name) for pattern in patterns)]
        if not chosen:
            names = ", ".join(node.name for node in graph.nodes[:20])
            raise ConfigError(f"`--run_only` {list(patterns)} matches no step: the steps are {names}")
        return chosen

    def _advance(self, node: Node, decision: Decision, graph: Graph, outcomes: dict[Node, Outcome]) -> Outcome:
        if decision.action is Action.SKIP:
            _announce(f"skip {node.name}: {decision.reason} -> {node.output_path}")
            return Outcome(node, "skipped", decision.reason)
        stopped = [other.name for other in node.dependencies if not outcomes[other].is_done]
        if stopped:
            mark_dependents_failed(node)
            return Outcome(node, "not run", f"needs `{stopped[0]}`, which is not done")
        if decision.action is Action.BLOCKED:
            return Outcome(node, "not run", decision.reason)
        return run_step(node, graph, force_run_failed=self._config.force_run_failed, announce=_announce)


def _check_before_run(decisions: Mapping[Node, Decision]) -> None:
    for node, decision in decisions.items():
        check = getattr(node.step.config, "check_before_run", None)
        if decision.action is not Action.SKIP and callable(check):
            check()


def _announce(message: str) -> None:
    print(message, flush=True)


def _raise_if_failed(outcomes: Sequence[Outcome]) -> None:
    unfinished = [outcome for outcome in outcomes if not outcome.is_done]
    if not unfinished:
        return
    failed = [outcome for outcome in unfinished if outcome.kind == "failed"]
    first = (failed or unfinished)[0]
    error = StepFailedError if failed else errors.PreviousStepFailedError
    raise error(
        f"{len(unfinished)} of {len(outcomes)} steps are not done; step `{first.node.name}`: {first.reason}\n"
        "Finished steps are kept: mend the cause and run the same command again."
    )
