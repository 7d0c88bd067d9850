"""Forgeries of a log's pauses: work off the clock under a name, more often or longer than the config plans it."""

import json
import pathlib
import random

from forgeries.editing import edit_log, edit_run, edit_run_json
from forgeries.honest import Plan, write_submission
from forgeries.register import Bases, Event, Expected, expect, family


@family(8)
def false_pauses(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Work off the clock under a name: one that the clock does not know, or that of something that was not done."""
    reason = (
        "tuning",
        "optimizer",
        "data loading",
        "evaluation",
        "evaluation",
        "checkpoint",
        "checkpoint",
        "hf export",
    )[variant]

    edit_log(bases.copy("plain", to), lambda events: _paused(events, reason), careful=True)
    words = {
        "evaluation": "where the config plans",
        "checkpoint": "the clock stopped for something else",
        "hf export": "where the config plans none",
    }
    return expect("log", words.get(reason, "the clock stops for"))


def _paused(
    events: list[Event], reason: str, *, every: int = 5, step: bool = True, line: Event | None = None
) -> list[Event]:
    """A log with half a second off the clock after every so many steps, and what the engine writes of such a pause."""
    shift, found = 0.0, []
    for event in events:
        found.append({**event, "time": round(event["time"] + shift, 3)})
        if event["event"] == "step" and event["step"] % every == every // 2:
            shift += 0.5
            time = round(event["time"] + shift, 3)
            named = {"step": event["step"]} if step else {}
            found.append({"event": "pause", "reason": reason, **named, "seconds": 0.5, "time": time})
            if line is not None:
                found.append({**line, "step": event["step"], "time": time})
    return found


@family(3)
def work_in_planned_pauses(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Pauses that the config plans, after every step, with most of the work in them."""
    plans = {"checkpoint": Plan(checkpoint_every=1), "hf export": Plan(export_every=1), "profiler": Plan(profile=True)}
    reason = list(plans)[variant]
    write_submission(to, [plans[reason]], random.Random(variant))

    def change(events: list[Event]) -> list[Event]:
        longer = 0.0
        for event in events:
            if event["event"] == "pause" and event["reason"] == reason:
                event["seconds"] += 40.0
                longer += 40.0
            event["time"] = round(event["time"] + longer, 3)
        return events

    edit_log(to, change, careful=True)
    return expect("log", "the clock stood still for", reason, "in no cost")


@family(3)
def measures_beyond_the_plan(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Pauses for a measure that the process's own line does not have, has less often, or under a name that is none."""
    directory = bases.copy("plain", to)
    said = ("CORE every 20", "samples every 3", "tuning every 3")[variant]
    reason = ("CORE", "CORE", "tuning")[variant]

    def change(events: list[Event]) -> list[Event]:
        starts = [{**event, "measures": said} if event["event"] == "start" else event for event in events]
        return _paused(starts, reason, every=3)

    edit_log(directory, change, careful=True)
    return expect("log", "the clock stops for" if variant == 2 else "where the config plans")


@family(8)
def unplanned_pauses(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Pauses that the engine knows, more often than the config has them, or with the config's word on them taken out."""
    directory = bases.copy("plain", to)
    reason = (
        "profiler",
        "profiler",
        "hf export",
        "hf export",
        "task evaluation",
        "checkpoint",
        "evaluation",
        "profiler",
    )[variant]
    settings: Event = {}
    if variant == 1:
        settings = {"profiler": True, "profiler_start_step": 2, "profiler_num_steps": 5}
    if variant == 4:
        settings = {"task_eval_names": ["piqa"], "steps_per_task_eval": 50}

    def change(info: Event) -> None:
        info["config"]["train"].update(settings)
        if variant == 2:
            info["config"]["train"].pop("steps_per_hf_export")

    if settings or variant == 2:
        edit_run_json(directory, change, careful=True)
        train = json.loads((directory / "logs" / "0" / "run.json").read_text())["config"]["train"]
        edit_run(directory, lambda info: info.update(train_config=train))
    line = {"event": "checkpoint", "bytes": 1, "seconds": 0.1} if reason == "checkpoint" else None
    named = variant != 6
    edit_log(directory, lambda events: _paused(events, reason, every=3, step=named, line=line), careful=True)
    return expect("log", "where the config plans" if named else "that names no step")
