"""Forgeries of a run's log: edited, cut, shortened, of another config."""

import json
import math
import pathlib
import random
from typing import Any

from forgeries.editing import bind, edit_log, edit_run, edit_run_json, log_events, restate, set_figure, write_log
from forgeries.honest import BEGIN, Plan, write_submission
from forgeries.register import Bases, Event, Expected, expect, family, without_logs

from marin.speedrun.verification import Context


@family(8)
def edited_log_line(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    def change(events: list[Event]) -> list[Event]:
        step = [event for event in events if event["event"] == "step"][5 * variant]
        step["loss"] = step["loss"] - 0.25
        return events

    edit_log(bases.copy("plain", to), change)
    return expect("log", "the hash chain breaks at line")


@family(6)
def results_edited_against_the_log(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    factor = (0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)[variant]

    def change(info: dict[str, Any]) -> None:
        for field in ("training_time", "training_hardware_flops"):
            info[field] *= factor
        for field in ("mfu", "traced_mfu"):
            info[field] /= factor

    edit_run(directory, change)
    return expect("log", "training_time is", "from the log it is")


@family(4)
def weights_from_before(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A model that its code fills with trained weights, or with counts of the data, while it is built, off the clock."""
    share = (0.3, 0.5, 0.8, 0.4)[variant]

    def change(events: list[Event]) -> list[Event]:
        begin = _steps(events)[0]["loss"]
        for event in _steps(events):
            event["loss"] = min(event["loss"], share * begin + 0.01 * math.sin(event["step"]))
        if variant == 3:  # a first step that is skipped says nothing of the model
            _steps(events)[0]["loss"] = "nan"
        return events

    directory = bases.copy(("plain", "resumed")[variant % 2], to)
    if variant == 3:
        edit_run_json(directory, lambda info: info["config"]["train"].update(skip_bad_steps=True))
    edit_log(directory, change, careful=True)
    return expect("log", "the first step's loss is", "where a new model", "ln 1,000")


@family(3)
def processor_said_to_be_slow(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A peak that is a tenth of what was measured: the same run for a tenth of its cost."""
    write_submission(to, [Plan(steps=20, device="cpu", step_time=0.5)], random.Random(variant))
    share = (0.1, 0.05, 0.02)[variant]

    def change(info: dict[str, Any]) -> None:
        info["device_flops"] *= share
        info["host"]["cores_usable"] = 2.0 if variant else 64.0

    edit_run_json(to, change, careful=True)
    return expect("arithmetic", "the processor's peak is", "a core of x86-64 has at least 16")


@family(2)
def work_done_elsewhere(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A training step that asks the host, which asks another machine; the engine wrote so into run.json."""
    called = (["pure_callback"], ["ffi_call", "io_callback"])[variant]
    directory = bases.copy(("plain", "seeds")[variant], to)
    edit_run_json(directory, lambda info: info.update(calls_out=called), careful=True)
    return expect("log", "the training step calls out of itself", *called)


@family(2)
def parameters_from_elsewhere(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A model that is built from the text that it is scored on, or from trained weights; the engine wrote how much its program held."""
    directory = bases.copy(("plain", "seeds")[variant], to)

    def change(events: list[Event]) -> list[Event]:
        next(event for event in events if event["event"] == "start")["held_bytes"] = 170_000
        return events

    edit_log(directory, change, careful=True)
    return expect("log", "holds 170,000 bytes of its own")


@family(2)
def measured_by_other_code(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """An experiment that replaced Marin's own functions while it trained; the engine wrote their names."""
    directory = bases.copy(("plain", "resumed")[variant], to)

    def change(events: list[Event]) -> list[Event]:
        [event for event in events if event["event"] == "start"][-1]["replaced"] = "time.perf_counter, marin.x.Y.z"
        return events

    edit_log(directory, change, careful=True)
    return expect("log", "other code than their files have stands behind time.perf_counter, marin.x.Y.z")


@family(2)
def measured_by_files_of_no_commit(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Marin changed in the checkout, and git told not to see it; the engine compared the files that it had loaded."""
    directory = bases.copy(("plain", "seeds")[variant], to)
    files = [f"marin/part{number}.py" for number in range((1, 7)[variant])]
    unlike = [*files, "experiments/speedrun/own/main.py"]
    edit_run_json(directory, lambda info: info["git"].update(loaded_unlike=unlike), careful=True)
    return expect("log", "files that its commit does not have so: marin/part0.py" + ("; ", ", ")[variant])


def _steps(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "step"]


@family(8)
def dropped_slow_steps(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Slow steps left out; the careful forger numbers the rest anew, makes the chain again and restates the results."""
    renumbered = variant >= 4

    def change(events: list[Event]) -> list[Event]:
        slow = sorted(_steps(events)[1:-1], key=lambda event: -event["step_time"])[: 2 + variant % 4]
        gone = {event["step"] for event in slow}
        kept = [event for event in events if event["event"] != "step" or event["step"] not in gone]
        if renumbered:
            for number, event in enumerate(_steps(kept)):
                event["step"] = number
            kept[-1]["steps"] = len(_steps(kept))
        return kept

    directory = bases.copy("plain", to)
    edit_log(directory, change, careful=True)
    return (
        expect("log", "neither the clock nor a named pause") if renumbered else expect("log", "the first gap at step")
    )


def _lengthen(events: list[Event], step: Event, seconds: float) -> None:
    """Makes a step one that took `seconds`, as an honest log says it."""
    more = seconds - step["step_time"]
    for event in events[events.index(step) :]:
        event["time"] = round(event["time"] + more, 3)
    step["mfu_model_flops"] = round(step["mfu_model_flops"] * step["step_time"] / seconds, 5)
    step["step_time"] = seconds


@family(12)
def shortened_slow_steps(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    def change(events: list[Event]) -> list[Event]:
        slow = sorted(_steps(events), key=lambda event: -event["step_time"])[: 5 * (variant + 1)]
        if variant >= 8:  # one alone: the first, the last two, one in the middle
            slow = [_steps(events)[(0, -1, -2, 30)[variant - 8]]]
            _lengthen(events, slow[0], 0.6)
        for event in slow:
            event["mfu_model_flops"] = round(event["mfu_model_flops"] * 2, 5)
            event["step_time"] /= 2
        return events

    edit_log(bases.copy("plain", to), change, careful=True)
    return expect("log", "neither the clock nor a named pause")


@family(8)
def off_clock_work(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The timer stands still around work between steps: at one place, or a little at every step."""
    seconds = (0.3, 1.0, 5.0, 60.0)[variant % 4]

    def change(events: list[Event]) -> list[Event]:
        at = len(events) // 2
        for number, event in enumerate(events):
            event["time"] = round(
                event["time"] + (seconds * number / len(events) if variant >= 4 else seconds * (number > at)), 3
            )
        return events

    edit_log(bases.copy("plain", to), change, careful=True)
    return expect("log", "neither the clock nor a named pause")


@family(4)
def resumed_on_a_larger_machine(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A few steps on a small machine, whose peak the cost counts, and the rest on a large one: as the engine itself logs it."""
    chips, factor = ((8, 1.0), (1, 8.0), (2, 1.0), (64, 0.5))[variant]

    def change(events: list[Event]) -> list[Event]:
        at = next(number for number, event in enumerate(events) if event.get("step") == 3)
        before = events[at - 1]["time"]
        machine = json.loads((directory / "logs" / "0" / "run.json").read_text())
        start = {
            "event": "start", "from_step": 3, "setup_time": 0.0, "compile_time": 0.0, "time": before,
            "num_chips": chips * machine["num_chips"], "device_flops": factor * machine["device_flops"],
        }  # fmt: skip
        return [*events[:at], start, {"event": "clock", "time": before}, *events[at:]]

    directory = bases.copy("plain", to)
    edit_log(directory, change, careful=True)
    return expect("log", "computed on", "the cost counts")


@family(4)
def clock_that_begins_late(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The line with which a process begins to count is left out, so that its first step may be as short as one likes."""

    def change(events: list[Event]) -> list[Event]:
        first = next(event for event in events if event["event"] == "step")
        first["step_time"] = round(first["step_time"] * (1.0, 0.9, 0.5, 0.1)[variant], 6)
        return [event for event in events if event["event"] != "clock"]

    edit_log(bases.copy("plain", to), change, careful=True)
    return expect("log", "has no line `clock`")


@family(4)
def second_beginning(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A run that begins twice at step 0, the second time with weights from elsewhere, whose training the cost does not count."""

    def change(events: list[Event]) -> list[Event]:
        first = next(number for number, event in enumerate(events) if event["event"] == "step")
        head = [dict(event) for event in events[: first + 4]]
        later = 60.0 + head[-1]["time"] - events[0]["time"]
        for event in events:
            event["time"] = round(event["time"] + later, 3)
            if event["event"] == "step":
                event["loss"] = event["loss"] * (0.9, 0.7, 0.5, 0.95)[variant]
        return [*head, *events]

    edit_log(bases.copy("plain", to), change, careful=True)
    return expect("log", "did not go on from the run's own weights")


@family(6)
def resumed_tail_only(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Only the last process's steps: in the results alone, or with the log cut and every figure restated."""
    directory = bases.copy("resumed", to)
    if variant < 3:
        events = log_events(directory)
        last = max(number for number, event in enumerate(events) if event["event"] == "start")
        time = sum(event["step_time"] for event in _steps(events[last:]))

        def change(info: dict[str, Any]) -> None:
            factor = time / info["training_time"]
            info.update(training_time=time, training_hardware_flops=info["training_hardware_flops"] * factor)
            info.update(mfu=info["mfu"] / factor, traced_mfu=info["traced_mfu"] / factor)
            if variant == 1:
                info.update(resumed=False)
            if variant == 2:
                info.update(num_resumes=0)

        edit_run(directory, change)
        return expect("log", "training_time is", "from the log it is")

    def tail(events: list[Event]) -> list[Event]:
        starts = [number for number, event in enumerate(events) if event["event"] == "start"]
        kept = events[starts[-1] if variant != 4 else starts[1] :]
        if variant == 5:  # numbered from 0
            first = kept[0]["from_step"]
            for event in kept:
                for field in ("from_step", "step"):
                    if field in event:
                        event[field] -= first
            kept[-1]["steps"] -= first
        return kept

    edit_log(directory, tail, careful=True)
    return expect("log", "its config plans") if variant == 5 else expect("log", "the first gap at step 0")


@family(8)
def time_travel(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    if variant < 2:
        shift = (4e8, 3e9)[variant]
        edit_log(directory, lambda events: [{**event, "time": event["time"] + shift} for event in events], careful=True)
        return expect("log", "has not come yet")
    if variant < 4:
        set_figure(
            without_logs(directory),
            "run_completion_timestamp",
            ("2099-01-01 00:00:00 UTC", "2040-02-03 04:05:06 UTC")[variant - 2],
        )
        return expect("arithmetic", "has not come yet")
    if variant == 4:
        set_figure(directory, "run_completion_timestamp", "2024-01-01 00:00:00 UTC")
        return expect("log", "run_completion_timestamp is")
    if variant == 5:
        return expect("log", "before its commit was made", context=Context(commit_time=lambda commit: BEGIN + 1e6))

    def backwards(events: list[Event]) -> list[Event]:
        events[len(events) // 2]["time"] -= 5.0 if variant == 6 else 3600.0
        return events

    edit_log(directory, backwards, careful=True)
    return expect("log", "time runs backwards")


@family(2)
def processor_renamed(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A run on a processor that claims another one than its log has, or none."""
    directory = write_submission(to, [Plan(steps=12, device="cpu")], random.Random(variant))
    edit_run(directory, lambda info: info.update(processor=("Intel Pentium", "")[variant]))
    return expect("log", "processor is", "from the log it is 'Example CPU'")


@family(6)
def log_of_another_config(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    if variant == 0:
        edit_run_json(directory, lambda info: info["config"]["train"].update(num_train_steps=600), careful=True)
        return expect("log", "its config plans 600")
    if variant == 1:
        edit_run_json(directory, lambda info: info["config"]["train"].update(train_batch_size=4), careful=True)
        return expect("log", "tokens, its batch has 4 x")
    if variant == 2:
        edit_run_json(directory, lambda info: info.update(num_parameters=5_000), careful=True)
        return expect("log", "run.json says 5,000 parameters")
    if variant == 3:
        edit_run_json(directory, lambda info: info["seeds"].update(model=5))
        return expect("log", "the hash chain breaks at line 1")
    if variant == 4:
        edit_run_json(
            directory, lambda info: info.update(model_flops_per_token=info["model_flops_per_token"] / 2), careful=True
        )
        return expect("log", "model_flops_per_token is", "run.json says")
    edit_run(directory, lambda info: info["train_config"].update(learning_rate=0.5))
    return expect("log", "train_config is")


@family(8)
def broken_log(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    path = directory / "logs" / "0" / "metrics.jsonl"
    content = path.read_bytes()
    if variant == 0:
        path.write_bytes(content[:-20])
        return expect("log", "is cut off")
    if variant == 1:
        path.write_bytes(b"")
        return expect("log", "metrics.jsonl is empty")
    if variant == 2:
        path.write_bytes(content.replace(b'"step_time":', b'"step_time":"x","was":', 1))
        return expect("log", "`step_time` is 'x'", "expected seconds")
    if variant == 3:
        path.write_bytes(content.replace(b'"step_time":', b'"step_time":0.0,"step_time":', 1))
        return expect("log", "'step_time' appears twice")
    if variant == 4:
        path.write_bytes(content.replace(b'"step_time":', b'"step_time":-', 1))
        return expect("log", "`step_time` is '-", "expected seconds")
    if variant == 5:
        path.write_bytes(content.replace(b'"time":1', b'"time":1e999,"was":1', 1))
        return expect("log", "expected seconds")
    if variant == 6:
        path.write_bytes(b"[" * 20_000 + b"\n" + content)
        return expect("log", ":1", "nested too deep")
    path.unlink()
    return expect("log", "no such file")


@family(6)
def chain_removed(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Without a chain, or with one only from some line on, the log rung stays open."""
    directory = bases.copy("plain", to)

    def change(events: list[Event]) -> list[Event]:
        for event in events[: len(events) if variant < 3 else 4 * variant]:
            event.pop("chain")
        return events

    events = change(log_events(directory))
    write_log(directory, events, chained=False)
    if variant < 3:
        bind(directory)
        restate(directory)
        return expect("log", "has no hash chain")
    return expect("log", "the hash chain breaks at line")


@family(4)
def warm_start(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A run that begins with trained weights, whose cost it does not count; said in both files, as the engine does."""
    name = ("initialize_from_checkpoint_path", "initialize_from_hf")[variant % 2]
    where = ("gs://bucket/other-run", "organization/model")[variant // 2]
    directory = bases.copy("plain", to)
    edit_run_json(directory, lambda info: info["config"]["train"].update({name: where}), careful=True)
    return expect("arithmetic", f"{name} is set")


@family(2)
def time_beyond_all_calendars(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    def change(events: list[Event]) -> list[Event]:
        events[-1]["time"] = (1e17, 1e19)[variant]
        return events

    directory = bases.copy("plain", to)
    write_log(directory, change(log_events(directory)), chained=True)
    bind(directory)
    return expect("log", "no results can be made from the log")


@family(4)
def other_training_data(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The track's data in the results, and other data in the log."""
    directory = bases.copy("plain", to)
    stated = (
        "tokenized/fineweb-edu-10B",
        "other/tokenized/example",
        "example-2",
        "1 x tokenized/example + 0 x tokenized/fineweb-edu",
    )
    set_figure(directory, "tokenized_dataset", stated[variant])
    return expect("log", "tokenized_dataset is")


@family(4)
def stopped_where_it_liked(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A run that was ended at a lucky place, under the name of a budget that it was far from."""
    directory = bases.copy("plain", to)
    budget = (
        {"training_time": 600.0},
        {"hardware_flops": 1e18, "training_time": None},
        {"training_time": 8.0},
        {"flops": 1},
    )[variant]
    edit_run_json(directory, lambda info: info["config"]["train"].update(budget=budget, num_train_steps=80))

    def stop(events: list[Event]) -> list[Event]:
        events[-1]["stopped_by"] = "budget"
        return events

    edit_log(directory, stop, careful=True)
    return expect("log", "said to have stopped at its budget")


@family(2)
def data_seed_renamed(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """One order of the data under the number of another."""
    directory = bases.copy("plain", to)
    seed = (0, 43)[variant]
    edit_run_json(directory, lambda info: info["config"]["train"].update(data_seed=seed), careful=True)
    return expect("log", f"the seed of the data was 42, its config has {seed}")
