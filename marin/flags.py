"""How commands read their flags."""

import argparse
import contextlib
import difflib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from marin.errors import ConfigError
from marin.main_module import command_of_main

_SHOWN = re.compile(r" +\S.*? {2,}(?=\S)")  # of an indented line: what it shows, and the gap before what explains it
_LEAST_WIDTH = 24


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors as all others: one line that says what to do next, and exit status 2."""

    def __init__(self, **settings: Any) -> None:
        # By default argparse names the script's file, which cannot be run as it asks people to.
        defaults: dict[str, Any] = {"formatter_class": HelpFormatter, "prog": command_of_main()}
        super().__init__(**defaults | settings)
        self._given: list[str] = []

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._given, namespace)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self._unknown_flag() or message}; --help lists the flags")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Where a file stands in the place of the only verb, it is that verb which was left out."""
        verbs = list(action.choices or ()) if isinstance(action, argparse._SubParsersAction) else []
        if len(verbs) == 1 and value not in verbs and ("." in value or os.sep in value):
            place = self._given.index(value)
            rest = shlex.join(self._given[place:])
            self._given = self._given[:place]  # what follows is the verb's
            raise argparse.ArgumentError(
                None, f"`{verbs[0]}` is left out before {value}: use `{self.prog} {verbs[0]} {rest}`"
            )
        super()._check_value(action, value)

    def _unknown_flag(self) -> str | None:
        """The first flag that nothing here takes. What follows it is read as something else, so it is the mistake to name."""
        known = self._flags()
        for word in self._given:
            if word == "--" or self._takes_rest(word):
                break
            flag = word.partition("=")[0]
            is_known = flag in known or (self.allow_abbrev and any(name.startswith(flag) for name in known))
            if flag.startswith("--") and not is_known:
                close = difflib.get_close_matches(flag, known, n=1)
            elif flag.startswith("-") and not is_known and f"-{flag}" in known:
                close = [f"-{flag}"]
            else:
                continue
            return f"there is no flag `{flag}`" + (f", but there is `{close[0]}`" if close else "")
        return None

    def _verbs(self) -> dict[str, "Parser"]:
        return {
            name: verb
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, verb in action.choices.items()
        }

    def _flags(self) -> list[str]:
        """Those of this parser and of its verbs."""
        return [*self._option_string_actions, *(flag for verb in self._verbs().values() for flag in verb._flags())]

    def _takes_rest(self, word: str) -> bool:
        """Whether what follows a word is not read here but passed on: after a verb that does so, and anywhere in such a one."""
        parser = self._verbs().get(word, self)
        return any(action.nargs == argparse.REMAINDER for action in parser._actions)


def flag_of(field: str) -> str:
    """The flag that a field of a dataclass is: `--top-k` for `top_k`."""
    return f"--{field.replace('_', '-')}"


def check_at_least(least: int, flags: object, *fields: str) -> None:
    """Raises:
    ConfigError: naming the first flag whose number, where it has one, is below `least`.
    """
    for field in fields:
        value = getattr(flags, field)
        if value is not None and value < least:
            raise ConfigError(f"`{flag_of(field)}` is {value}: use at least {least}")


@contextlib.contextmanager
def named_as_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """What a config refuses in this block is said of the flags that its fields were made from, which is what a person has typed.

    Args:
        flags: by the field's name the flag: `--device-batch-size` for `per_device_parallelism`.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(in_flags(str(error), flags)) from None


def in_flags(message: str, flags: Mapping[str, str]) -> str:
    """What is wrong with fields of a config, in the names of the flags that they were made from.

    Args:
        flags: by the field's name the flag.
    """
    names = "|".join(map(re.escape, flags))
    return re.sub(rf"(?:config field )?`({names})`", lambda found: f"`{flags[found[1]]}`", message)


class HelpFormatter(argparse.HelpFormatter):
    """Fills the paragraphs of a description to the terminal's width, and keeps its indented lines: commands, and tables.

    Where an indented line has something shown, a gap, and what explains it, the explanation goes on below its beginning.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _filled(" ".join(text.split()), width, "", "").splitlines()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[tuple[str, str]] = []  # what each begins with, and the words that are broken to the width
        for line in text.strip().splitlines():
            shown = _SHOWN.match(line)
            begin = shown[0] if shown else line[: len(line) - len(line.lstrip())]
            words = line[len(begin) :]
            before, said = lines[-1] if lines else ("", "")
            goes_on = begin == before == "" or (begin.isspace() and before.strip() and len(begin) == len(before))
            if goes_on and said and words:
                lines[-1] = (before, f"{said} {words}")
            else:
                lines.append((begin, words))
        return "".join(f"{_broken(begin, words, width)}\n" for begin, words in lines)


def described(text: str) -> str:
    """A description as `--help` shows it, for parsers that are not ours."""
    formatter = HelpFormatter(prog="")
    return formatter._fill_text(text, formatter._width, "").rstrip("\n")


def _broken(begin: str, words: str, width: int) -> str:
    """`words` after `begin`, and their further lines below the first. A command, after spaces alone, stays on one line."""
    if begin.isspace():
        return f"{begin}{words}"
    if begin and width - len(begin) < _LEAST_WIDTH:
        return f"{begin.rstrip()}\n{_filled(words, width, ' ' * 6, ' ' * 6)}"
    return _filled(words, width, begin, " " * len(begin))


def _filled(words: str, width: int, first: str, further: str) -> str:
    return textwrap.fill(
        words, width, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
