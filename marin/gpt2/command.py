"""What the commands in `scripts/` share: flags, W&B, and how they end: one message for a mistake, the usual exit statuses."""

import contextlib
import dataclasses
import io
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from marin.errors import ConfigError, clean_exit, send_nowhere
from marin.flags import described, flag_of, in_flags
from marin.main_module import module_of

_DESCRIPTION = "DESCRIPTION"
"""Stands where the description of a command goes."""

NO_LOGGING = "dummy"
"""The `--run` that is not logged on W&B."""

Flags = TypeVar("Flags")


def parse_flags(kind: type[Flags], description: str | None, arguments: Sequence[str] | None = None) -> Flags:
    """The flags of a dataclass; `--help` prints and exits.

    A first argument `--`, which launchers pass on, is taken off. What a number may be is said by the dataclass's own
    `__post_init__`, so that a mistake ends a command before it has opened, fetched or loaded anything.

    Raises:
        ConfigError: a flag that there is not, or a value that it does not take.
    """
    import tyro

    from marin.gpt2.wrong_flags import flags_of, refuse, refuse_flags_without_values

    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--"]:
        given = given[1:]
    # By default tyro names the script's file, which cannot be run as it asks people to.
    prog = f"python -m {module_of(kind)}"
    shown, complaint = _Kept(), io.StringIO()
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(complaint):
            flags = tyro.cli(kind, args=given, description=_DESCRIPTION, prog=prog)
    except SystemExit as ended:
        if isinstance(ended.__context__, ConfigError):  # from the dataclass: tyro would break its message in a frame
            raise ConfigError(in_flags(str(ended.__context__), flags_of(kind))) from None
        if ended.code:
            refuse(kind, given)
        print(complaint.getvalue(), end="", file=sys.stderr)
        raise
    finally:
        # Tyro would make each paragraph one line, however wide, and put two blank lines before what is indented.
        print(shown.getvalue().replace(_DESCRIPTION, described(description or "")), end="")
    print(complaint.getvalue(), end="", file=sys.stderr)
    refuse_flags_without_values(kind, given)
    return flags


class _Kept(io.StringIO):
    """Keeps what is printed, with the colours and the frames that standard output can show."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = sys.stdout

    def isatty(self) -> bool:
        return self._shown.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown.encoding


def check_numbers(flags: Any, above_zero: Iterable[str] = (), or_minus_one: Iterable[str] = ()) -> None:
    """Checks the fields that are named, where they are not None: finite, and above 0; in `or_minus_one` -1 stands for none.

    Raises:
        ConfigError: a number that nothing can be done with, which would else mean "none" without a word.
    """
    for names, ends in ((above_zero, "use a number above 0"), (or_minus_one, "use a number above 0, or -1 for none")):
        for name in names:
            value = getattr(flags, name)
            is_none = value is None or (value == -1 and names is or_minus_one)
            if not is_none and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"`{flag_of(name)}` is {value}: {ends}")


def top_k_of(asked: int) -> int | None:
    """What `--top-k` asks of sampling: 0 stands for all tokens.

    Raises:
        ConfigError: it is below 0.
    """
    if asked < 0:
        raise ConfigError(f"`--top-k` is {asked}: use at least 1, or 0 for all tokens")
    return asked or None


def flags_table(flags: Any) -> dict[str, Any]:
    """The flags of a command that have a value, defaults too, for its section of the report: `--depth` with 12."""
    values = dataclasses.asdict(flags)
    return {flag_of(name): value for name, value in values.items() if value not in (None, "", ())}


def run_name(asked: str, tag: str) -> str:
    """What a run is called, by its `--run`; one that is not logged has its tag for a name."""
    return tag if asked == NO_LOGGING else asked


def keep_off_wandb_unless_named(asked: str) -> None:
    """Turns W&B off for this process where `--run` does not name a run."""
    if asked == NO_LOGGING:
        os.environ["WANDB_MODE"] = "disabled"


def run_command(main: Callable[[], None]) -> None:
    """Runs a script's `main`; errors that a person can act on become one message and exit status 2.

    Where the reader of its output has left (`... | head`) it ends in silence, as a program that SIGPIPE ends: its work is not done,
    and a pipeline must not go on to what needs it.
    """
    with clean_exit():
        try:
            try:
                main()
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            send_nowhere(sys.stdout)  # else Python's last flush would fail too
            raise SystemExit(128 + signal.SIGPIPE) from None
