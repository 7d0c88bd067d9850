"""Configs as plain JSON values, for `run.json`, results files and what a dry run prints."""

import dataclasses
import enum
from pathlib import PurePath
from typing import Any

from marin.execution.step import ExecutorStep


def config_to_json(value: Any, *, omit_defaults: bool = False) -> Any:
    """A config as dicts, lists, strings, numbers and None, in the order of its fields.

    Enums become their name, steps and functions their `repr`.

    Args:
        omit_defaults: leave out fields marked `marin.omit_default` that hold their default, as a dry run prints.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, ExecutorStep):
        return repr(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: config_to_json(getattr(value, field.name), omit_defaults=omit_defaults)
            for field in dataclasses.fields(value)
            if not (omit_defaults and _is_omitted(field, getattr(value, field.name)))
        }
    if isinstance(value, dict):
        return {str(key): config_to_json(item, omit_defaults=omit_defaults) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [config_to_json(item, omit_defaults=omit_defaults) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return repr(value)


def _is_omitted(field: dataclasses.Field[Any], value: Any) -> bool:
    return bool(field.metadata.get("marin.omit_default")) and value == field.default
