"""Where the wall time of a run went, over all of its processes: a pure function of `metrics.jsonl`.

The time from the beginning of the first process to the last line is divided into

    training     steps that led to the parameters, less their waiting for data
    data         waiting for batches, in those steps
    lost         steps that a killed process had taken and a later one took again
    setup        from the beginning of a process to its compiling: devices, data, restoring a checkpoint
    compile      compiling
    checkpoint, evaluation, ...   the pauses of the clock, by their reasons (`marin.tracking.run_record.PAUSES`)
    down         between the last line of one process and the beginning of the next: the run was not running, or was taking
                 the step that a kill cut short
    other        what is left

*Goodput* is the part that is training. A clock that was set back between two processes counts as no time in between.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

_FIRST = ("training", "data", "lost", "setup", "compile")
_LAST = ("down", "other")


@dataclasses.dataclass(frozen=True)
class WallTime:
    """Seconds by what they went to; they add up to `total`."""

    total: float
    parts: Mapping[str, float]
    num_processes: int
    num_lost_steps: int

    @property
    def goodput(self) -> float:
        """The part of the wall time in which steps were taken that count; 0 for a run without any time."""
        return self.parts["training"] / self.total if self.total > 0 else 0.0

    def as_json(self) -> dict[str, float]:
        """Seconds by part, `total` and `goodput`."""
        return {"goodput": self.goodput, "total": self.total, **self.parts}

    def shares(self) -> str:
        """The parts of at least half a percent, largest first: "training 81 %, compile 12 %, ..."."""
        if self.total <= 0:
            return "no time"
        ordered = sorted(self.parts.items(), key=lambda part: -part[1])
        return ", ".join(
            f"{name} {100 * part / self.total:.0f} %" for name, part in ordered if part >= 0.005 * self.total
        )


@dataclasses.dataclass
class _Process:
    """The lines of one process of the run."""

    begin: float
    setup: float
    compile: float
    last: float
    pauses: dict[str, float] = dataclasses.field(default_factory=dict)


def wall_time(events: Iterable[Mapping[str, Any]]) -> WallTime:
    """Where the time went, from the lines of `metrics.jsonl` in their order."""
    processes: list[_Process] = []
    kept: list[tuple[int, float, float]] = []  # step, seconds, of them waiting for data
    lost = 0.0
    num_lost = 0
    for event in events:
        kind, when = event["event"], float(event["time"])
        if kind == "start":
            setup, compile_time = float(event.get("setup_time", 0.0)), float(event.get("compile_time", 0.0))
            processes.append(_Process(when - setup - compile_time, setup, compile_time, when))
            first = event.get("from_step", 0)
            again = [seconds for step, seconds, _ in kept if step >= first]
            lost, num_lost = lost + sum(again), num_lost + len(again)
            kept = [entry for entry in kept if entry[0] < first]
        if not processes:
            continue
        if when > processes[-1].last:
            processes[-1].last = when
        if kind == "step":
            seconds = float(event["step_time"])
            kept.append((event["step"], seconds, min(seconds, float(event.get("data_wait", 0.0)))))
        elif kind == "pause":
            pauses = processes[-1].pauses
            pauses[event["reason"]] = pauses.get(event["reason"], 0.0) + float(event["seconds"])
    return _divide(processes, kept, lost, num_lost)


def _divide(processes: list[_Process], kept: list[tuple[int, float, float]], lost: float, num_lost: int) -> WallTime:
    waiting = sum(wait for _, _, wait in kept)
    parts = dict.fromkeys(_FIRST, 0.0)
    parts |= {"training": sum(seconds for _, seconds, _ in kept) - waiting, "data": waiting, "lost": lost}
    for process in processes:
        parts["setup"] += process.setup
        parts["compile"] += process.compile
        for reason, seconds in process.pauses.items():
            parts[reason] = parts.get(reason, 0.0) + seconds
    up = sum(process.last - process.begin for process in processes)
    down = sum(max(0.0, after.begin - before.last) for before, after in itertools.pairwise(processes))
    # Rounding, and clocks that differ by a little, never make a part negative.
    parts["other"] = max(0.0, up - sum(parts.values()))
    parts["down"] = down
    ordered = {name: parts.pop(name) for name in _FIRST} | {n: s for n, s in parts.items() if n not in _LAST}
    ordered |= {name: parts[name] for name in _LAST}
    return WallTime(sum(ordered.values()), ordered, len(processes), num_lost)
