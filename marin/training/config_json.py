"""Configs as plain JSON values, for `run.json`, results files and what a dry run prints."""

import dataclasses
import enum
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from marin.execution.step import ExecutorStep
from marin.resources import Resources

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object that a config holds, another in each process


def config_to_json(value: Any, *, omit_defaults: bool = False, omit_placement: bool = False) -> Any:
    """A config as dicts, lists, strings, numbers and None, in the order of its fields.

    Enums become their name, steps and functions their `repr`.

    Args:
        omit_defaults: leave out fields marked `marin.omit_default` that hold their default, as a dry run prints.
        omit_placement: leave out what says where or how a step runs, not what it makes.
    """

    def inner(item: Any) -> Any:
        return config_to_json(item, omit_defaults=omit_defaults, omit_placement=omit_placement)

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, ExecutorStep):
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: (field, getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {
            name: inner(item)
            for name, (field, item) in fields.items()
            if not (omit_defaults and _is_omitted(field, item)) and not (omit_placement and _is_placement(field, item))
        }
    if isinstance(value, dict):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [inner(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return repr(value)


def changes(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The settings that differ between two configs as JSON: path, before, now. Those that only one knows are passed over."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() & now.keys()):
            yield from changes(before[key], now[key], f"{name}.{key}" if name else key)
    elif _ADDRESS.sub("", str(before)) != _ADDRESS.sub("", str(now)):
        yield name, before, now


def _is_omitted(field: dataclasses.Field[Any], value: Any) -> bool:
    return bool(field.metadata.get("marin.omit_default")) and value == field.default


def _is_placement(field: dataclasses.Field[Any], value: Any) -> bool:
    return bool(field.metadata.get("marin.placement")) or isinstance(value, Resources)
