"""The runs of one submission beside each other: each must be a run of its own.

Seeds that leave numbers out are a sign that other runs were made and left out too, the best of which are shown. A log cannot say
what was left out, so such a submission is asked, not refused.
"""

import itertools
import json
from collections.abc import Iterator, Sequence

from marin.speedrun.arithmetic.findings import significant_digits
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding
from marin.speedrun.verification.texts import same_name

_ALL_DIGITS = 7  # significant digits from which a time is of one run alone
_USUAL_DATA_SEED = 42  # the engine's own, whose config needs JAX to be imported


_Found = Iterator[tuple[int, Finding]]  # with the number of the run that it is about


def check_seeds(runs: Sequence[RunInfo]) -> list[list[Finding]]:
    """Findings for each run, those of its kin before it considered."""
    kin: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        kin.setdefault(experiment_of(run), []).append(number)
    checks = (_other_authors, _renamed, _repeated_seeds, _missing_seeds, _chosen_data_seeds)
    found: list[list[Finding]] = [[] for _ in runs]
    for number, finding in itertools.chain(
        _repeated_times(runs), *(check(runs, numbers) for numbers in kin.values() for check in checks)
    ):
        found[number].append(finding)
    return found


def _repeated_times(runs: Sequence[RunInfo]) -> _Found:
    times: dict[float, int] = {}
    for number, run in enumerate(runs):
        if run.training_time and significant_digits(run.training_time) >= _ALL_DIGITS:
            first = times.setdefault(run.training_time, number)
            if first != number:
                message = f"training_time is that of run {first} to the last digit: no two runs take the same time"
                yield number, Finding("arithmetic", "error", "training_time", message)


def _other_authors(runs: Sequence[RunInfo], numbers: Sequence[int]) -> _Found:
    first = numbers[0]
    for number in numbers[1:]:
        if runs[number].train_config and not same_name(runs[number].author.name, runs[first].author.name):
            message = f"the run is of the same experiment as run {first}, and names another author: its seed would leave the other's mean"
            yield number, Finding("submission", "error", "author.name", message)


def _renamed(runs: Sequence[RunInfo], numbers: Sequence[int]) -> _Found:
    for number in numbers:
        seed, planned = runs[number].seed, (runs[number].train_config or {}).get("seed")
        if seed is not None and type(planned) is int and planned != seed:
            message = f"seed is {seed}, train_config has {planned}: a run renamed to be another seed's"
            yield number, Finding("arithmetic", "error", "seed", message, planned)


def _repeated_seeds(runs: Sequence[RunInfo], numbers: Sequence[int]) -> _Found:
    first: dict[tuple[int, str], int] = {}
    for number in numbers:
        if (seed := runs[number].seed) is None:
            continue
        before = first.setdefault((seed, repr(_data_seed(runs[number]))), number)
        if before != number:
            message = f"seed {seed} of the same config is run {before}'s already: a seed counts once"
            yield number, Finding("arithmetic", "error", "seed", message)


def _missing_seeds(runs: Sequence[RunInfo], numbers: Sequence[int]) -> _Found:
    seeded = [(number, seed) for number in numbers if (seed := runs[number].seed) is not None]
    used = sorted({seed for _, seed in seeded})
    if len(seeded) == 1 and used[0] > 0:
        message = f"one run, of seed {used[0]}: those below may be runs that were left out, as the best of many"
    elif used and not _in_a_row(used):
        message = f"seeds {_listed(used)}: those between may be runs that were left out, as the best of many"
    else:
        return
    for number, _ in seeded:
        yield number, Finding("statistics", "warning", "seed", message)


def _chosen_data_seeds(runs: Sequence[RunInfo], numbers: Sequence[int]) -> _Found:
    stated = [(number, _data_seed(runs[number])) for number in numbers if runs[number].seed is not None]
    chosen = [
        (number, seed)
        for number, seed in stated
        if isinstance(seed, int) and seed not in (runs[number].seed, _USUAL_DATA_SEED)
    ]
    used = sorted({seed for _, seed in chosen})
    if not used or used == [0] or (len(used) > 1 and _in_a_row(used)):
        return
    message = (
        f"data seeds {_listed(used)}: neither the usual {_USUAL_DATA_SEED}, nor the runs' seeds, nor numbers in a row;"
        " others may have been left out, as the best of many"
    )
    for number, _ in chosen:
        yield number, Finding("statistics", "warning", "data_seed", message)


def _data_seed(run: RunInfo) -> object:
    return (run.train_config or {}).get("data_seed")


def _in_a_row(seeds: Sequence[int]) -> bool:
    return list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds[:12]))


def experiment_of(run: RunInfo) -> str:
    """What runs share that differ in their seeds alone: configs, hardware and data."""
    return json.dumps([run.model, run.train_config_but_seeds, run.resources, run.tokenized_dataset], sort_keys=True)
