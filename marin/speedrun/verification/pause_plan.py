"""When a run's config lets the clock stop: a pause that it does not plan is work off the clock under a good name."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from marin.speedrun.arithmetic.findings import whole_number
from marin.tracking.run_record import measures_of

# Of a run.json that leaves a field out; those of the engine's config, which needs JAX to be imported.
_STEPS_PER_EXPORT, _STEPS_PER_TASK_EVAL, _CHECKPOINT_INTERVAL = 10_000, 10_000, 600.0
_PROFILER_START, _PROFILER_STEPS = 5, 100
_STATED = ("evaluation", "CORE", "samples")  # what a process measures at a pace of its own
_EARLY = 0.5  # of the interval between two checkpoints; a second at least is the machine's


@dataclasses.dataclass(frozen=True)
class PausePlan:
    """The steps after which a run pauses; `None` for never.

    Args:
        last: the number of steps that were trained.
        trace: of a process, from its first step on: the first traced step, and how many are.
    """

    last: int
    evaluation: int | None
    task_evaluation: int | None
    hf_export: int | None
    at_end: tuple[str, ...]
    checkpoint: int
    interval: float
    trace: tuple[int, int] | None
    planned_steps: int

    @staticmethod
    def of(train: Mapping[str, Any], last: int) -> "PausePlan":
        """The plan of a `run.json`'s `config.train`."""
        kept = whole_number(train, "steps_per_export") or _STEPS_PER_EXPORT
        planned = whole_number(train, "num_train_steps") or last
        asked = train.get("steps_per_hf_export")
        tasks = train.get("task_eval_names")
        at_end = ["task evaluation"] if tasks else []
        if asked is None:
            export = kept if kept <= planned else None
        else:
            export = whole_number(train, "steps_per_hf_export")
            at_end += ["hf export"] if export else []
        trace = None
        if train.get("profiler") is True:
            start = train.get("profiler_start_step")
            begin = start if isinstance(start, int) and start >= 0 else _PROFILER_START
            trace = (begin, whole_number(train, "profiler_num_steps") or _PROFILER_STEPS)
        interval = train.get("checkpoint_interval", _CHECKPOINT_INTERVAL)
        return PausePlan(
            last,
            whole_number(train, "steps_per_eval"),
            (whole_number(train, "steps_per_task_eval") or _STEPS_PER_TASK_EVAL) if tasks else None,
            export,
            tuple(at_end),
            kept,
            float(interval) if isinstance(interval, int | float) and interval > 0 else _CHECKPOINT_INTERVAL,
            trace,
            planned,
        )

    def first_unplanned(self, events: Sequence[dict[str, Any]], *, strict: bool) -> str | None:
        """What is wrong with the first pause of a process that the plan does not have; None where it has all.

        Args:
            events: the lines of one process.
            strict: whether the log is of an engine that names every pause's step, and one evaluation at a step.
        """
        begin = events[0].get("from_step", 0) if events[0]["event"] == "start" else 0
        measures = measures_of(events[0])
        seen: dict[tuple[str, int], int] = {}
        saved = next((event["time"] for event in events if event["event"] == "clock"), events[0]["time"])
        saves = [event for event in events if event["event"] == "pause" and event["reason"] == "checkpoint"]
        for pause in (event for event in events if event["event"] == "pause"):
            reason, step = pause["reason"], pause.get("step")
            said = f"a pause of {pause['seconds']:.3g} s for {reason}"
            if step is None:
                if strict:
                    return f"{said} that names no step"
                continue
            seen[reason, step] = seen.get((reason, step), 0) + 1
            most = 2 if reason == "profiler" else max(1, self._num_planned(reason, step, measures))
            if strict and seen[reason, step] > most:
                return f"{said} after step {step}, where there was one already"
            if reason == "checkpoint":
                done_early = pause["time"] - pause["seconds"] - saved < self.interval * _EARLY - 1.0
                if strict and done_early and step % self.checkpoint and step != self.last and pause is not saves[-1]:
                    return (
                        f"{said} after {step} steps, {pause['time'] - pause['seconds'] - saved:.3g} s after the one before, where the config"
                        f" plans one every {self.interval:g} s or {self.checkpoint:,} steps"
                    )
                saved = pause["time"]
            elif reason == "profiler":
                if not self._traces(step, begin):
                    trace = (
                        self.trace and f"a trace of {self.trace[1]:,} steps from the {self.trace[0]}th of a process on"
                    )
                    return f"{said} after step {step}, where the config plans {trace or 'none'}"
            elif not self._num_planned(reason, step, measures):
                planned = " and ".join(f"one every {every:,} steps" for every in self._every(reason, measures))
                return f"{said} after step {step}, where the config plans {planned or 'none'}"
        return None

    def _traces(self, step: int, begin: int) -> bool:
        if self.trace is None:
            return False
        first = begin + self.trace[0]
        return step in (first, min(first + self.trace[1], self.planned_steps) - 1)

    def _num_planned(self, reason: str, step: int, measures: Sequence[tuple[str, int]]) -> int:
        """How many pauses for a reason are planned after a step."""
        done, every = step + 1, self._every(reason, measures)
        if done == self.last and reason in self.at_end:
            return 1
        if done == self.last and reason != "hf export":
            return 0
        return sum(done % steps == 0 for steps in every)

    def _every(self, reason: str, measures: Sequence[tuple[str, int]]) -> list[int]:
        """The steps between two; a process states its own measures beside those of the config."""
        own = {"evaluation": self.evaluation, "task evaluation": self.task_evaluation, "hf export": self.hf_export}.get(
            reason
        )
        stated = [every for name, every in measures if name == reason and reason in _STATED]
        return [own, *stated] if own else stated
