"""The identity of a step: SHA-256 over a canonical, typed encoding of what it computes.

What counts: the function (its qualified name; for user-space code also its definition, see `code_digest`), every value
in the config with its type, and the fingerprints of the steps that the config refers to. What does not: the step's
name and description, the prefix, and placement: fields made with `placement()`, and `Resources` values, which encode
as None does. Fields made with `added_later()` do not count while they have their default.

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
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from marin.errors import FingerprintError
from marin.execution.closures import depends_on_call
from marin.execution.code_digest import code_digest
from marin.execution.source_files import is_user_space
from marin.execution.step import ExecutorStep, InputName, OutputName, VersionedValue
from marin.resources import Resources

_MAX_SHOWN = 200


# Modules, or single definitions, of the standard library that moved after Python 3.11: they go by where they were.
_MODULES_OF_3_11 = {
    "pathlib._local": "pathlib",
    "zipfile._path": "zipfile",
    "_decimal": "decimal",
    "_io.open": "io",
    "_io.open_code": "io",
    "_io.text_encoding": "io",
}


class Identity:
    """A step's fingerprint (64 hex digits), and the parts that went into it by their place in the config, for people."""

    __slots__ = ("_fingerprint_of", "_step", "fingerprint")

    def __init__(self, fingerprint: str, step: ExecutorStep, fingerprint_of: Callable[[ExecutorStep], str]):
        self.fingerprint = fingerprint
        self._step = step
        self._fingerprint_of = fingerprint_of

    @property
    def parts(self) -> dict[str, str]:
        """Each leaf of the config as people read it. Worked out anew at each use: most steps of a graph never need it."""
        parts: dict[str, str] = {}
        _encode_step(self._step, self._fingerprint_of, parts)
        return parts


def identify(step: ExecutorStep, fingerprint_of: Callable[[ExecutorStep], str]) -> Identity:
    """The identity of `step`.

    Args:
        fingerprint_of: gives the fingerprint of each step that the config refers to.
    Raises:
        FingerprintError: a value has no stable encoding; the message says where it stands.
    """
    try:
        encoded = _encode_step(step, fingerprint_of, None)
    except FingerprintError:
        encoded = _encode_step(step, fingerprint_of, {})  # again with places, so that the message has one
    return Identity(hashlib.sha256(encoded).hexdigest(), step, fingerprint_of)


