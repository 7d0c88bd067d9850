"""What is wrong with a request, in our words: which field, what stands there, and what to put in its place."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from marin.inference.server.problems import ProblemError

_MOST_SHOWN = 60
# By pydantic's names of what can be wrong; `{}` are the limits that it tells.
_USE = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "model_type": "an object",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a list of at least {min_length}",
    "string_too_short": "text of at least {min_length} character",
    "string_too_long": "text of at most {max_length} characters",
}


def explain(error: ValidationError) -> ProblemError:
    """The first field that is wrong.

    Of one that may be of several kinds each kind says why it is none of it. The one that fits furthest is the one that was
    meant; where several fit as far, any of them will do.
    """
    found = error.errors(include_url=False)
    of_kinds: dict[tuple[str, ...], Any] = {}
    for each in found:
        if each["loc"][:1] == found[0]["loc"][:1]:
            of_kinds.setdefault(tuple(str(part) for part in each["loc"] if _is_kind(part)), each)
    place = max((_place(each) for each in of_kinds.values()), key=_how_far)
    wrong = [each for each in of_kinds.values() if _place(each) == place]
    field = ".".join(str(part) for part in place)
    said = _said(f"`{field}`", wrong) if field else f"the body cannot be read: {wrong[0]['msg']}"
    return ProblemError(400, said, param=field or None)


def _said(field: str, wrong: list[Any]) -> str:
    kind, message = wrong[0]["type"], wrong[0]["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return f"{field} is missing"
    if kind not in _USE:
        return f"{field}: {message}"
    fitting = dict.fromkeys(_USE[each["type"]].format(**each.get("ctx", {})) for each in wrong if each["type"] in _USE)
    return f"{field} is {_shown(wrong[0]['input'])}: use {' or '.join(fitting)}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    text = json.dumps(value[:_MOST_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _place(wrong: Any) -> tuple[str | int, ...]:
    return tuple(part for part in wrong["loc"] if not _is_kind(part))


def _how_far(place: tuple[str | int, ...]) -> tuple[int, list[int]]:
    return len(place), [part for part in place if isinstance(part, int)]


def _is_kind(part: str | int) -> bool:
    """Whether part of an error's place is no field, but one of the kinds that a field may be of."""
    return isinstance(part, str) and (part in ("str", "int") or "[" in part or "(" in part)
