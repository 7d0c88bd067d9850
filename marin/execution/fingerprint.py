"""The identity of a step: SHA-256 over a canonical, typed encoding of what it computes.

What counts: the function (its qualified name; for user-space code also its definition, see `code_digest`), every value
in the config with its type, and the fingerprints of the steps that the config refers to. What does not: the step's
name and description, the prefix, and placement: fields made with `placement()`, and `Resources` values, which encode
as None does.

Each value becomes `tag length : content`, so that no two values share an encoding: 1, 1.0, True and "1" differ, and so
do 0.0 and -0.0. Dicts and sets do not depend on order. Types are named by qualified name without their module, so that
a file run as a script and the same file imported agree.

A value whose encoding would not be the same tomorrow (a lambda, an object that is no dataclass, an open file) is
refused with its place in the config.
"""

import dataclasses
import enum
import functools
import hashlib
import math
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from marin.errors import FingerprintError
from marin.execution.code_digest import code_digest, is_user_space
from marin.execution.step import ExecutorStep, InputName, OutputName, VersionedValue
from marin.resources import Resources

_MAX_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class Identity:
    """A step's fingerprint (64 hex digits), and the parts that went into it by their place in the config, for people."""

    fingerprint: str
    parts: dict[str, str]


def identify(step: ExecutorStep, fingerprint_of: Callable[[ExecutorStep], str]) -> Identity:
    """The identity of `step`.

    Args:
        fingerprint_of: gives the fingerprint of each step that the config refers to.
    Raises:
        FingerprintError: a value has no stable encoding; the message says where it stands.
    """
    encoder = _Encoder(step.name, fingerprint_of)
    encoded = _frame("step", encoder.encode(step.fn, "fn"), encoder.encode(step.config, "config"))
    return Identity(hashlib.sha256(encoded).hexdigest(), encoder.parts)


