"""Whether the times in a log are those of one clock: steps and named pauses must fill the wall clock between the lines.

The engine stamps each line with the time of day when it is written, and a step's line is written when the step ends. Between two
steps of one process the stamps thus advance by the step's time and the pauses between, up to a line that is written a
little late. Late lines do not add up, so what stays is time on neither the clock nor a named pause: work that was
done off the clock, a slow step that was dropped or shortened, or a computer that slept.
"""

import collections
import datetime
import itertools
import math
from collections.abc import Iterator
from typing import Any

from marin.speedrun.arithmetic.findings import batch_schedule, row_length, whole_number
from marin.speedrun.verdict import Finding
from marin.speedrun.verification.log_agreement import finding
from marin.speedrun.verification.pause_plan import PausePlan
from marin.speedrun.verification.run_log import RunLog
from marin.tracking.machines import larger_processes
from marin.tracking.run_record import MEASURES, PAUSES

_LATE = 0.1  # seconds that a line may be late, and what two clocks differ by over a short run
_DRIFT = 1e-3  # time servers slew a clock by at most 500 parts per million
_BACKWARDS = 0.01
_CLOCKS_OF_MACHINES = 300.0  # seconds that the clocks of two machines may differ by
_FIRST, _LAST = 3, 2  # of so many lines at the ends of a process, the one that was least late counts
_LONG_BEFORE_FIRST = 300.0
_MOST_STANDING = 60.0  # seconds
_REPLAYED = 0.02  # relative; one step from the same weights, on whatever machine
_AHEAD = 86_400.0
# Steps whose longest stands for the next, and how many of these a stop may come too early.
_RECENT, _MOST_IN_FLIGHT = 8, 10


def check_times(log: RunLog, now: datetime.datetime, committed: float | None) -> list[Finding]:
    """Args:
    now: against which a log is from the future.
    committed: when the commit that the run names was made, in seconds since 1970, where that is known.
    """
    return [
        *_check_order(log, now, committed),
        *_check_processes(log),
        *_check_machines(log),
        *_check_pauses(log),
        *_check_rows(log),
    ]


def _processes(log: RunLog) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    for event in log.record.events:
        if event["event"] == "start" or not found:
            found.append([])
        found[-1].append(event)
    return found


def _check_order(log: RunLog, now: datetime.datetime, committed: float | None) -> Iterator[Finding]:
    events = log.record.events
    starts = log.record.of("start")
    if events[0]["event"] != "start":
        yield finding(
            "error", "start", f"the log begins with {events[0]['event']!r}, a run begins with the start of a process"
        )
    if starts and starts[0]["from_step"]:
        yield finding(
            "error", "start", f"the log begins at step {starts[0]['from_step']}: it is the tail of a resumed run alone"
        )
    ends = [number for number, event in enumerate(events) if event["event"] == "end"]
    if len(ends) > 1 or any(event["event"] in ("step", "start") for event in events[ends[0] :]):
        yield finding("error", "end", "the log goes on after its end")
    begin, last = events[0]["time"], events[-1]["time"]
    if last > now.timestamp() + _AHEAD:
        yield finding("error", "time", f"the last line is of {_day(last)}, which has not come yet")
    if committed is not None and begin < committed - _CLOCKS_OF_MACHINES:
        yield finding("error", "time", f"the run began {_day(begin)}, before its commit was made {_day(committed)}")


def _check_processes(log: RunLog) -> Iterator[Finding]:
    before = -math.inf
    expected: int | None = None
    losses: dict[int, float] = {}
    for number, events in enumerate(_processes(log)):
        first = events[0]["time"]
        if first < before - _CLOCKS_OF_MACHINES:
            yield finding(
                "error",
                "time",
                f"process {number} of the run began {before - first:,.0f} s before the one before it ended",
            )
        for one, other in itertools.pairwise(events):
            if other["time"] < one["time"] - _BACKWARDS:
                what = f"{other['event']} {other.get('step', '')}".strip()
                yield finding(
                    "error",
                    "time",
                    f"time runs backwards by {one['time'] - other['time']:.3g} s before the line of {what}",
                )
                break
        before = max(event["time"] for event in events)
        expected = events[0].get("from_step", 0) if events[0]["event"] == "start" else expected
        steps = [event["step"] for event in events if event["event"] == "step"]
        if steps and log.run.evaluation_link is not None and not any(event["event"] == "clock" for event in events):
            yield finding(
                "error",
                "clock",
                f"process {number} has no line `clock`, with which an engine of its time begins to count",
            )
        yield from _check_replay(events, losses, number)
        wrong = next((i for i, step in enumerate(steps) if step != (expected or 0) + i), None)
        if wrong is not None:
            yield finding(
                "error", "steps", f"step {(expected or 0) + wrong} is missing: the next line is of step {steps[wrong]}"
            )
        else:
            yield from _check_clock(events)


