"""What a family of forgeries is, and the register of them all.

A family is a function that spoils a copy of an honest submission in the `variant`-th way, and says which rung must tell and with
which words. `None` for a rung means that the file is not even read. "RAISED" stands for those that cannot be told from the truth.
"""

import dataclasses
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

from forgeries.honest import Plan, write_submission

from marin.speedrun.verdict import Rung
from marin.speedrun.verification import Context, KnownRun, known_runs_of

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
    """Honest submissions that are copied before they are spoiled, and the known runs of two of them."""

    plain: pathlib.Path
    resumed: pathlib.Path
    seeds: pathlib.Path
    device: pathlib.Path
    core: pathlib.Path
    long: pathlib.Path
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
        core = write_submission(folder / "core", [Plan(steps=40, core=True)], rng)
        long = write_submission(folder / "long", [Plan(steps=240, eval_every=60)], rng)
        known = (*known_runs_of(plain, "plain"), *known_runs_of(long, "long"))
        return Bases(plain, resumed, seeds, device, core, long, known)

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
