"""Forgeries made of others' runs: copies, noise on copies, seeds used twice, the best of many."""

import pathlib
import random
import shutil
from typing import Any

from forgeries.editing import bind, edit_log, edit_run, edit_run_json, results_of, set_figure
from forgeries.honest import Plan, write_submission
from forgeries.register import Bases, Event, Expected, expect, family, without_logs

from marin.speedrun.verification import Context


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


@family(8)
def perturbed_copy_of_another_shape(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Quality and time a little changed, and a step more or fewer, a larger vocabulary, or twice the chips for half of the time."""
    directory = without_logs(bases.copy("plain", to))
    factor = 1 + (5e-4, -5e-4)[variant % 2]

    def change(info: dict[str, Any]) -> None:
        _anonymous(info, "Eve Copy")
        info["digests"] = None
        for key in ("bits_per_byte", "levanter_bits_per_byte"):
            info["evaluation"][key] *= factor
        info["training_time"] *= 2 - factor
        match variant // 2:
            case 0 | 1:
                steps = info["num_train_steps"] + (1, -1)[variant // 2]
                info["total_tokens"] = info["total_tokens"] // info["num_train_steps"] * steps
                info["num_train_steps"] = info["train_config"]["num_train_steps"] = steps
            case 2:
                info["model_size"] += 2 * 24 * info["model_config"]["hidden_dim"]
            case 3:
                info["training_time"] /= 2
                info["num_chips"] = info["num_devices"] = info["resources"]["gpu_count"] = 2
        info["model_flops"] = 3 * info["model_flops_per_token"] * info["total_tokens"]
        info["traced_flops"] = info["traced_training_flops_per_token"] * info["total_tokens"]
        info["training_hardware_flops"] = info["training_time"] * info["device_flops"] * info["num_chips"]
        info["mfu"] = info["model_flops"] / info["training_hardware_flops"]
        info["traced_mfu"] = info["traced_flops"] / info["training_hardware_flops"]

    edit_run(directory, change)
    return expect("arithmetic", "is within", "of plain", "hand in the log", context=Context(known=bases.known))


@family(4)
def steps_of_a_copy_merged(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """A known run's log with each two or three of its steps made one of a larger batch, with noise on all of their times or on one."""
    directory = bases.copy("plain" if variant < 2 else "long", to)
    group, rng = 2 + variant % 2, random.Random(variant)

    def change(events: list[Event]) -> list[Event]:
        kept, parts, shift = [], [], 0.0
        for event in events:
            if event["event"] == "step":
                parts.append(event)
                if len(parts) < group:
                    continue
                event["step"] //= group
                event["tokens"] *= group
                old = sum(part["step_time"] for part in parts[:-1]) + parts[-1]["step_time"]
                new = old * (1 + rng.gauss(0, 5e-3)) if variant >= 2 else old + 1e-5 * (event["step"] == 3)
                event["step_time"] = round(new, 6)
                event["loss"] += rng.gauss(0, 0.02)
                shift += new - old
                parts = []
            elif "step" in event:
                event["step"] //= group
            elif "steps" in event:
                event["steps"] //= group
            event["time"] = round(event["time"] + shift, 3)
            kept.append(event)
        return kept

    def settings(info: dict[str, Any]) -> None:
        train = info["config"]["train"]
        train["num_train_steps"] //= group
        train["train_batch_size"] *= group
        for name in ("steps_per_eval", "steps_per_export"):
            train[name] //= group
        info["seeds"]["model"] = 7

    edit_run_json(directory, settings)
    edit_log(directory, change, careful=True)
    edit_run(directory, lambda info: _anonymous(info, "Eve Copy"))
    return expect("log", f"{group} steps as one", "the log was copied", context=Context(known=bases.known))


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


@family(2)
def unlucky_seed_under_another_name(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The seed that spoils the mean is said to be of somebody else, so that it makes a row of its own."""
    directory = bases.copy("seeds", to)
    edit_run(directory, lambda info: info["author"].update(name=("Ada Example and Eve", "Eve")[variant]), 2)
    return expect("submission", "of the same experiment as run 0", "names another author", run=2)


@family(3)
def seed_renamed(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The best of many seeds are renamed to be the first ones, where results have them from, and not in the config."""
    write_submission(to, [Plan(steps=12, seed=seed) for seed in (4, 7, 9)], random.Random(variant))
    for run in range(3):
        edit_run_json(to, lambda info, run=run: info["seeds"].update(model=run), run, careful=True)
    return expect("log", f"the seed was {variant}, its config has {(4, 7, 9)[variant]}", run=variant)


@family(3)
def seed_renamed_without_logs(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The same where only the config in the results still says which seed it was."""
    write_submission(to, [Plan(steps=12, seed=seed) for seed in (4, 7, 9)], random.Random(variant))
    for run in range(3):
        edit_run(to, lambda info, run=run: info.update(seed=run), run)
    without_logs(to)
    return expect("arithmetic", f"seed is {variant}, train_config has {(4, 7, 9)[variant]}", run=variant)


@family(3)
def seed_left_out(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Without its seed one run could stand for several: it is left out of the results, not of the log."""
    directory = bases.copy("seeds", to)
    edit_run(directory, lambda info: info.pop("seed"), variant)
    return expect("log", "seed is None", run=variant)


@family(2)
def one_run_as_several_seeds(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The best run's figures under every seed, where no log says otherwise."""
    directory = without_logs(bases.copy("seeds", to))
    target = variant + 1
    best = results_of(directory)["runs"][0]["run_info"]
    figures = ("training_time", "training_hardware_flops", "mfu", "traced_mfu", "evaluation", "digests")
    edit_run(directory, lambda info: info.update({name: best[name] for name in figures}), target)
    return expect("arithmetic", "training_time is that of run 0 to the last digit", run=target)


@family(3)
def best_order_of_the_data(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """Seeds without a gap, each with the luckiest of many orders of its data."""
    directory = bases.copy("seeds", to)
    for run, seed in enumerate(((17, 93, 5), (7, 7, 7), (0, 2, 1_000_000))[variant]):
        edit_run_json(
            directory, lambda info, seed=seed: (info["config"]["train"].update(data_seed=seed), info["seeds"].update(data=seed)), run, careful=True
        )  # fmt: skip
    return expect("statistics", "data seeds", "the best of many", run=2)