def _check_replay(events: list[dict[str, Any]], losses: dict[int, float], number: int) -> Iterator[Finding]:
    """Whether a process goes on from where the run was: the first step that it repeats has the loss that it had.

    Args:
        losses: those of the processes before, by their steps; this one's are added.
    """
    steps = [event for event in events if event["event"] == "step"]
    if steps and (old := losses.get(steps[0]["step"])) is not None:
        new = steps[0]["loss"]
        if math.isfinite(old) and math.isfinite(new) and not math.isclose(old, new, rel_tol=_REPLAYED):
            yield finding(
                "error", "loss",
                f"process {number} repeats step {steps[0]['step']} with a loss of {new:.4g}, where it was {old:.4g}: it did not go on"
                " from the run's own weights",
            )  # fmt: skip
    losses |= {step["step"]: step["loss"] for step in steps}


def _check_machines(log: RunLog) -> Iterator[Finding]:
    run = log.run
    machine = {"platform": run.platform, "num_chips": run.num_chips, "device_flops": run.device_flops}
    for number, start in larger_processes(machine, log.record.of("start")):
        yield finding(
            "error",
            "device_flops",
            f"process {number} of the run, from step {start['from_step']}, computed on {start['num_chips']:,} x"
            f" {start['device_flops']:.4g} FLOP/s, and the cost counts {run.num_chips:,} x {run.device_flops:.4g}",
        )


def _check_clock(events: list[dict[str, Any]]) -> Iterator[Finding]:
    counted = 0.0  # seconds on the clock or in a pause
    offsets: list[float] = []
    steps: list[int] = []
    for event in events:
        if event["event"] == "clock" and not offsets:  # logs of earlier versions have no such line
            counted = 0.0
            offsets.append(event["time"])
            steps.append(events[0].get("from_step", 0))
        elif event["event"] in ("pause", "step"):
            counted += event["seconds" if event["event"] == "pause" else "step_time"]
            if event["event"] == "step" or offsets:
                offsets.append(event["time"] - counted)
                steps.append(event.get("step", 0))
    if not offsets:
        return
    idle = offsets[0] - events[0]["time"]  # from the start line to the beginning of the clock
    if idle < -_LATE:
        yield finding("error", "step_time", f"step {steps[0]} took {-idle:.3g} s longer than its process had run")
    elif idle > _LONG_BEFORE_FIRST:
        yield finding("warning", "time", f"{idle:,.0f} s pass between the start of a process and its first step")
    moved = min(offsets[-_LAST:]) - min(offsets[: min(_FIRST, len(offsets) - 1) or 1])
    allowed = _LATE + _DRIFT * counted + 2e-6 * len(offsets)
    if moved > allowed:
        least = offsets[-1]
        jumps = []  # how much of the lost time is lost for good at each step
        for index in range(len(offsets) - 1, 0, -1):
            earlier = min(least, offsets[index - 1])
            jumps.append((least - earlier, steps[index]))
            least = earlier
        most, where = max(jumps)
        yield finding(
            "error", "training_time",
            f"{moved:.3g} s lie on neither the clock nor a named pause, of which {most:.3g} s before the line of step {where}:"
            " work off the clock, or a slow step dropped or shortened (or the computer slept: run it again)",
        )  # fmt: skip
    elif moved < -allowed:
        yield finding(
            "error", "step_time", f"steps and pauses take {-moved:.3g} s more than passed between their lines"
        )


def _check_pauses(log: RunLog) -> Iterator[Finding]:
    for pause in log.record.of("pause"):
        if pause["reason"] not in PAUSES:
            yield finding(
                "error",
                "pause",
                f"a pause of {pause['seconds']:.3g} s for {pause['reason'][:60]!r}: the clock stops for {', '.join(PAUSES)} alone",
            )
            return
    plan = PausePlan.of(log.run.config.train, log.record.of("end")[-1]["steps"])
    for events in _processes(log):
        unplanned = plan.first_unplanned(events, strict=log.run.evaluation_link is not None)
        if unplanned is not None:
            yield finding("error", "pause", unplanned)
            break
    yield from _check_counts(log)
    yield from _check_standing(log)


