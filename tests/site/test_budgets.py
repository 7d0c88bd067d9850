"""The best entry under a budget of FLOPs, against a look at every entry."""

import json
import pathlib
import random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from leaderboard_pages import opened, serving

from marin.site.leaderboard.build import build_site
from marin.site.leaderboard.track_page import budgets_of
from marin.speedrun.board.pareto import pareto_frontier
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


AXES = ("training_hardware_flops", "model_flops", "training_time")


def test_chart_has_the_frontier_and_the_best_under_any_budget_on_every_axis(
    browser: Any, tmp_path: pathlib.Path
) -> None:
    source = random.Random(3)
    rows = [
        {"run_name": f"row_{k}", "author": {"name": "Lists", "affiliation": ""}, "eval_paloma_c4_en_bpb": source.randint(6, 30) / 20,
         "training_hardware_flops": 1e18 * source.randint(1, 20), "model_flops": 3e17 * source.randint(1, 20) / 20, "training_time": 60.0 * source.randint(1, 20)}
        for k in range(150)
    ]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    build_site([], [str(tmp_path / "runs.json")], tmp_path / "site")
    entries = json.loads((tmp_path / "site" / "data" / "tracks" / "fineweb-edu.json").read_text())["entries"]
    ranked = [entry for entry in entries if entry["state"] == "ranked"]
    points = {axis: [(e["values"][axis], e["values"]["bits_per_byte"]) for e in ranked] for axis in AXES}
    with serving(tmp_path / "site") as base, opened(browser, base) as (page, problems):
        page.goto("tracks/fineweb-edu.html")
        for axis in AXES:
            page.get_by_label("Figure on the x axis").select_option(axis)
            page.wait_for_function("axis => marin.table.chart.made?.startsWith(axis)", arg=axis)
            drawn = page.evaluate("marin.table.chart.frontier().map((index) => marin.table.rows.key[index])")
            on = pareto_frontier(points[axis])
            assert sorted(drawn) == sorted(entry["key"] for entry, is_on in zip(ranked, on, strict=True) if is_on)
            limits = sorted({cost for cost, _ in points[axis]})
            found = page.evaluate(
                "([axis, limits]) => limits.map((limit) => marin.table.chart.bestUnder(limit)).map((index) =>"
                " [marin.table.rows.measures.bits_per_byte[index], marin.table.rows.measures[axis][index]])",
                [axis, limits],
            )
            assert found == [list(min((q, c) for c, q in points[axis] if c <= limit)) for limit in limits]
        assert problems == []
