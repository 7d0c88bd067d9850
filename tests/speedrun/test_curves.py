"""Whether two logs are of one run: copies whose steps were moved against each other, and honest runs that look alike."""

import dataclasses
import itertools
import math
import pathlib
import random
from collections.abc import Sequence

import pytest

from marin.speedrun.verification import known_runs_of
from marin.speedrun.verification.curves import Curves, compare_curves

STEPS = 400


def _run(seed: int, usual: float = 0.2, jitter: float = 0.02, steps: int = STEPS) -> Curves:
    """A run whose step times are `usual` but for a part of it, and now and then a slow one."""
    rng = random.Random(seed)
    times = [round(usual * (1 + rng.gauss(0, jitter) + (rng.random() < 0.02) * rng.random()), 6) for _ in range(steps)]
    losses = [2 + 6 * math.exp(-4 * step / steps) + rng.gauss(0, 0.03) for step in range(steps)]
    return Curves(f"log {seed}", "config", (seed, seed), tuple(losses), tuple(times))


def _kept(run: Curves, indices: Sequence[int], noise: float = 0.0) -> Curves:
    """A log made of some steps of another's, under another seed."""
    rng = random.Random(1)
    return dataclasses.replace(
        run, log_digest="forged", seeds=(77, 77), losses=tuple(run.losses[i] + rng.gauss(0, 0.05) for i in indices),
        step_times=tuple(round(run.step_times[i] * (1 + rng.gauss(0, noise)), 6) for i in indices),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "indices"),
    [
        ("first step left out", range(1, STEPS)),
        ("first three left out", range(3, STEPS)),
        ("first half left out", range(STEPS // 2, STEPS)),
        ("every twentieth left out", [i for i in range(STEPS) if i % 20]),
        ("first step twice", [0, *range(STEPS)]),
        ("halves exchanged", [*range(STEPS // 2, STEPS), *range(STEPS // 2)]),
    ],
)
def test_log_whose_steps_were_moved_against_those_it_was_copied_from_is_told(name: str, indices: Sequence[int]) -> None:
    original = _run(0)
    (found,) = compare_curves(_kept(original, indices), original, "victim", same_author=False)
    assert found.severity == "error" and "those of victim" in found.message and "the log was copied" in found.message


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_noise_over_a_log_whose_first_steps_were_left_out_hides_nothing(shift: int) -> None:
    original = _run(0)
    forged = _kept(original, range(shift, STEPS), noise=0.002)
    (found,) = compare_curves(forged, original, "victim", same_author=False)
    assert "go up and down with those of victim" in found.message


@pytest.mark.parametrize("left_out", [0, 1, 3])
def test_losses_of_another_with_noise_are_told_under_new_times_and_from_a_later_step_on(left_out: int) -> None:
    original, own = _run(0), _run(5)
    noise = random.Random(2)
    losses = tuple(loss * (1 + noise.gauss(0, 5e-4)) for loss in original.losses[left_out:])
    forged = dataclasses.replace(own, losses=losses, step_times=own.step_times[left_out:])
    (found,) = compare_curves(forged, original, "victim", same_author=False)
    assert "two seeds never come so close" in found.message


@pytest.mark.parametrize(("usual", "jitter"), [(0.2, 0.02), (0.2, 3e-6), (0.012, 1e-4)])
def test_logs_of_two_runs_of_even_steps_are_two_runs(usual: float, jitter: float) -> None:
    """Also where a device is so even that its step times repeat to the microsecond."""
    runs = [_run(seed, usual, jitter, steps=300) for seed in range(12)]
    for one, other in itertools.combinations(runs, 2):
        assert not list(compare_curves(one, other, "other", same_author=False))


@pytest.mark.parametrize("every", [2, 3, 5, 7, 10])
@pytest.mark.parametrize("longer", [1.3, 3.0])
def test_runs_of_an_optimizer_that_takes_longer_every_few_steps_are_two_runs(every: int, longer: float) -> None:
    """As SOAP and Sophia do; the times of the one with noise over them are still a copy."""
    first, second = (
        dataclasses.replace(run, step_times=tuple(
            round(time * (1 if step % every else longer), 6) for step, time in enumerate(run.step_times)
        ))
        for run in (_run(0), _run(1))
    )  # fmt: skip
    assert not list(compare_curves(second, first, "another", same_author=False))
    forged = _kept(first, range(1, STEPS), noise=0.01)
    (found,) = compare_curves(forged, first, "victim", same_author=False)
    assert "go up and down with those of victim" in found.message


def test_smooth_losses_that_run_a_little_behind_anothers_are_no_copy() -> None:
    ours, theirs = (
        dataclasses.replace(
            _run(seed), losses=tuple(2 + 6 * math.exp(-4 * (step + 2 * seed) / STEPS) * (1 + random.Random(1000 * seed + step).gauss(0, 2e-4)) for step in range(STEPS))
        )
        for seed in (0, 1)
    )  # fmt: skip
    assert not list(compare_curves(theirs, ours, "other", same_author=False))


def test_real_runs_of_one_config_are_runs_of_their_own(repository: pathlib.Path) -> None:
    known = known_runs_of(repository / "experiments" / "speedrun" / "cpu_ngram_gpt")
    curves = [run.curves for run in known if run.curves is not None]
    assert len(curves) == 5
    for one, other in itertools.permutations(curves, 2):
        assert not [
            found for found in compare_curves(one, other, "other", same_author=True) if found.severity == "error"
        ]
