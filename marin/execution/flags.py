"""The flags of `executor_main`, with one clear message for whatever is wrong with them."""

import argparse
import dataclasses
import json
import os
import re
import shlex
from collections.abc import Sequence

from marin.errors import ConfigError
from marin.flags import Parser, flag_of

RUNNERS = ("local", "ray")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# As a regular expression `[train]` and `['train']` are one character of these, which nearly every name has.
_LIST_WITHOUT_QUOTES = re.compile(r"""\[([^\]]*(?:['",]|\w{3})[^\]]*)\]""")


@dataclasses.dataclass(frozen=True)
class ExecutorMainConfig:
    """How to run a graph of steps; nothing here is part of a step's identity.

    Args:
        prefix: directory or URL below which outputs lie; None takes `MARIN_PREFIX`, then `local_store`.
        executor_info_base_path: where the record of the run goes; None takes `{prefix}/experiments`.
        dry_run: only say what would be done.
        force_run_failed: run steps again that failed in an earlier run.
        run_only: regular expressions; only steps whose name has a match, and what they depend on.
        max_concurrent: how many steps run at once. With 1 they run in this process, one after the other; with more,
            each in a process of its own.
        runner: "local" runs steps on this machine, "ray" on the cluster that `RAY_ADDRESS` names; None takes `MARIN_RUNNER`,
            then "local". On a cluster `max_concurrent` is a limit only where it is above 1.
        check: run finished steps once more, into scratch directories, and compare; nothing else is run.
    """

    prefix: str | None = None
    executor_info_base_path: str | None = None
    dry_run: bool = False
    force_run_failed: bool = True
    run_only: tuple[str, ...] | None = None
    max_concurrent: int = 1
    runner: str | None = None
    check: bool = False

    def __post_init__(self) -> None:
        source = "--runner" if self.runner is not None else "MARIN_RUNNER"
        object.__setattr__(self, "runner", self.runner or os.environ.get("MARIN_RUNNER") or RUNNERS[0])
        if self.runner not in RUNNERS:
            raise ConfigError(f"`{source}` is {self.runner!r}: use {' or '.join(RUNNERS)}")
        if self.max_concurrent < 1:
            raise ConfigError(f"`--max_concurrent` is {self.max_concurrent}: use a whole number of at least 1")
        for pattern in self.run_only or ():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"`--run_only` has {pattern!r}, which is no regular expression: {error}") from None


def parse_flags(arguments: Sequence[str], description: str | None = None) -> ExecutorMainConfig:
    """The config that the command line asks for; `--help` prints and exits.

    Raises:
        ConfigError: an unknown flag, or a value that a flag does not take.
    """
    parser = Parser(usage="%(prog)s [FLAGS]", description=description, allow_abbrev=False)
    default_of = {field.name: field.default for field in dataclasses.fields(ExecutorMainConfig)}

    def add(name: str, help_text: str, **options: object) -> None:
        spellings = dict.fromkeys((f"--{name}", flag_of(name)))
        parser.add_argument(*spellings, default=default_of[name], help=help_text, **options)  # type: ignore[arg-type]

    boolean = {"nargs": "?", "const": True, "type": _parse_boolean, "metavar": "BOOL"}
    add("prefix", "directory or URL below which outputs lie (default: $MARIN_PREFIX, then local_store)")
    add("executor_info_base_path", "where the record of the run goes (default: PREFIX/experiments)", metavar="PATH")
    add("dry_run", "say what would be done, and write nothing", **boolean)
    add("force_run_failed", "run steps again that failed in an earlier run (default: true)", **boolean)
    add(
        "run_only",
        "run only steps whose names match, and what they depend on: a regular expression or a JSON list of them",
        type=_parse_patterns,
        metavar="REGEX",
    )
    add(
        "max_concurrent",
        "how many steps may run at once, each in a process of its own (default: 1, in this process)",
        type=_parse_count,
        metavar="N",
    )
    add("runner", "where steps run: local, or ray for the cluster at $RAY_ADDRESS (default: $MARIN_RUNNER, then local)")
    add("check", "run finished steps once more into scratch directories, and name the first differing bytes", **boolean)
    return ExecutorMainConfig(**vars(parser.parse_args(list(arguments))))


def _parse_boolean(text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false") from None


def _parse_count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _parse_patterns(text: str) -> tuple[str, ...]:
    if not text.strip():  # as of a variable that is not set: it would match every name
        raise argparse.ArgumentTypeError("is blank: give a regular expression, or leave it out to run all steps")
    try:
        patterns = json.loads(text)
    except ValueError:
        if meant := _LIST_WITHOUT_QUOTES.fullmatch(text):
            names = [name.strip(" '\"") for name in meant[1].split(",")]
            raise argparse.ArgumentTypeError(
                f"{text} looks like a list, but not like JSON (a shell takes quotes away): write"
                f" {shlex.quote(json.dumps(names, ensure_ascii=False))}"
            ) from None
        return (text,)
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        return tuple(patterns)
    return (text,)
