"""The runs of one submission beside each other: each must be a run of its own.

Seeds that leave numbers out are a sign that other runs were made and left out too, the best of which are shown. A log cannot say
what was left out, so such a submission is asked, not refused.
"""

import json
from collections.abc import Sequence

from marin.speedrun.arithmetic.findings import significant_digits
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding
from marin.speedrun.verification.texts import same_name

_ALL_DIGITS = 7  # significant digits from which a time is of one run alone
_USUAL_DATA_SEED = 42  # the engine's own, whose config needs JAX to be imported


def check_seeds(runs: Sequence[RunInfo]) -> list[list[Finding]]:
    """Findings for each run, those of its kin before it considered."""
    found: list[list[Finding]] = [[] for _ in runs]
    first: dict[tuple[str, object], int] = {}
    seeds: dict[str, list[tuple[int, int]]] = {}
    data_seeds: dict[str, list[tuple[int, int]]] = {}
    authors: dict[str, int] = {}
    times: dict[float, int] = {}
    for number, run in enumerate(runs):
        if run.training_time and significant_digits(run.training_time) >= _ALL_DIGITS:
            same = times.setdefault(run.training_time, number)
            if same != number:
                message = f"training_time is that of run {same} to the last digit: no two runs take the same time"
                found[number].append(Finding("arithmetic", "error", "training_time", message))
        key = experiment_of(run)
        one = authors.setdefault(key, number)
        if run.train_config and not same_name(run.author.name, runs[one].author.name):
            message = f"the run is of the same experiment as run {one}, and names another author: its seed would leave the other's mean"
            found[number].append(Finding("submission", "error", "author.name", message))
        if run.seed is None:
            continue
        planned = (run.train_config or {}).get("seed")
        if type(planned) is int and planned != run.seed:
            message = f"seed is {run.seed}, train_config has {planned}: a run renamed to be another seed's"
            found[number].append(Finding("arithmetic", "error", "seed", message, planned))
        data_seed = (run.train_config or {}).get("data_seed")
        before = first.setdefault((key, (run.seed, repr(data_seed))), number)
        seeds.setdefault(key, []).append((run.seed, number))
        if isinstance(data_seed, int) and data_seed not in (run.seed, _USUAL_DATA_SEED):
            data_seeds.setdefault(key, []).append((data_seed, number))
        if before != number:
            message = f"seed {run.seed} of the same config is run {before}'s already: a seed counts once"
            found[number].append(Finding("arithmetic", "error", "seed", message))
    for entries in seeds.values():
        used = sorted({seed for seed, _ in entries})
        if used[0] > 0 and len(entries) == 1:
            found[entries[0][1]].append(Finding(
                "statistics", "warning", "seed", f"one run, of seed {used[0]}: those below may be runs that were left out, as the best of many"
            ))  # fmt: skip
        elif used != list(range(used[0], used[0] + len(used))):
            message = f"seeds {', '.join(map(str, used[:12]))}: those between may be runs that were left out, as the best of many"
            for _, number in entries:
                found[number].append(Finding("statistics", "warning", "seed", message))
    for entries in data_seeds.values():
        used = sorted({seed for seed, _ in entries})
        if used != [0] and (len(used) == 1 or used != list(range(used[0], used[0] + len(used)))):
            message = (
                f"data seeds {', '.join(map(str, used[:12]))}: neither the usual {_USUAL_DATA_SEED}, nor the runs' seeds, nor numbers in a row;"
                " others may have been left out, as the best of many"
            )
            for _, number in entries:
                found[number].append(Finding("statistics", "warning", "data_seed", message))
    return found


def experiment_of(run: RunInfo) -> str:
    """What runs share that differ in their seeds alone: configs, hardware and data."""
    return json.dumps([run.model, run.train_config_but_seeds, run.resources, run.tokenized_dataset], sort_keys=True)