def _check_standing(log: RunLog) -> Iterator[Finding]:
    """Whether the clock stood still to write files for longer than it ran; what a run measures may well take so long."""
    pauses = [pause for pause in log.record.of("pause") if pause["reason"] not in MEASURES]
    stood = math.fsum(pause["seconds"] for pause in pauses)
    ran = math.fsum(step["step_time"] for step in log.record.of("step"))
    if stood > max(ran, _MOST_STANDING):
        reasons = " and ".join(dict.fromkeys(pause["reason"] for pause in pauses))
        yield finding(
            "unchecked",
            "pause",
            f"the clock stood still for {stood:,.0f} s of {reasons}, and ran for {ran:,.0f}: what was computed meanwhile is in no cost",
        )


def _check_counts(log: RunLog) -> Iterator[Finding]:
    counts = collections.Counter(pause["reason"] for pause in log.record.of("pause"))
    processes = len(log.record.of("start"))
    events = {reason: len(log.record.of(reason)) for reason in ("evaluation", "checkpoint")}
    for reason, allowed in (("evaluation", 1), ("checkpoint", 2)):  # a kill may come between a pause and its event
        if counts[reason] <= events[reason] + allowed * processes:
            continue
        if not events[reason] and log.links.first_linked is None:
            yield finding(
                "unchecked",
                "pause",
                f"{counts[reason]} pauses for {reason} without a line of one, as engines wrote it before the hash chain",
            )
        else:
            yield finding(
                "error", "pause",
                f"{counts[reason]} pauses for {reason}, but {events[reason]} lines of one: the clock stopped for something else",
            )  # fmt: skip


def _check_rows(log: RunLog) -> Iterator[Finding]:
    """Tokens and MFU of each step."""
    config, run = log.run.config, log.run
    schedule = batch_schedule(config.train)
    length = row_length(config.train, config.model)
    planned = whole_number(config.train, "num_train_steps")
    end = log.record.of("end")[-1]
    ends = end["steps"]
    cut = end.get("stopped_by") == "budget" and bool(config.train.get("budget"))
    if cut:
        yield from _check_budget(log)
    if planned is not None and ends != planned and not (cut and ends < planned):
        yield finding(
            "error", "num_train_steps", f"the run ends after {ends} steps, its config plans {planned}", planned
        )
    if schedule is None or length is None:
        yield finding(
            "unchecked",
            "tokens",
            "run.json states no batch size or no sequence length, so a step's tokens cannot be counted",
        )
    per_second = run.num_chips * run.device_flops
    skips = bool(config.train.get("skip_bad_steps"))
    for event in log.record.of("step"):
        step, tokens, seconds = event["step"], event["tokens"], event["step_time"]
        if schedule and length and tokens != (want := schedule.size_at(step) * length):
            yield finding(
                "error",
                "tokens",
                f"step {step} has {tokens:,} tokens, its batch has {schedule.size_at(step)} x {length} = {want:,}",
            )
            return
        if not math.isfinite(event["loss"]) and not skips:
            yield finding("error", "loss", f"the loss of step {step} is not finite, at which the engine stops")
            return
        mfu = event.get("mfu_model_flops")
        if mfu is None or run.model_flops_per_token is None or not math.isfinite(mfu):
            continue
        work = 3 * run.model_flops_per_token * tokens / per_second
        wrong = seconds <= 0 or abs(work / seconds - mfu) > 1e-5 + work / seconds * (1e-4 + 1e-6 / seconds)
        if wrong:
            stated = f"{work / seconds:.5f}" if seconds > 0 else "nothing"
            yield finding(
                "error",
                "mfu_model_flops",
                f"step {step} took {seconds:.6g} s, of which its MFU is {stated}, but the line says {mfu:.5f}",
            )
            return


def _check_budget(log: RunLog) -> Iterator[Finding]:
    """Whether a run that stopped at its budget had come to it: anywhere else it stopped where it liked."""
    budget = log.run.config.train.get("budget")
    given = budget if isinstance(budget, dict) else {}
    per_second = {"training_time": 1.0, "hardware_flops": log.run.num_chips * log.run.device_flops}
    limits = [
        value / per_second[name]
        for name, value in given.items()
        if name in per_second and isinstance(value, int | float) and value > 0
    ]
    times = [step["step_time"] for step in log.record.steps()]
    spent = math.fsum(times)
    # The engine stops one or a few of its longest recent steps before the limit.
    limit = min(limits, default=math.inf)
    if spent + _MOST_IN_FLIGHT * max(times[-_RECENT:], default=0.0) >= limit:
        return
    message = f"the run is said to have stopped at its budget, of which it had spent {spent:,.4g} of {limit:,.4g} s"
    yield finding("error", "stopped_by", message)


def _day(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.4g} s after 1970"
