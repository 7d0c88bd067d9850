"""Whether a value of a config or of a file is a number. True and False are none, though Python takes them for 1 and 0.

Nor is a word a switch, though Python takes "no" for true.
"""

import dataclasses
import math
from typing import Any, TypeGuard

from marin.errors import ConfigError


def is_whole(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether it is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, neither infinite nor NaN, and no whole number that is too large for a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_whole(what: str, value: object, least: int = 1, *, or_none: bool = False) -> None:
    """Raises:
    ConfigError: if it is no whole number of at least `least`; the message begins with `what`.
    """
    if not (is_whole(value, least) or (or_none and value is None)):
        raise ConfigError(
            f"{what} is {value!r}: use a whole number of at least {least}{', or None' if or_none else ''}"
        )


def check_switches(what: str, config: Any) -> None:
    """Raises:
    ConfigError: if a field that the dataclass `config` declares as a bool is anything else; `what` has {} for its name.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type in (bool, "bool") and not isinstance(value, bool):
            raise ConfigError(f"{what.format(field.name)} is {value!r}: use True or False")
