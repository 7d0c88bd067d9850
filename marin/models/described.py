"""A model's config from the plain values that `run.json` holds of it, for any config class of this repository."""

import dataclasses
import enum
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from marin.errors import ConfigError
from marin.nn import Llama3RotaryConfig, RotaryConfig

_PACKAGES = ("marin", "experiments")
# A record states the fields of a rotation and not its class: these two are told apart by their fields.
_ROTATIONS = (RotaryConfig, Llama3RotaryConfig)


def check_rope(rope: object) -> None:
    """Looks whether a decoder's rotation comes back from `run.json` as it is.

    Raises:
        ConfigError: it would come back as another, with which the same weights compute something else.
    """
    if type(rope) not in _ROTATIONS:
        own = isinstance(rope, RotaryConfig)
        why = (
            ", as a run's record does not tell other classes apart; for another rotation give the config a field of its own"
            if own
            else ""
        )
        raise ConfigError(
            f"`rope` is {rope!r}: use RotaryConfig(theta=..., factor=...) or Llama3RotaryConfig(...){why}"
        )


def config_of_class(name: str, described: Mapping[str, Any]) -> Any:
    """The config of class `name`, such as "marin.models.gpt:GptConfig", with the described values.

    Only classes below `marin` and `experiments` are imported, since importing runs code.

    Raises:
        ConfigError: for another class, one that is not there, or values that it does not take.
    """
    module, _, attribute = name.partition(":")
    if module.split(".")[0] not in _PACKAGES or not attribute:
        raise ConfigError(f"the model's class is {name!r}: only classes of marin and experiments are loaded")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        raise ConfigError(
            f"the model's class {name!r} is not here: run this in a checkout that has the file of the experiment"
        ) from None
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type):
        raise ConfigError(f"the model's class {name!r} is not the config of a model")
    return _dataclass(kind, described, name)


def _dataclass(kind: type, described: Mapping[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind) if field.init}
    unknown = sorted(set(described) - fields)
    if unknown:
        raise ConfigError(
            f"{where} has no field `{unknown[0]}`: the run was trained with another version of it; check that one out"
        )
    return kind(**{name: _value(hints[name], value, f"{where}.{name}") for name, value in described.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """`value`, a plain JSON value, as the type that a field says."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if isinstance(value, dict):
        for option in options:
            if isinstance(option, type) and dataclasses.is_dataclass(option):
                if option is RotaryConfig and "low_freq_factor" in value:
                    option = Llama3RotaryConfig
                return _dataclass(option, value, where)
        return value
    if isinstance(value, str) and not any(option is str for option in options):
        for option in options:
            if isinstance(option, type) and issubclass(option, enum.Enum) and value in option.__members__:
                return option[value]
    if isinstance(value, list) and any(typing.get_origin(option) is tuple or option is tuple for option in options):
        return tuple(value)
    return value
