"""What each process of a run computed on. The cost of a run counts the machine that `run.json` names, which the first one had."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# What a process may have above the machine of `run.json`. A processor's peak is measured, and differs from time to time.
_TOLERANCE, _TOLERANCE_MEASURED = 1.01, 1.5


def is_larger(run: Mapping[str, Any], start: Mapping[str, Any]) -> bool:
    """Whether the process of a `start` line had more FLOP/s than the machine that the run's cost counts.

    Args:
        run: `run.json`, of which `platform`, `num_chips` and `device_flops` are looked at.
        start: the line, whose `num_chips` and `device_flops` logs of earlier versions lack.
    """
    if start.get("num_chips") is None or start.get("device_flops") is None:
        return False
    allowed = _TOLERANCE_MEASURED if run["platform"] == "cpu" else _TOLERANCE
    return bool(start["num_chips"] * start["device_flops"] > allowed * run["num_chips"] * run["device_flops"])


def larger_processes(
    run: Mapping[str, Any], starts: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The number and the `start` line of each process of which `is_larger` holds."""
    return ((number, start) for number, start in enumerate(starts) if is_larger(run, start))
