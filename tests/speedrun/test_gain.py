"""What an entry gains over the frontier of the others."""

import dataclasses
import math

import pytest
from example_runs import run_info
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.speedrun.board.entries import Entry, changed
from marin.speedrun.board.gain import Gain, gain_of, gain_text, rivals_of
from marin.speedrun.board.leaderboard import TrackBoard, rank_track
from marin.speedrun.board.rows import C4_EN, rows_of
from marin.speedrun.tracks import Track, other_track
from marin.speedrun.verdict import RungVerdict

TRACK = other_track(C4_EN, None, "bits_per_byte")
(ROW,) = rows_of(run_info(), "run", "run")


def board(*points: tuple[float | None, float], track: Track = TRACK) -> TrackBoard:
    """Entries "0", "1", ... of (cost, bits per byte), on one track."""
    rows = [
        dataclasses.replace(
            ROW, run_name=str(number), source=f"{number}/r", digest=str(number), author=str(number),
            training_hardware_flops=cost, bits_per_byte=bits, configuration=None,
        )
        for number, (cost, bits) in enumerate(points)
    ]  # fmt: skip
    return rank_track(track, rows)


def gained(found: TrackBoard, name: str) -> tuple[Entry, Gain | None]:
    entry = next(entry for entry in found.entries if entry.name == name)
    return entry, gain_of(found.track, rivals_of(found.track, found.entries), entry)


def test_a_gain_is_read_off_the_line_between_the_neighbours_on_the_frontier_of_the_others() -> None:
    found = board((1e18, 1.4), (1e20, 1.2), (5e18, 1.3), (4e19, 1.3))
    entry, gain = gained(found, "2")
    assert gain is not None and gain.cheaper is not None and gain.dearer is not None
    # Half of the way from 1.4 to 1.2 is half of the way from 1e18 to 1e20 in the logarithm, unless the fourth is nearer.
    assert (gain.cheaper.name, gain.dearer.name, gain.factor) == ("0", "3", pytest.approx(8.0))
    text = gain_text(TRACK, entry, gain)
    assert text.startswith(
        "The frontier of the other entries, between 0 and 3, is as good at about 8.00 times its hardware FLOPs."
    )
    _, behind = gained(found, "3")
    assert behind is not None and behind.factor == pytest.approx(5e18 / 4e19)
    assert "at about 0.12 times its hardware FLOPs" in gain_text(TRACK, found.entries[0], behind)


def test_a_gain_without_neighbours_says_which_is_missing() -> None:
    found = board((1e18, 1.4), (1e20, 1.2))
    best, alone = gained(found, "1")
    assert gain_text(TRACK, best, alone) == "No other entry is as good, at any cost."  # type: ignore[arg-type]
    cheapest, gain = gained(found, "0")
    assert gain is not None and (gain.cheaper, gain.factor) == (None, pytest.approx(100))
    assert "The cheapest other entry that is as good, 1, cost 100 times its hardware FLOPs" in gain_text(
        TRACK, cheapest, gain
    )


def test_a_large_gain_is_called_its_authors_word_until_somebody_else_has_seen_it() -> None:
    found = board((1e18, 1.4), (1e20, 1.2), (1e18, 1.2), (4e18, 1.1), (8e18, 1.1))
    entry, gain = gained(found, "2")
    assert gain is not None and "its author's word until" in gain_text(TRACK, entry, gain)
    scored = (*entry.verdict.rungs, RungVerdict(rung="re-evaluated", outcome="passed"))
    again = changed(entry, verdict=entry.verdict.model_copy(update={"rungs": scored}))
    assert "author's word" not in gain_text(TRACK, again, gain)
    small, of_small = gained(board((1e18, 1.4), (1e20, 1.2), (9e18, 1.3)), "2")
    assert of_small is not None and of_small.factor == pytest.approx(10 / 9)
    assert "author's word" not in gain_text(TRACK, small, of_small)


def test_there_is_no_gain_without_a_rank_or_where_the_cost_is_the_rank() -> None:
    assert gained(board((1e18, 1.4), (None, 1.2)), "1")[1] is None
    assert (
        gained(board((1e18, 1.4), (1e20, 1.2), track=dataclasses.replace(TRACK, objective="best quality")), "0")[1]
        is None
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1e17, 1e18, 3e18, 1e19, 9e19]), st.sampled_from([1.1, 1.2, 1.3, 1.35, 1.5])),
        min_size=1,
        max_size=9,
    )
)
def test_rivals_are_all_that_a_gain_can_depend_on(points: list[tuple[float, float]]) -> None:
    found = board(*points)
    for entry in found.entries:
        gain = gain_of(TRACK, rivals_of(TRACK, found.entries), entry)
        others = [(cost, bits) for number, (cost, bits) in enumerate(points) if str(number) != entry.name]
        cost, bits = points[int(entry.name)]
        dearer = min(((c, b) for c, b in others if b <= bits), default=None)
        assert gain is not None
        if dearer is None:
            assert gain.factor is None
            continue
        below = [(b, c) for c, b in others if c < dearer[0]]
        if not below:
            assert gain.factor == pytest.approx(dearer[0] / cost)
            continue
        (worse, less), (more, good) = min(below), dearer
        part = (worse - bits) / (worse - good)
        assert gain.factor == pytest.approx(math.exp((1 - part) * math.log(less) + part * math.log(more)) / cost)
