"""How often the contest's rule takes chance for a record: simulated contests in which no entry is better than the first."""

import random

import pytest

from marin.speedrun.statistics.means import Noise, Sample, beats, beats_bound, sample_of
from marin.speedrun.tracks import BITS_NOISE, CORE_NOISE

KNOWN = [CORE_NOISE, BITS_NOISE]


def _runs(source: random.Random, n: int, sd: float) -> Sample:
    return sample_of([source.gauss(0.0, sd) for _ in range(n)])


def _contest_rate(
    noise: Noise | None, runs: tuple[int, ...], *, contests: int, entries: int, seed: int, first: int | None = None
) -> float:
    """Records after the first, as a part of all entries after the first, each with a number of runs drawn from `runs`.

    `first` is how many runs the first entry has, where that is not drawn.
    """
    source = random.Random(seed)
    sd = 1.0 if noise is None else noise.sd
    false = 0
    for _ in range(contests):
        record = _runs(source, first or source.choice(runs), sd)
        for _ in range(entries - 1):
            entry = _runs(source, source.choice(runs), sd)
            if beats(entry, record, higher_is_better=True, noise=noise).passes(0.01):
                record, false = entry, false + 1
    return false / (contests * (entries - 1))


@pytest.mark.parametrize("noise", KNOWN, ids=["core", "bits"])
def test_contests_of_equal_entries_have_less_than_one_percent_of_false_records(noise: Noise) -> None:
    assert _contest_rate(noise, (1, 2, 3, 5), contests=200, entries=25, seed=1) < 0.01


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_entries_whose_seeds_differ_far_more_than_the_noise_model_says_are_no_records_by_chance(runs: int) -> None:
    """Of another kind of model, say, than those that it was measured on."""
    source, wide = random.Random(5), 20 * BITS_NOISE.sd
    false = sum(
        beats(_runs(source, runs, wide), _runs(source, runs, wide), higher_is_better=True, noise=BITS_NOISE).passes(
            0.01
        )
        for _ in range(4000)
    )
    assert false / 4000 < 0.012


def test_contests_without_a_noise_model_have_less_than_one_percent_of_false_records() -> None:
    assert _contest_rate(None, (3, 5), contests=100, entries=25, seed=2) < 0.01


@pytest.mark.parametrize("runs", [(2,), (3, 5), (1, 2, 3, 5)])
def test_contests_that_begin_with_one_run_have_less_than_one_percent_of_false_records(runs: tuple[int, ...]) -> None:
    """Without a noise model, so that the one run is judged by the spread of those that challenge it."""
    assert _contest_rate(None, runs, contests=300, entries=25, seed=6, first=1) < 0.01


@pytest.mark.parametrize(("runs", "other_spread"), [(2, 1.0), (3, 1.0), (10, 1.0), (3, 1 / 3)])
def test_one_run_is_beaten_by_equal_ones_in_one_percent_where_it_differs_no_more_than_they_do(
    runs: int, other_spread: float
) -> None:
    source = random.Random(9)
    passed = sum(
        beats(_runs(source, runs, 1.0), _runs(source, 1, other_spread), higher_is_better=True, noise=None).passes(0.01)
        for _ in range(8000)
    )
    assert passed / 8000 < 0.0133  # three standard errors above


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "runs", "first"),
    [
        (CORE_NOISE, (1, 2, 5), None), (BITS_NOISE, (1,), None), (BITS_NOISE, (1, 2, 5), None), (None, (3, 5), None),
        (None, (10,), None), (None, (2,), 1), (None, (2, 3, 5), 1), (None, (10,), 1),
    ],
)  # fmt: skip
def test_many_contests_of_equal_entries_have_less_than_one_percent_of_false_records(
    noise: Noise | None, runs: tuple[int, ...], first: int | None
) -> None:
    rate = _contest_rate(noise, runs, contests=10_000, entries=20, seed=3, first=first)
    print(
        f"{noise and noise.sd}, {runs} runs, {first or 'as many'} at first: false records {rate:.3%} of 190,000 entries"
    )
    assert rate < 0.01


def test_runs_that_only_just_miss_a_gate_pass_it_in_less_than_one_percent() -> None:
    source = random.Random(4)
    for n in (1, 4, 7):
        passed = sum(
            beats_bound(_runs(source, n, CORE_NOISE.sd), 0.0, higher_is_better=True, noise=CORE_NOISE).passes(0.01)
            for _ in range(4000)
        )
        assert passed / 4000 < 0.01


def test_the_luckiest_of_ten_single_runs_beats_a_bare_comparison_but_not_the_rule() -> None:
    source = random.Random(7)
    bare = ruled = 0
    for _ in range(1000):
        record = _runs(source, 5, CORE_NOISE.sd)
        luckiest = sample_of([max(source.gauss(0.0, CORE_NOISE.sd) for _ in range(10))])
        bare += luckiest.mean > record.mean
        ruled += beats(luckiest, record, higher_is_better=True, noise=CORE_NOISE).passes(0.01)
    assert bare / 1000 > 0.95
    assert ruled / 1000 < 0.1