def first_difference(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The first part (in the new order, then the old) that differs: its place, old and new value."""
    for place in [*new, *old]:
        if old.get(place) != new.get(place):
            return place, old.get(place, "(absent)"), new.get(place, "(absent)")
    return None


def _frame(tag: str, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return f"{tag} {len(content)}:".encode() + content


class _Encoder:
    def __init__(self, step_name: str, fingerprint_of: Callable[[ExecutorStep], str]):
        self.parts: dict[str, str] = {}
        self._step_name = step_name
        self._fingerprint_of = fingerprint_of

    def encode(self, value: Any, place: str) -> bytes:
        """The canonical encoding of `value`; notes its leaves under `place`."""
        while isinstance(value, VersionedValue):
            value = value.value
        scalar = _encode_scalar(value)
        if scalar is not None:
            self._note(place, "None" if isinstance(value, Resources) else repr(value))
            return scalar
        if isinstance(value, ExecutorStep | InputName | OutputName):
            return self._encode_reference(value, place)
        if isinstance(value, enum.Enum):
            self._note(place, str(value.name))
            return _frame("enum", self._encode_type(type(value), place), _frame("member", str(value.name).encode()))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._encode_dataclass(value, place)
        if isinstance(value, Mapping):
            return self._encode_dict(value, place)
        if isinstance(value, list | tuple):
            return self._encode_sequence(value, place)
        if isinstance(value, set | frozenset):
            members = sorted(_Encoder(self._step_name, self._fingerprint_of).encode(item, place) for item in value)
            self._note(place, "{" + ", ".join(sorted(repr(item) for item in value)) + "}")
            return _frame(type(value).__name__, *members)
        if isinstance(value, functools.partial):
            func = self.encode(value.func, f"{place}.func")
            args = self._encode_sequence(value.args, f"{place}.args")
            return _frame("partial", func, args, self._encode_dict(value.keywords, f"{place}.keywords"))
        return self._encode_named(value, place)

    def _encode_reference(self, value: ExecutorStep | InputName | OutputName, place: str) -> bytes:
        if isinstance(value, OutputName):
            self._note(place, f"<output>/{value.name or ''}")
            return _frame("output", self._encode_quietly(value.name))
        if isinstance(value, ExecutorStep):
            value = value.as_input_name()
        name = self._encode_quietly(value.name)
        if value.step is None:
            self._note(place, f"hardcoded {value.name}")
            return _frame("hardcoded", name)
        fingerprint = self._fingerprint_of(value.step)
        self._note(place, f"step {value.step.name}-{fingerprint[:8]}/{value.name or ''}")
        return _frame("input", fingerprint.encode(), name, self._encode_quietly(value.block_on_step))

    def _encode_dataclass(self, value: Any, place: str) -> bytes:
        encoded = [self._encode_type(type(value), place)]
        for field in sorted(dataclasses.fields(value), key=lambda field: field.name):
            if field.metadata.get("marin.placement"):
                continue
            encoded.append(_frame("field", field.name.encode()))
            encoded.append(self.encode(getattr(value, field.name), f"{place}.{field.name}"))
        return _frame("dataclass", *encoded)

    def _encode_dict(self, value: Mapping[Any, Any], place: str) -> bytes:
        items = []
        for key, item in value.items():
            if type(key) not in (str, int):
                raise self._refuse(place, f"has the dict key {key!r}: use keys of type str or int")
            items.append(self._encode_quietly(key) + self.encode(item, f"{place}[{key!r}]"))
        if not items:
            self._note(place, "{}")
        return _frame("dict", *sorted(items))

    def _encode_sequence(self, value: list[Any] | tuple[Any, ...], place: str) -> bytes:
        tag = "list" if isinstance(value, list) else "tuple"
        encoded = [self._encode_type(type(value), place)] if type(value) not in (list, tuple) else []
        if not value:
            self._note(place, "[]" if tag == "list" else "()")
        encoded.extend(self.encode(item, f"{place}[{index}]") for index, item in enumerate(value))
        return _frame(tag, *encoded)

    def _encode_named(self, value: Any, place: str) -> bytes:
        """Classes and functions: things that a name stands for."""
        name = getattr(value, "__qualname__", None) or ""
        if "<lambda>" in name:
            raise self._refuse(place, "is a lambda, which has no name to know it by: define a function with `def`")
        if "<locals>" in name and _captures(value):
            raise self._refuse(
                place,
                f"is `{name}`, which captures variables of the function around it: "
                "define it at the top level of a file and pass values with functools.partial",
            )
        if not name or not ("<locals>" in name or _found_by_name(value)):
            raise self._refuse(
                place,
                f"is {value!r}, whose type `{type(value).__qualname__}` has no stable encoding: "
                "use numbers, strings, lists, dicts, dataclasses, enums, or top-level functions",
            )
        tag = "class" if isinstance(value, type) else "function"
        if is_user_space(value):
            return _frame(tag, self._encode_code(value, place))
        self._note(place, f"{value.__module__}.{name}")
        return _frame(tag, _frame("module", value.__module__.encode()), _frame("name", name.encode()))

    def _encode_type(self, cls: type, place: str) -> bytes:
        if is_user_space(cls):
            return _frame("type", self._encode_code(cls, f"{place}.__class__"))
        self._note(f"{place}.__class__", cls.__qualname__)
        return _frame("type", _frame("name", cls.__qualname__.encode()))

    def _encode_code(self, definition: Any, place: str) -> bytes:
        try:
            digest = code_digest(definition)
        except FingerprintError as error:
            raise self._refuse(place, f"has no stable encoding: {error}") from None
        except (OSError, SyntaxError) as error:
            raise self._refuse(place, f"cannot be encoded, as its source cannot be read: {error}") from error
        self._note(place, f"{definition.__qualname__} (code {digest[:16]})")
        return _frame("name", definition.__qualname__.encode()) + _frame("code", digest.encode())

    def _encode_quietly(self, value: str | int | None) -> bytes:
        encoded = _encode_scalar(value)
        if encoded is None:
            raise FingerprintError(f"step `{self._step_name}`: a reference has the name {value!r}: use a str")
        return encoded

    def _note(self, place: str, shown: str) -> None:
        self.parts[place] = shown if len(shown) <= _MAX_SHOWN else _shortened(shown)

    def _refuse(self, place: str, why: str) -> FingerprintError:
        return FingerprintError(f"step `{self._step_name}`: `{place}` {why}")


def _encode_scalar(value: Any) -> bytes | None:
    """The encoding of a value without parts, or None for any other value."""
    if value is None or isinstance(value, Resources):
        return b"none 0:"
    kind = type(value)
    if kind is bool or kind is int:
        return _frame(kind.__name__, str(value).encode())
    if kind is float:
        return _frame("float", b"nan" if math.isnan(value) else value.hex().encode())
    if kind is str:
        return _frame("str", value.encode(errors="surrogatepass"))
    if kind is bytes:
        return _frame("bytes", value)
    if isinstance(value, pathlib.PurePath):
        return _frame("path", value.as_posix().encode(errors="surrogatepass"))
    if kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            item = value.item()
            inner = None if type(item) is kind else _encode_scalar(item)
            return inner and _frame("numpy", _frame("dtype", str(value.dtype).encode()), inner)
        if hasattr(value, "itemsize") and hasattr(value, "newbyteorder"):
            return _frame("dtype", str(value).encode())
    return None


def _shortened(shown: str) -> str:
    return f"{shown[:_MAX_SHOWN]}... (sha256 {hashlib.sha256(shown.encode(errors='replace')).hexdigest()[:16]})"


def _captures(definition: Any) -> bool:
    """Whether a local function, or a method of a local class, depends on variables around it."""
    if getattr(definition, "__defaults__", None) or getattr(definition, "__kwdefaults__", None):
        return True  # the defaults were computed by the function around it
    functions = vars(definition).values() if isinstance(definition, type) else [definition]
    names = {name for function in functions for name in getattr(getattr(function, "__code__", None), "co_freevars", ())}
    return bool(names - {"__class__"})


def _found_by_name(value: Any) -> bool:
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value or (found is not None and bool(found == value)) or isinstance(value, type)
