"""Which families the scaling view fits, and what it says of those that it leaves out."""

from typing import Any

import pytest

from marin.site.leaderboard import scaling_view
from marin.speedrun.tracks import TRACKS


def _entries(num_families: int) -> Any:
    track = next(track for track in TRACKS if track.key == "fineweb-edu")
    entries = [
        {
            "key": f"{family}-{size}", "name": f"family_{family}/{size}", "author": "Ada Example", "rank": 1,
            "values": {track.cost: 10.0 ** (16 + size + family / 100), track.metric: 2.0 * 0.9**size + 0.5},
        }
        for family in range(num_families) for size in range(5)
    ]  # fmt: skip
    return track, entries


@pytest.mark.parametrize(("num_families", "fitted", "left_out"), [(3, 3, 0), (5, 4, 1), (0, 0, 0)])
def test_scaling_view_counts_the_families_that_it_leaves_out(
    num_families: int, fitted: int, left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_view, "_MOST", 4)
    fits, num_unfitted = scaling_view.fits_of(*_entries(num_families))
    assert (len(fits), num_unfitted) == (fitted, left_out)
    # The family whose budgets are the smallest is the one left out.
    assert ("family_0" in {fit.family for fit in fits}) == (left_out == 0 and num_families > 0)


@pytest.mark.parametrize("largest", [1e20, 2e20, 3.3e20, 3.4e20, 9.9e20])
def test_family_whose_points_support_a_ranking_is_ranked_whatever_its_largest_budget_begins_with(
    largest: float,
) -> None:
    track, _ = _entries(0)
    costs = [largest / 4**size for size in range(6)]
    entries: Any = [
        {"key": str(cost), "name": f"sizes/{cost}", "author": "Ada Example", "rank": 1, "values": {track.cost: cost, track.metric: 0.7 + 0.4 * (cost / 1e18) ** -0.25}}
        for cost in costs
    ]  # fmt: skip
    (fit,), _ = scaling_view.fits_of(track, entries)
    assert (fit.refusal, fit.rank) == (None, 1)
    assert largest < fit.budget <= 30 * largest


def test_a_run_that_another_author_puts_into_a_familys_folder_leaves_its_fit_alone() -> None:
    track, entries = _entries(1)
    (alone,), _ = scaling_view.fits_of(track, entries)
    another = {**entries[-1], "key": "mallory", "author": "Mallory", "values": {track.cost: 3e19, track.metric: 0.4}}
    same = {**entries[0], "author": "ada  example"}  # as the rest of the board takes it for one author
    (fit,), _ = scaling_view.fits_of(track, [same, *entries[1:], another])
    assert (fit.family, fit.points, fit.projection) == ("family_0 by ada  example", alone.points, alone.projection)
    both, _ = scaling_view.fits_of(
        track, [*entries, another, {**another, "key": "more", "values": entries[0]["values"]}]
    )
    assert [(found.family, len(found.points)) for found in both] == [
        ("family_0 by Ada Example", 5),
        ("family_0 by Mallory", 2),
    ]


@pytest.mark.parametrize("named", ["my_idea#{}", "my_idea"])  # with one seed, and with several of each size
def test_sizes_of_one_file_are_a_family_and_other_runs_of_the_author_are_not(named: str) -> None:
    track, entries = _entries(1)
    sizes = [{**entry, "name": named.format(number)} for number, entry in enumerate(entries, start=1)]
    others = [{**entries[-1], "key": name, "name": name} for name in ("another", "a_third")]
    (fit,), _ = scaling_view.fits_of(track, [*sizes, *others])
    assert (fit.family, [point.key for point in fit.points]) == ("my_idea", [entry["key"] for entry in entries])
