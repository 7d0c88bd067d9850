"""How the commands in `scripts/` read their flags and end: one message for a mistake, and the usual exit statuses."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from marin.errors import clean_exit

Flags = TypeVar("Flags")


def parse_flags(kind: type[Flags], description: str | None, arguments: Sequence[str] | None = None) -> Flags:
    """The flags of a dataclass; `--help` prints and exits.

    A first argument `--`, which launchers pass on, is taken off.
    """
    import tyro

    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--"]:
        given = given[1:]
    return tyro.cli(kind, args=given, description=description)


def run_command(main: Callable[[], None]) -> None:
    """Runs a script's `main`; errors that a person can act on become one message and exit status 2."""
    with clean_exit():
        main()
