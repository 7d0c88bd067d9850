"""Forgeries of CORE: scores without their counts, or counts that do not give them."""

import pathlib
from typing import Any

from forgeries.editing import bind, digest, edit_run, results_of
from forgeries.register import Bases, Expected, expect, family

from marin.speedrun.verification import Context, known_runs_of


@family(2)
def core_metric_without_evidence(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """CORE typed into the results of a run whose log fits: it does not reach the rung of the log."""
    directory = bases.copy("plain", to)
    edit_run(directory, lambda info: info.update(core_metric=(0.26, 0.9)[variant], core_version="v1"))
    return expect("log", "CORE is as stated")


@family(6)
def core_that_its_counts_do_not_give(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    directory = bases.copy("core", to)

    def change(info: dict[str, Any]) -> None:
        tasks = info["core"]["tasks"]
        match variant:
            case 0:
                info["core_metric"] += 1e-6
            case 1:
                info["core_version"] = "v2"
            case 2:
                info["core_metric"] = 1.7
            case 3:
                info["core_version"] = "my own"
            case 4:
                tasks["copa"]["num_correct"] += 1
            case 5:
                info["core"] = None
                info["digests"]["evaluation_link"] = None

    edit_run(directory, change)
    return expect(
        *(
            ("arithmetic", "the counts of its tasks give"), ("arithmetic", "by v2"), ("arithmetic", "no mean of centered accuracies"),
            ("arithmetic", "say which baselines"), ("log", "last link is of another evaluation"), ("arithmetic", "CORE is not recomputable"),
        )[variant]
    )  # fmt: skip


@family(2)
def core_of_one_model_for_two_runs(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The best seed's CORE under another run's log: within a submission, or a known run's. Links are made to fit."""
    directory = bases.copy(("seeds", "plain")[variant], to)
    model = results_of(bases.core)["runs"][0]["run_info"]
    run = 0 if variant else 1
    for number in {0, run}:

        def take(info: dict[str, Any]) -> None:
            info["core"] = {**model["core"], "weights": info["digests"]["checkpoint"]}
            info.update(core_metric=model["core_metric"], core_version="v1")

        edit_run(directory, take, number)
        bind(directory, number)
    known = known_runs_of(bases.core, "theirs") if variant else []
    words = "those of theirs" if variant else "those of run 0"
    return expect("arithmetic", "the scores of each item of", words, run=run, context=Context(known=tuple(known)))


@family(6)
def core_of_fewer_items_or_tasks(bases: Bases, to: pathlib.Path, variant: int) -> Expected:
    """The metric, the link and all else made to fit."""
    directory = bases.copy("core", to)

    def change(info: dict[str, Any]) -> None:
        tasks = info["core"]["tasks"]
        match variant:
            case 0:
                del tasks["boolq"]
            case 1:
                tasks["hellaswag"]["num_items"] = 500
            case 2:
                tasks["squad"]["num_correct"] = tasks["squad"]["num_items"] + 1
            case 3:
                tasks["squad"]["num_correct"] = -1
            case 4:
                tasks["my_task"] = {"num_items": 10, "num_correct": 10}
            case 5:
                info["core"]["weights"] = digest("other weights")

    edit_run(directory, change)
    bind(directory)
    return expect(
        *(
            ("arithmetic", "boolq is missing"), ("arithmetic", "an estimate, not CORE"), ("arithmetic", "are said to be right"),
            ("arithmetic", "are said to be right"), ("arithmetic", "'my_task' is no task of CORE"), ("log", "CORE was measured on the checkpoint"),
        )[variant]
    )  # fmt: skip