def first_difference(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The first part (in the new order, then the old) that differs: its place, old and new value."""
    for place in [*new, *old]:
        if old.get(place) != new.get(place):
            return place, old.get(place, "(absent)"), new.get(place, "(absent)")
    return None


def _frame(tag: bytes, *parts: bytes) -> bytes:
    return _join(tag, parts)


def _join(tag: bytes, parts: Iterable[bytes]) -> bytes:
    content = b"".join(parts)
    return b"%b %d:%b" % (tag, len(content), content)


def _encode_step(
    step: ExecutorStep, fingerprint_of: Callable[[ExecutorStep], str], parts: dict[str, str] | None
) -> bytes:
    encoder = _Encoder(step.name, fingerprint_of, parts)
    fn, config = ("", "") if parts is None else ("fn", "config")
    return _frame(b"step", encoder.encode(step.fn, fn), encoder.encode(step.config, config))


class _Encoder:
    """Encodes values; notes their leaves in `parts` by place.

    Without `parts` every place is "" and nothing is noted: a graph of thousands of steps needs the encodings only, and
    writing out places costs more than encoding.
    """

    def __init__(self, step_name: str, fingerprint_of: Callable[[ExecutorStep], str], parts: dict[str, str] | None):
        self._parts = parts
        self._step_name = step_name
        self._fingerprint_of = fingerprint_of

    def encode(self, value: Any, place: str) -> bytes:
        """The canonical encoding of `value`, which stands at `place`."""
        way = _WAYS.get(type(value))
        if way is None:
            way = _WAYS[type(value)] = _way_to_encode(value)
        return way(self, value, place)

    def _encode_unnoted(self, value: Any) -> bytes:
        """`encode` without a place, with the shortest way for what most values are."""
        scalar = _SCALARS.get(type(value))
        return scalar(value) if scalar is not None else self.encode(value, "")

    def _encode_leaf(self, value: Any, place: str) -> bytes:
        encoded = _encode_scalar(value)
        if encoded is None:  # NumPy has types of which only some values are without parts
            return _way_to_encode_parts(value)(self, value, place)
        if place:
            self._note(place, "None" if isinstance(value, Resources) else repr(value))
        return encoded

    def _encode_versioned(self, value: VersionedValue[Any], place: str) -> bytes:
        return self.encode(value.value, place)

    def _encode_enum(self, value: enum.Enum, place: str) -> bytes:
        if place:
            self._note(place, str(value.name))
        return _frame(b"enum", self._encode_type(type(value), place), _frame(b"member", str(value.name).encode()))

    def _encode_set(self, value: set[Any] | frozenset[Any], place: str) -> bytes:
        unnoted = _Encoder(self._step_name, self._fingerprint_of, {}) if place else self
        members = sorted(unnoted.encode(item, place) for item in value)
        if place:
            self._note(place, "{" + ", ".join(sorted(repr(item) for item in value)) + "}")
        return _frame(type(value).__name__.encode(), *members)

    def _encode_partial(self, value: functools.partial[Any], place: str) -> bytes:
        func = self.encode(value.func, place and f"{place}.func")
        args = self._encode_sequence(value.args, place and f"{place}.args")
        return _frame(b"partial", func, args, self._encode_dict(value.keywords, place and f"{place}.keywords"))

    def _encode_output(self, value: OutputName, place: str) -> bytes:
        if place:
            self._note(place, f"<output>/{value.name or ''}")
        return _frame(b"output", self._encode_plain(value.name))

    def _encode_reference(self, value: ExecutorStep | InputName, place: str) -> bytes:
        step, name, block = (
            (value, None, True) if isinstance(value, ExecutorStep) else (value.step, value.name, value.block_on_step)
        )
        if step is None:
            if place:
                self._note(place, f"hardcoded {name}")
            return _frame(b"hardcoded", self._encode_plain(name))
        fingerprint = self._fingerprint_of(step)
        encoded_block = _TRUE if block is True else self._encode_plain(block)
        if place:
            self._note(place, f"step {step.name}-{fingerprint[:8]}/{name or ''}")
        return _frame(b"input", fingerprint.encode(), self._encode_plain(name), encoded_block)

    def _encode_dataclass(self, value: Any, place: str) -> bytes:
        kind: type = type(value)
        fields = _identity_fields(kind)
        if place:
            encoded = [self._encode_type(kind, place)]
            for name, name_frame, left_out in fields:
                item = getattr(value, name)
                if (
                    left_out is None
                    or _Encoder(self._step_name, self._fingerprint_of, None).encode(item, "") != left_out
                ):
                    encoded += (name_frame, self.encode(item, f"{place}.{name}"))
        else:
            encoded = [_encode_type_once(kind)]
            for name, name_frame, left_out in fields:
                item = getattr(value, name)
                scalar = _SCALARS.get(type(item))
                item_encoded = scalar(item) if scalar is not None else self.encode(item, "")
                if item_encoded != left_out:
                    encoded += (name_frame, item_encoded)
        return _join(b"dataclass", encoded)

    def _encode_dict(self, value: Mapping[Any, Any], place: str) -> bytes:
        items = []
        for key, item in value.items():
            if type(key) not in (str, int):
                raise self._refuse(place, f"has the dict key {key!r}: use keys of type str or int")
            encoded = self.encode(item, f"{place}[{key!r}]") if place else self._encode_unnoted(item)
            items.append(_SCALARS[type(key)](key) + encoded)
        if place and not items:
            self._note(place, "{}")
        return _join(b"dict", sorted(items))

    def _encode_sequence(self, value: list[Any] | tuple[Any, ...], place: str) -> bytes:
        tag = b"list" if isinstance(value, list) else b"tuple"
        encoded = [self._encode_type(type(value), place)] if type(value) not in (list, tuple) else []
        if not place:
            encoded.extend([self._encode_unnoted(item) for item in value])
        else:
            if not value:
                self._note(place, "[]" if tag == b"list" else "()")
            encoded.extend(self.encode(item, f"{place}[{index}]") for index, item in enumerate(value))
        return _join(tag, encoded)

    def _encode_function(self, value: types.FunctionType, place: str) -> bytes:
        return self._encode_named(value, place) if place else _encode_function_once(value)

    def _encode_named(self, value: Any, place: str) -> bytes:
        """Classes and functions: things that a name stands for."""
        name = getattr(value, "__qualname__", None) or ""
        if "<lambda>" in name:
            raise self._refuse(place, "is a lambda, which has no name to know it by: define a function with `def`")
        self._refuse_what_depends_on_a_call(value, place)
        if not name or not ("<locals>" in name or _found_by_name(value)):
            raise self._refuse(
                place,
                f"is {value!r}, whose type `{type(value).__qualname__}` has no stable encoding: "
                "use numbers, strings, lists, dicts, dataclasses, enums, or top-level functions",
            )
        tag = b"class" if isinstance(value, type) else b"function"
        if is_user_space(value):
            return _frame(tag, self._encode_code(value, place))
        module = value.__module__
        module = _MODULES_OF_3_11.get(module) or _MODULES_OF_3_11.get(f"{module}.{name}") or module
        if place:
            self._note(place, f"{module}.{name}")
        return _frame(tag, _frame(b"module", module.encode()), _frame(b"name", name.encode()))

    def _refuse_what_depends_on_a_call(self, definition: Any, place: str) -> None:
        name = definition.__qualname__ if hasattr(definition, "__qualname__") else ""
        if "<locals>" in name and is_user_space(definition) and depends_on_call(definition):
            raise self._refuse(
                place,
                f"is `{name}`, which depends on the call of the function around it: "
                "define it at the top level of a file and pass values with functools.partial",
            )

    def _encode_type(self, cls: type, place: str) -> bytes:
        self._refuse_what_depends_on_a_call(cls, place and f"{place}.__class__")
        if is_user_space(cls):
            return _frame(b"type", self._encode_code(cls, place and f"{place}.__class__"))
        if place:
            self._note(f"{place}.__class__", cls.__qualname__)
        return _frame(b"type", _frame(b"name", cls.__qualname__.encode()))

    def _encode_code(self, definition: Any, place: str) -> bytes:
        try:
            digest = code_digest(definition)
        except FingerprintError as error:
            raise self._refuse(place, f"has no stable encoding: {error}") from None
        except (OSError, SyntaxError) as error:
            raise self._refuse(place, f"cannot be encoded, as its source cannot be read: {error}") from error
        if place:
            self._note(place, f"{definition.__qualname__} (code {digest[:16]})")
        return _frame(b"name", definition.__qualname__.encode()) + _frame(b"code", digest.encode())

    def _encode_plain(self, value: str | bool | None) -> bytes:
        encoded = _encode_scalar(value)
        if encoded is None:
            raise FingerprintError(f"step `{self._step_name}`: a reference has the name {value!r}: use a str")
        return encoded

    def _note(self, place: str, shown: str) -> None:
        assert self._parts is not None
        self._parts[place] = shown if len(shown) <= _MAX_SHOWN else _shortened(shown)

    def _refuse(self, place: str, why: str) -> FingerprintError:
        return FingerprintError(f"step `{self._step_name}`: `{place}` {why}")


def _way_to_encode(value: Any) -> Callable[[_Encoder, Any, str], bytes]:
    """The method that encodes `value` and every other value of its type."""
    if isinstance(value, VersionedValue):
        return _Encoder._encode_versioned
    if _encode_scalar(value) is not None or _is_numpy(type(value)):
        return _Encoder._encode_leaf
    return _way_to_encode_parts(value)


def _way_to_encode_parts(value: Any) -> Callable[[_Encoder, Any, str], bytes]:
    if isinstance(value, ExecutorStep | InputName):
        return _Encoder._encode_reference
    if isinstance(value, OutputName):
        return _Encoder._encode_output
    if isinstance(value, enum.Enum):
        return _Encoder._encode_enum
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _Encoder._encode_dataclass
    if isinstance(value, Mapping):
        return _Encoder._encode_dict
    if isinstance(value, list | tuple):
        return _Encoder._encode_sequence
    if isinstance(value, set | frozenset):
        return _Encoder._encode_set
    if isinstance(value, functools.partial):
        return _Encoder._encode_partial
    if type(value) is types.FunctionType:
        return _Encoder._encode_function
    return _Encoder._encode_named


# Configs hold the same few types in thousands of steps: what follows from a type is worked out once.
_WAYS: dict[type, Callable[[_Encoder, Any, str], bytes]] = {}


@functools.lru_cache(maxsize=4096)
def _identity_fields(cls: type) -> tuple[tuple[str, bytes, bytes | None], ...]:
    """The fields that count, in the order of their names, each with the encodings of its name and of the value at which it does not."""
    counting = [field for field in dataclasses.fields(cls) if not field.metadata.get("marin.placement")]
    return tuple(
        (
            field.name,
            _frame(b"field", field.name.encode()),
            _Encoder("", _no_fingerprint, None).encode(field.default, "")
            if "marin.added_later" in field.metadata
            else None,
        )
        for field in sorted(counting, key=lambda field: field.name)
    )


@functools.lru_cache(maxsize=4096)
def _encode_type_once(cls: type) -> bytes:
    return _Encoder("", _no_fingerprint, None)._encode_type(cls, "")


@functools.lru_cache(maxsize=4096)
def _encode_function_once(function: types.FunctionType) -> bytes:
    return _Encoder("", _no_fingerprint, None)._encode_named(function, "")


def _no_fingerprint(step: ExecutorStep) -> str:
    raise AssertionError("a type or function refers to no step")


# --- values without parts -----------------------------------------------------------------------------------------

_NONE = b"none 0:"
_TRUE = b"bool 4:True"


def _encode_scalar(value: Any) -> bytes | None:
    """The encoding of a value without parts, or None for any other value."""
    encode = _SCALARS.get(type(value))
    if encode is not None:
        return encode(value)
    if value is None or isinstance(value, Resources):
        return _NONE
    if isinstance(value, pathlib.PurePath):
        return _frame(b"path", value.as_posix().encode(errors="surrogatepass"))
    if _is_numpy(type(value)):
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            item = value.item()
            inner = None if type(item) is type(value) else _encode_scalar(item)
            return inner and _frame(b"numpy", _frame(b"dtype", str(value.dtype).encode()), inner)
        if hasattr(value, "itemsize") and hasattr(value, "newbyteorder"):
            return _frame(b"dtype", str(value).encode())
    return None


def _is_numpy(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("numpy", "ml_dtypes")


# Most of what configs hold: these write their frames themselves, as a call costs more than the rest.


@functools.lru_cache(maxsize=256)  # the few that every step has; not more, as strings may be long
def _encode_int(value: int) -> bytes:
    content = b"%d" % value
    return b"int %d:%b" % (len(content), content)


def _encode_float(value: float) -> bytes:
    content = b"nan" if math.isnan(value) else value.hex().encode()
    return b"float %d:%b" % (len(content), content)


@functools.lru_cache(maxsize=256)
def _encode_str(value: str) -> bytes:
    content = value.encode("utf-8", "surrogatepass")
    return b"str %d:%b" % (len(content), content)


# Exact types: a bool is an int to `isinstance`, and an int of a subclass is another value.
_SCALARS: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: _TRUE if value else b"bool 5:False",
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: lambda value: _frame(b"bytes", value),
    type(None): lambda value: _NONE,
}


def _shortened(shown: str) -> str:
    return f"{shown[:_MAX_SHOWN]}... (sha256 {hashlib.sha256(shown.encode(errors='replace')).hexdigest()[:16]})"


def _found_by_name(value: Any) -> bool:
    found: Any = sys.modules.get(getattr(value, "__module__", None) or "")
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value or (found is not None and bool(found == value)) or isinstance(value, type)
