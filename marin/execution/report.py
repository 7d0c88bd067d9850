"""What the executor prints: the dry run's list and the table at the end of a run."""

from collections import Counter
from collections.abc import Mapping

from marin.execution import logs
from marin.execution.graph import Node
from marin.execution.plan import Action, Decision
from marin.execution.runner import Result

_WIDTH_WITHOUT_TERMINAL = 240
_REASON_SHOWN = 160
_FAILURE_SHOWN = 60  # of what a line above the table says in full, and the error below it
_ROWS_SHOWN = 60  # in a larger graph the steps that were skipped are only counted


def print_dry_run(decisions: Mapping[Node, Decision], prefix: str) -> None:
    """Each step in order: what would be done, why, and the whole output path on a line of its own for copying."""
    for node, decision in decisions.items():
        print(f"{decision.action.would:<13} {node.name}: {decision.reason}")
        print(f"{'':<13} {node.output_path}")
    counts = Counter(decision.action for decision in decisions.values())
    parts = [f"{counts[action]} {action.would}" for action in Action if counts[action]]
    print(f"dry run: {len(decisions)} steps under {prefix}: {', '.join(parts) or 'none'}; nothing was run or written")


def print_summary(results: Mapping[Node, Result]) -> None:
    """One line when there was nothing to do, else a table with a row a step."""
    if all(result.kind == "skipped" for result in results.values()):
        logs.announce(f"nothing to do: all {len(results)} steps are done")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("step", overflow="fold")  # points of a sweep differ in their ends
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason")
    table.add_column("seconds", justify="right")
    table.add_column("path", overflow="fold")
    shown = {node: each for node, each in results.items() if each.kind != "skipped" or len(results) <= _ROWS_SHOWN}
    for node, result in shown.items():
        seconds = f"{result.seconds:.1f}" if result.seconds else ""
        reason = result.reason.partition("\n")[0]
        room = _FAILURE_SHOWN if result.kind == "failed" else _REASON_SHOWN
        reason = reason if len(reason) <= room else f"{reason[:room]}..."
        table.add_row(*map(_plain_text, (node.name, result.kind, reason, seconds, node.output_path)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    with console.capture() as printed:  # its own printing exits where nobody reads any more
        console.print(table)
    logs.announce(printed.get().removesuffix("\n"))
    if len(shown) < len(results):
        logs.announce(f"and {len(results) - len(shown):,} steps that were skipped, as they are done or not needed")


def _plain_text(text: str) -> str:
    from rich.markup import escape

    return escape(text)
