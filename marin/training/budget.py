"""Runs that stop at a budget, and how many steps fit into one.

A budget is hardware FLOPs or seconds of training time, as results count them. The number of steps should be fixed before
training, so that the learning rate goes through its whole schedule and the run can be repeated:

    num_train_steps=steps_within(1e15, mfu=0.4, model_flops_per_token=model.flops_per_token(V, T), tokens_per_step=B * T)
    num_train_steps=steps_in_time(600, step_time=measured_step_time("store/checkpoints/speedrun/short_run-1234abcd"))

The first depends on the config alone, the second on what a short run took. `budget=Budget(...)` in the train config is the
stop behind it: a run that would go past it ends cleanly after the last step that fits, with its checkpoint, and its log's
`end` says so. What was spent is read from the log, so a run that was killed and resumed stops at the same total.
"""

import collections
import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

from marin.errors import ConfigError
from marin.number_checks import is_finite
from marin.tracking import RunRecord
from marin.training.clock import TrainingClock

_RECENT = 8  # laps whose longest stands for the next


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a run may cost; where both are given, the smaller.

    Args:
        hardware_flops: `training_time` x chips x peak FLOP/s of a chip.
        training_time: seconds on the clock of the results.
    """

    hardware_flops: float | None = None
    training_time: float | None = None

    def __post_init__(self) -> None:
        if self.hardware_flops is None and self.training_time is None:
            raise ConfigError("`budget` has no limit: use Budget(hardware_flops=1e15) or Budget(training_time=600)")
        for field in ("hardware_flops", "training_time"):
            value = getattr(self, field)
            if value is not None and not (is_finite(value) and value > 0):
                raise ConfigError(f"`budget.{field}` is {value!r}: use a finite number above 0, or None")

    def __str__(self) -> str:
        flops = [] if self.hardware_flops is None else [f"{self.hardware_flops:g} hardware FLOPs"]
        return " and ".join(flops + ([] if self.training_time is None else [f"{self.training_time:g} s"]))

    def seconds(self, peak_flops: float) -> float:
        """Training time that the budget allows on hardware of so many FLOP/s."""
        limits = [] if self.training_time is None else [float(self.training_time)]
        if self.hardware_flops is not None:
            limits.append(self.hardware_flops / peak_flops)
        return min(limits)


def steps_within(hardware_flops: float, *, mfu: float, model_flops_per_token: float, tokens_per_step: int) -> int:
    """Steps that fit into so many hardware FLOPs where `mfu` of them are the model's; the same on every machine.

    Args:
        model_flops_per_token: of the forward pass, as `flops_per_token` of a model's config gives it.
    Raises:
        ConfigError: if not one step fits.
    """
    if not 0 < mfu < 1:
        raise ConfigError(f"`mfu` is {mfu!r}: use a fraction between 0 and 1, such as 0.4")
    return _at_least_one(
        hardware_flops * mfu / (3 * model_flops_per_token * tokens_per_step), f"{hardware_flops:g} FLOPs"
    )


def steps_in_time(seconds: float, *, step_time: float) -> int:
    """Steps of so many seconds each that fit.

    Raises:
        ConfigError: if not one does.
    """
    if not step_time > 0:
        raise ConfigError(f"`step_time` is {step_time!r}: use seconds above 0, such as `measured_step_time(run)` gives")
    return _at_least_one(seconds / step_time, f"{seconds:g} s")


def measured_step_time(run_directory: str | Path) -> float:
    """Median seconds of a step in a run's log, its first ones left out: they are the slow ones.

    Raises:
        ConfigError: if the log has fewer than 10 steps.
        ResultsError: if there is no log.
    """
    times = [step["step_time"] for step in RunRecord.open(run_directory).steps()]
    if len(times) < 10:
        raise ConfigError(f"the run in {run_directory} has {len(times)} steps: train at least 10, then measure")
    return float(statistics.median(times[3:]))


def _at_least_one(steps: float, budget: str) -> int:
    if steps < 1:
        raise ConfigError(f"not one step fits into {budget}: use a smaller batch or model, or a larger budget")
    return int(steps)


class BudgetWatch:
    """Says when the next step would go past the budget.

    Args:
        seconds: of the budget; None for no limit.
        steps: those of the log that the run continues from.
        clock: of this process; None before it trains.
    """

    def __init__(self, seconds: float | None, steps: list[dict[str, Any]], clock: TrainingClock | None = None) -> None:
        self._seconds, self._clock = seconds, clock
        self._before = math.fsum(step["step_time"] for step in steps)
        self._recent = collections.deque((step["step_time"] for step in steps[-_RECENT:]), _RECENT)

    @property
    def spent(self) -> float:
        """Training time of all processes of the run, as results count it."""
        return self._before + (0.0 if self._clock is None else self._clock.total)

    def reached(self, in_flight: int) -> bool:
        """Whether another step does not fit behind the `in_flight` ones whose time is not known yet."""
        if self._seconds is None:
            return False
        laps = [*self._recent, *(() if self._clock is None else self._clock.recent)]
        longest = max(laps[-_RECENT:], default=0.0)
        return self.spent + (in_flight + 1) * longest > self._seconds


def kept_steps(directory: Path, first_step: int) -> list[dict[str, Any]]:
    """The steps of the log that lead to the state after `first_step` steps."""
    return [step for step in RunRecord.open(directory).steps() if step["step"] < first_step]


def budget_is_spent(budget: Budget | None, directory: Path, info: dict[str, Any] | None, first_step: int) -> bool:
    """Whether a run that would continue after `first_step` steps has ended at its budget, or has no room for another.

    Args:
        info: the content of its `run.json`; None where there is none yet.
    """
    if budget is None or info is None:
        return False
    ends = RunRecord.open(directory).of("end")
    if ends and ends[-1]["steps"] == first_step:
        return True
    watch = BudgetWatch(budget.seconds(info["num_chips"] * info["device_flops"]), kept_steps(directory, first_step))
    return watch.reached(in_flight=0)
