"""What the executor prints: the dry run's list and the table at the end of a run."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from marin.execution import logs
from marin.execution.graph import Node
from marin.execution.plan import Action, Decision
from marin.execution.runner import Result

_WIDTH_WITHOUT_TERMINAL = 240
_REASON_SHOWN = 160
_FAILURE_SHOWN = 60  # of what a line above the table says in full, and the error below it
_ROWS_SHOWN = 60  # in a larger graph the steps that were skipped are only counted


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one step of a graph."""

    node: Node
    result: Result

    @property
    def kind(self) -> str:
        """One of "ran", "skipped", "waited", "failed" or "not run"."""
        return self.result.kind

    @property
    def reason(self) -> str:
        return self.result.reason

    @property
    def seconds(self) -> float:
        return self.result.seconds

    @property
    def is_done(self) -> bool:
        return self.result.is_done


def print_dry_run(decisions: Mapping[Node, Decision], prefix: str) -> None:
    """Each step in order: what would be done, why, and the whole output path on a line of its own for copying."""
    for node, decision in decisions.items():
        print(f"{decision.action.would:<13} {node.name}: {decision.reason}")
        print(f"{'':<13} {node.output_path}")
    counts = Counter(decision.action for decision in decisions.values())
    parts = [f"{counts[action]} {action.would}" for action in Action if counts[action]]
    print(f"dry run: {len(decisions)} steps under {prefix}: {', '.join(parts) or 'none'}; nothing was run or written")


def print_summary(outcomes: Sequence[Outcome]) -> None:
    """One line when there was nothing to do, else a table with a row a step."""
    if all(outcome.kind == "skipped" for outcome in outcomes):
        logs.announce(f"nothing to do: all {len(outcomes)} steps are done")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("step", overflow="fold")  # points of a sweep differ in their ends
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason")
    table.add_column("seconds", justify="right")
    table.add_column("path", overflow="fold")
    shown = [outcome for outcome in outcomes if outcome.kind != "skipped" or len(outcomes) <= _ROWS_SHOWN]
    for outcome in shown:
        seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
        reason = outcome.reason.partition("\n")[0]
        room = _FAILURE_SHOWN if outcome.kind == "failed" else _REASON_SHOWN
        reason = reason if len(reason) <= room else f"{reason[:room]}..."
        table.add_row(*map(_plain_text, (outcome.node.name, outcome.kind, reason, seconds, outcome.node.output_path)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    with console.capture() as printed:  # its own printing exits where nobody reads any more
        console.print(table)
    logs.announce(printed.get().removesuffix("\n"))
    if len(shown) < len(outcomes):
        logs.announce(f"and {len(outcomes) - len(shown):,} steps that were skipped, as they are done or not needed")


def _plain_text(text: str) -> str:
    from rich.markup import escape

    return escape(text)
