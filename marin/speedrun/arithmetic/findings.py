"""Findings of the arithmetic rung, and how figures are compared there."""

import math
from collections.abc import Mapping
from typing import Any

from marin.data.batch_schedule import BatchSchedule
from marin.errors import ConfigError
from marin.number_checks import is_whole
from marin.speedrun.verdict import Finding, Severity

_EXACT = 1e-6  # the published files reproduce to the last digits of a float


def error(field: str, message: str, corrected: float | None = None) -> Finding:
    """A figure that cannot be true of any run; `corrected` is left out where it is not finite."""
    return _finding("error", field, message, corrected)


def warning(field: str, message: str, corrected: float | None = None) -> Finding:
    return _finding("warning", field, message, corrected)


def unchecked(field: str, message: str) -> Finding:
    return Finding("arithmetic", "unchecked", field, message)


def note(field: str, message: str) -> Finding:
    return Finding("arithmetic", "note", field, message)


def _finding(severity: Severity, field: str, message: str, corrected: float | None) -> Finding:
    finite = corrected is not None and math.isfinite(corrected)
    return Finding("arithmetic", severity, field, message, corrected if finite else None)


def close(a: float, b: float, tolerance: float = _EXACT) -> bool:
    """Whether two figures are one but for rounding; `tolerance` is relative."""
    return math.isclose(a, b, rel_tol=tolerance)


def whole_number(config: Mapping[str, Any] | None, *names: str) -> int | None:
    """The first of `names` that holds a positive whole number."""
    for name in names:
        value = (config or {}).get(name)
        if is_whole(value):
            return value
    return None


def row_length(train: Mapping[str, Any] | None, model: Mapping[str, Any] | None) -> int | None:
    """Tokens of a row in training, as the configs of every era state it."""
    return whole_number(train, "train_seq_len") or whole_number(model, "max_seq_len", "seq_len")


def significant_digits(value: float) -> int:
    """Decimal digits of a figure as it is written, without the zeros at its ends."""
    return len(repr(float(value)).split("e")[0].replace(".", "").replace("-", "").strip("0"))


def batch_schedule(train: Mapping[str, Any] | None) -> BatchSchedule | None:
    """The batch size of each step as a config states it: one number, or a list of [first step, size]."""
    try:
        return BatchSchedule.of((train or {}).get("train_batch_size"))
    except ConfigError:
        return None
