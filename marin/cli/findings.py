"""How `marin doctor` shows its findings in a terminal."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from marin.cli.doctor import Check

_WHOLE_LINES = 10_000
_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "problem": ("PROBLEM", "bold red")}


def _row(check: "Check") -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(width=7)
    row.add_column(width=16)
    row.add_column(overflow="fold")
    mark, style = _MARKS[check.state]
    row.add_row(Text(mark, style), check.name, Text(check.detail))
    if check.fix:
        row.add_row("", "", Text(f"-> {check.fix}", style))
    return row


def show(checks: Iterable["Check"]) -> list["Check"]:
    """Prints each finding as soon as it is made, then the count; returns them all."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WHOLE_LINES  # for a file or a program, which wants paths whole
    shown: list[Check] = []
    with console.status("looking at this machine"):
        for check in checks:
            if not shown or shown[-1].section != check.section:
                console.print(("\n" if shown else "") + f"[bold]{check.section}[/bold]")
            console.print(_row(check))
            shown.append(check)
    problems = sum(check.state == "problem" for check in shown)
    warnings = sum(check.state == "warn" for check in shown)
    console.print()
    if problems:
        console.print(f"{problems} problem(s) and {warnings} warning(s): fix the problems first", style="bold red")
    else:
        console.print(
            f"ready, with {warnings} warning(s)" if warnings else "ready", style="yellow" if warnings else "green"
        )
    return shown
