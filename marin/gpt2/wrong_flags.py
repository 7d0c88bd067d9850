"""What is wrong with a command's flags, in the words of all other commands.

tyro refuses them in a frame of several lines, with its own names of types, and names no flag that is near. So what it has refused
is read once more by the project's own parser, made from the same dataclass. Nothing is ever taken from that second reading.

What a config refuses that is made of flags, such as `SamplingOptions`, it calls by its fields' names, which are those of JSON and
of Python. A command's person has typed flags, so their names are put in place of those.
"""

import argparse
import dataclasses
import itertools
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union

import tyro

from marin.errors import ConfigError
from marin.flags import Parser, flag_of


def refuse(kind: type, given: Sequence[str]) -> None:
    """Says in one line what is wrong with arguments that tyro has refused; returns where the project's own parser finds nothing.

    Raises:
        ConfigError: a flag that is none, a value that a flag does not take, or one that is missing.
    """
    parser = Parser(allow_abbrev=False, add_help=False)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        _add(parser, field.name, hints[field.name], is_required=not has_default)
    known = {flag for action in parser._actions for flag in action.option_strings}
    parser.parse_args([_with_dashes(word, known) for word in given])


def refuse_flags_without_values(kind: type, given: Sequence[str]) -> None:
    """Refuses a flag of several values that stands there with none, which tyro takes for no values at all: a script's empty variable
    must not mean the default.

    Raises:
        ConfigError: naming it.
    """
    hints = typing.get_type_hints(kind)
    several = {flag_of(name) for name, hint in hints.items() if typing.get_origin(hint) is tuple}
    for word, after in itertools.pairwise([*given, "--"]):
        if word.replace("_", "-") in several and after.startswith("--"):
            raise ConfigError(f"argument {word}: expected at least one argument; --help lists the flags")


def flags_of(kind: type) -> dict[str, str]:
    """By the name of a dataclass's field the flag that it is: `--top-k` for `top_k`."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: flag_of(name)
        for name, hint in hints.items()
        if tyro.conf.Positional not in getattr(hint, "__metadata__", ())
    }


def _with_dashes(word: str, known: set[str]) -> str:
    """A flag in the spelling that the parser knows, as tyro takes underscores too."""
    flag, equals, value = word.partition("=")
    dashed = flag.replace("_", "-")
    return f"{dashed}{equals}{value}" if dashed in known else word


def _add(parser: Parser, name: str, hint: Any, *, is_required: bool) -> None:
    """A field as the flag or the argument that tyro makes of it."""
    extras: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *rest = typing.get_args(hint)
        extras = tuple(rest)
    aliases = [alias for extra in extras for alias in getattr(extra, "aliases", None) or ()]
    flags = [name] if tyro.conf.Positional in extras else [flag_of(name), *aliases]
    options: dict[str, Any] = {"required": True} if is_required and flags != [name] else {}
    if hint is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif typing.get_origin(hint) is tuple:
        options["nargs"] = "*"
    else:
        options["type"] = _reader_of(hint)
    parser.add_argument(*flags, **options)


def _reader_of(hint: Any) -> Callable[[str], Any]:
    """Refuses a value that is none of a type's."""
    several = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    words: list[str] = []
    for each in several:
        if typing.get_origin(each) is Literal:
            words += map(str, typing.get_args(each))
        elif each is bool:
            words += ["True", "False"]
    numbers = [number for number in (int, float) if number in several]

    def read(text: str) -> None:
        if text in words or str in several or (text == str(None) and type(None) in several):
            return
        for number in numbers:
            try:
                number(text)
                return
            except ValueError:
                continue
        taken = ["a whole number" if number is int else "a number" for number in numbers] or words
        raise argparse.ArgumentTypeError(f"{text!r} is not taken: use {' or '.join(taken)}")

    return read
