"""The best entry under a budget of FLOPs, against a look at every entry."""

import random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from marin.site.leaderboard.track_page import budgets_of
from marin.speedrun.tracks import TRACKS

TRACK = next(track for track in TRACKS if track.key == "fineweb-edu")
Entry = dict[str, Any]


def _entry(cost: float | None, bits: float | None, rank: int | None = 1) -> Entry:
    return {"rank": rank, "values": {"training_hardware_flops": cost, "bits_per_byte": bits}}


# Few different values, so that there are ties; round ones, which lie on a budget.
_COSTS = st.none() | st.floats(0, 1e26) | st.sampled_from([float(f"{m}e{k}") for m in (1, 2, 3) for k in range(12, 24)])
_BITS = st.none() | st.sampled_from([0.75, 0.9, 1.0, 1.25])
_ENTRIES = st.lists(st.builds(_entry, _COSTS, _BITS, st.none() | st.integers(1, 9)), max_size=25)


def _best_under(entries: list[Entry], limit: float) -> tuple[float, float] | None:
    """The quality and cost of the best ranked entry that costs at most so much, of equal ones the cheapest."""
    found = []
    for entry in entries:
        cost, bits = entry["values"]["training_hardware_flops"], entry["values"]["bits_per_byte"]
        if entry["rank"] is not None and cost is not None and bits is not None and 0 < cost <= limit:
            found.append((bits, cost))
    return min(found, default=None)


@given(_ENTRIES, st.randoms(use_true_random=False))
@example([_entry(1e15, 1.0)], random.Random(0))
@example([_entry(5e-324, 1.0), _entry(1e26, 0.9)], random.Random(0))
def test_best_under_a_round_budget_is_that_of_a_look_at_every_entry(
    entries: list[Entry], source: random.Random
) -> None:
    found = budgets_of(TRACK, entries)
    said = [(limit, _best_under([entry], limit)) for limit, entry in found]
    for limit, best in said:
        assert best is not None and best == _best_under(entries, limit)
    limits = [limit for limit, _ in said]
    assert limits == sorted(set(limits))
    assert len({best for _, best in said}) == len(said)  # each is named once
    # Under every round budget the best is the one that was named last before.
    for limit in (float(f"{mantissa}e{exponent}") for mantissa in (1, 3) for exponent in range(-5, 28)):
        last = [best for at, best in said if at <= limit]
        assert (last[-1] if last else None) == _best_under(entries, limit)
    shuffled = source.sample(entries, len(entries))
    assert [(limit, _best_under([entry], limit)) for limit, entry in budgets_of(TRACK, shuffled)] == said
