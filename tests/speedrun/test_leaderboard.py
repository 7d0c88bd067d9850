"""Rows, copies, ranks and the Pareto frontier."""

import dataclasses
import itertools
import json
import os
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from example_runs import run_info, run_json
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import ResultsError
from marin.speedrun.board.copies import merge_copies
from marin.speedrun.board.entries import Entry, evidence_at_depths
from marin.speedrun.board.leaderboard import TrackBoard, build_board, collect
from marin.speedrun.board.pareto import Point, frontier_history, pareto_frontier
from marin.speedrun.board.rows import C4_EN, NOT_EVALUATED, rows_of
from marin.speedrun.results import write_results

_VALUES = st.none() | st.integers(1, 6).map(float) | st.floats(0.1, 1e22)
_POINTS = st.lists(st.tuples(_VALUES, _VALUES), max_size=25)


def dominates(a: Point, b: Point) -> bool:
    """Whether `a` is at least as good as `b` in cost and quality and better in one; unknown values dominate nothing."""
    if a[0] is None or a[1] is None or b[0] is None or b[1] is None:
        return False
    return a[0] <= b[0] and a[1] <= b[1] and a != b


@settings(max_examples=300)
@given(_POINTS)
def test_frontier_members_are_mutually_non_dominated_and_dominate_all_others(points: list[tuple[Any, Any]]) -> None:
    on = pareto_frontier(points)
    members = [point for point, member in zip(points, on, strict=True) if member]
    assert not any(dominates(a, b) for a, b in itertools.permutations(members, 2))
    for point, member in zip(points, on, strict=True):
        if None in point:
            assert not member
        elif not member:
            assert any(dominates(other, point) for other in members)


def test_frontier_history_tells_who_was_on_it_at_each_date() -> None:
    points = [
        ("2026-01-01", "a", 3.12e18, 1.2), ("2026-01-02", "b", 3.12e17, 1.3), ("2026-01-03", "c", 3.12e18, 1.25),
        ("2026-01-04", "d", 3.12e17, 1.1),
    ]  # fmt: skip
    assert [(change.date, change.joined, change.left, change.members) for change in frontier_history(points)] == [
        ("2026-01-01", ("a",), (), ("a",)), ("2026-01-02", ("b",), (), ("b", "a")), ("2026-01-04", ("d",), ("a", "b"), ("d",)),
    ]  # fmt: skip


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(10, 28), st.sampled_from([1.0, 2.0, 3.0, 9.0]), st.sampled_from([1.0, 1.1, 1.2])),
        max_size=12,
    )
)
def test_the_frontier_after_the_last_change_is_the_frontier_of_all(found: list[tuple[int, float, float]]) -> None:
    points = [(f"2026-01-{day}", f"run{i}", cost, quality) for i, (day, cost, quality) in enumerate(found)]
    changes = frontier_history(points)
    on = pareto_frontier([(cost, quality) for _, _, cost, quality in points])
    assert set(changes[-1].members if changes else ()) == {
        key for (_, key, _, _), member in zip(points, on, strict=True) if member
    }
    members: set[str] = set()
    for change in changes:
        members = (members | set(change.joined)) - set(change.left)
        assert members == set(change.members)


@settings(max_examples=100)
@given(_POINTS, st.randoms(use_true_random=False))
def test_frontier_does_not_depend_on_the_order(points: list[tuple[Any, Any]], source: random.Random) -> None:
    order = list(range(len(points)))
    source.shuffle(order)
    shuffled = pareto_frontier([points[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(len(points))] == pareto_frontier(points)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=25), st.integers(0, 24))
def test_frontier_depends_on_the_order_of_values_alone_and_on_no_dominated_point(
    points: list[tuple[int, int]], chosen: int
) -> None:
    on = pareto_frontier([(float(a), float(b)) for a, b in points])
    assert pareto_frontier([(a**3.0, 1000.0 - 1000 / b) for a, b in points]) == on  # rising in both
    assert pareto_frontier([(float(b), float(a)) for a, b in points]) == on  # cost and quality change places
    cost, quality = points[chosen % len(points)]
    worse = (float(cost + 1), float(quality))
    assert pareto_frontier([*((float(a), float(b)) for a, b in points), worse])[:-1] == on
    best = (0.5, 0.5)
    assert pareto_frontier([*((float(a), float(b)) for a, b in points), best]) == [False] * len(points) + [True]


def test_frontier_of_equal_points_keeps_both_and_of_equal_cost_only_the_better() -> None:
    assert pareto_frontier([(1.0, 2.0), (1.0, 2.0), (1.0, 3.0), (2.0, 2.0), (None, 1.0), (0.5, None)]) == [
        True, True, False, False, False, False,
    ]  # fmt: skip


def _add(root: pathlib.Path, name: str, **changes: Any) -> None:
    write_results(root / name / "speedrun_results.json", run_info(**changes))


def _quality(bits: float, **more: Any) -> dict[str, Any]:
    return {"eval/paloma/c4_en/bpb": bits, **more}


def _boards(root: pathlib.Path) -> Sequence[TrackBoard]:
    """What a tree gives by evaluation set alone: on how many tracks of the contest a run stands is the tracks' business."""
    return build_board(collect([root]).rows, tracks=()).tracks


def _entries(root: pathlib.Path) -> list[Entry]:
    return [entry for found in _boards(root) for entry in found.entries]


def test_core_of_several_versions_is_not_averaged_at_a_depth() -> None:
    (row,) = rows_of(run_info(seed=0), "family/d12", "family/d12")
    ran = [(0.2, "v1"), (0.3, "v2"), (None, None)]
    rows = [dataclasses.replace(row, depth=12, core=core, core_version=version) for core, version in ran]
    (both,), (one,) = (evidence[row.author, "family"] for evidence in map(evidence_at_depths, (rows, rows[1:])))
    assert (both["core"], one["core"]) == (None, 0.3)


def test_runs_of_a_family_that_state_no_seed_are_not_taken_for_seeds_of_one(tmp_path: pathlib.Path) -> None:
    _add(tmp_path, "family/good", **_quality(1.3), seed=None)
    _add(tmp_path, "family/bad", **_quality(1.5), seed=None)
    assert sorted(entry.name for entry in _entries(tmp_path)) == ["family/bad", "family/good"]
    for seed in (0, 1):
        _add(tmp_path, f"seeded/seed_{seed}", **_quality(1.3 + seed / 100), seed=seed)
    assert [len(entry.rows) for entry in _entries(tmp_path) if entry.name.startswith("seeded")] == [2]


@pytest.mark.parametrize(
    ("processors", "shown"),
    [
        (["AMD EPYC"] * 2, "CPU (AMD EPYC)"),
        (["Intel Xeon", "AMD EPYC"], "CPU (AMD EPYC) and others"),
        ([None] * 2, "CPU"),
    ],
)
def test_seeds_on_processors_of_several_names_are_one_entry_that_says_so(
    processors: list[str | None], shown: str, tmp_path: pathlib.Path
) -> None:
    on_cpu = {"resources": {"num_cpus": 2}, "device_name": "cpu", "platform": "cpu"}
    for seed, processor in enumerate(processors):
        _add(tmp_path, f"seeded/seed_{seed}", **_quality(1.3 + seed / 100), seed=seed, processor=processor, **on_cpu)
    (entry,) = _entries(tmp_path)
    assert (len(entry.rows), entry.hardware) == (2, shown)


def test_board_ranks_by_bits_per_byte_within_an_evaluation_set(tmp_path: pathlib.Path) -> None:
    docs = {"name": "python_docs", "digest": "d1", "bits_per_byte": 1.2}
    _add(tmp_path, "a", **_quality(1.4, description="a"))
    _add(tmp_path, "b", **_quality(1.3, description="b"))
    _add(tmp_path, "tie", **_quality(1.3, description="tie"))
    _add(tmp_path, "docs", **_quality(None, evaluation=docs, description="docs"))  # type: ignore[arg-type]
    _add(tmp_path, "other", **_quality(None, evaluation=docs | {"digest": "d2"}, description="other"))  # type: ignore[arg-type]
    # The figure of one text with the evaluation of another: listed with both, and ranked in neither.
    _add(tmp_path, "both", **_quality(1.5, evaluation=docs, description="both"))
    _add(tmp_path, "none", **_quality(None, description="none"))  # type: ignore[arg-type]
    shape = {
        (found.track.data.evaluation_set, found.track.data.evaluation_digest): [(e.name, e.rank) for e in found.entries]
        for found in _boards(tmp_path)
    }
    assert shape == {
        (C4_EN, None): [("b", 1), ("tie", 1), ("a", 3), ("both", None)],
        ("python_docs", "d1"): [("docs", 1), ("both", None)],
        ("python_docs", "d2"): [("other", 1)],
        (NOT_EVALUATED, None): [("none", None)],
    }


def test_board_lists_a_contradictory_row_without_rank_and_off_the_frontier(tmp_path: pathlib.Path) -> None:
    _add(tmp_path, "honest", **_quality(1.4))
    _add(tmp_path, "zero", **_quality(0.9, training_hardware_flops=0.0))
    entries = {entry.name: entry for entry in _entries(tmp_path)}
    assert (entries["zero"].rank, entries["zero"].on_frontier, entries["zero"].counts) == (None, False, False)
    assert (entries["honest"].rank, entries["honest"].on_frontier) == (1, True)


def test_board_with_an_unknown_cost_lists_the_row_without_a_rank_and_says_why(tmp_path: pathlib.Path) -> None:
    _add(tmp_path, "unknown", **_quality(1.0, training_hardware_flops=None))
    (entry,) = _entries(tmp_path)
    assert (entry.rank, entry.on_frontier, entry.values["training_hardware_flops"]) == (None, False, None)
    assert entry.not_ranked == ("hardware FLOPs: not stated, and quality is ranked by what it cost",)


def test_collect_shows_every_broken_file_with_its_reason(tmp_path: pathlib.Path) -> None:
    _add(tmp_path, "good")
    for name, data in {"cut": b'{"runs": [', "typed": b'{"description": 3}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "speedrun_results.json").write_bytes(data)
    (tmp_path / "folder" / "speedrun_results.json").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    secret = tmp_path.parent / f"{tmp_path.name}-outside.json"
    secret.write_text(json.dumps(run_json()))
    (tmp_path / "link" / "speedrun_results.json").symlink_to(secret)
    (tmp_path / "rows.json").write_text(json.dumps([{"run_name": "x"}, 3, _public_row("kept")]))
    board = collect([tmp_path], [tmp_path / "rows.json"])
    reasons = {item.source: item.reason for item in board.unreadable}
    assert sorted(row.run_name for row in board.rows) == ["good", "kept"]
    assert "cut short" in reasons["cut/speedrun_results.json"]
    assert "author" in reasons["typed/speedrun_results.json"]
    assert "directory" in reasons["folder/speedrun_results.json"]
    assert "symbolic link" in reasons["link/speedrun_results.json"]
    assert {"rows.json, row 1", "rows.json, row 2"} <= set(reasons)


def test_collect_of_a_missing_directory_or_list_raises(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ResultsError, match="no such directory"):
        collect([tmp_path / "none"])
    with pytest.raises(ResultsError, match="no such file"):
        collect([], [tmp_path / "none.json"])


def test_collect_of_copies_lists_the_run_once_under_its_own_directory(tmp_path: pathlib.Path) -> None:
    for place in ("checkpoints/speedrun/mine-12345678", "checkpoints/speedrun", "."):
        _add(tmp_path, place)
    (row,) = collect([tmp_path]).rows
    assert row.run_name == "mine-12345678"
    assert row.also_at == ("checkpoints/speedrun/speedrun_results.json", "speedrun_results.json")


def _public_row(name: str, **changes: Any) -> dict[str, Any]:
    run = run_json()
    row = {
        "run_name": name, "results_filepath": f"experiments/speedrun/{name}", "author": run["author"], "description": "",
        "model_size": run["model_size"], "training_hardware_flops": run["training_hardware_flops"],
        "training_time": run["training_time"], "model_flops": run["model_flops"], "eval_paloma_c4_en_bpb": 1.5,
        "wandb_link": f"https://example.org/{name}", "run_completion_timestamp": run["run_completion_timestamp"],
    }  # fmt: skip
    return row | changes


def test_collect_merges_a_run_with_its_own_public_row_and_notes_a_differing_one(tmp_path: pathlib.Path) -> None:
    _add(tmp_path / "tree", "same", wandb_run_link="https://example.org/same")
    _add(tmp_path / "tree", "differs", wandb_run_link="https://example.org/differs")
    rows = [_public_row("same"), _public_row("differs", training_hardware_flops=1e18)]
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    found = collect([tmp_path / "tree"], [tmp_path / "runs.json"]).rows
    assert sorted((row.run_name, row.status, row.also_at) for row in found) == [
        ("differs", "arithmetic checked", ()),
        ("differs", "claimed", ()),
        ("same", "arithmetic checked", ("runs.json",)),
    ]
    notes = [finding.message for row in found for finding in row.findings if finding.field == "wandb_run_link"]
    assert len(notes) == 2
    assert all("with other figures" in note for note in notes)


def test_board_is_the_same_whatever_the_order_of_the_rows() -> None:
    rows = [
        row
        for number in range(8)
        for row in rows_of(
            run_info(**_quality(1 + number % 3 / 10, description=str(number))), f"run{number % 4}", f"{number}"
        )
    ]
    assert build_board(rows) == build_board(reversed(rows))


def test_public_rows_and_real_files_import_completely() -> None:
    root = (
        pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))
        / "leaderboard"
    )
    if not root.is_dir():
        pytest.skip("the shared data with real results files is not here (set MARIN_SHARED_DATA)")
    board = collect([root / "results"], [root / "runs.json"])
    names = {row["run_name"] for row in json.loads((root / "runs.json").read_text())}
    assert board.unreadable == ()
    assert names <= {row.run_name for row in board.rows}


def test_board_survives_figures_whose_sum_no_number_holds(tmp_path: pathlib.Path) -> None:
    for seed, figure in enumerate((1e200, 1.7e308, 1.7e308)):
        _add(
            tmp_path,
            f"huge/seed{seed}",
            **{"eval/paloma/c4_en/bpb": figure, "training_hardware_flops": figure, "seed": seed},
        )
    _add(tmp_path, "honest")
    board = collect([tmp_path])
    assert any(entry.name == "honest" for track in board.tracks for entry in track.entries)


def test_run_whose_copy_lies_deeper_keeps_what_was_verified(tmp_path: pathlib.Path) -> None:
    _add(tmp_path, "victim")
    _add(tmp_path, "zz/a/b")
    (row,) = collect([tmp_path]).rows
    assert row.source.startswith("zz/a/b") and row.verdict.level != "log"  # of equals the deepest
    passed = tuple(rung.model_copy(update={"outcome": "passed"}) for rung in row.verdict.rungs if rung.rung != "re-run")
    verified = row.verdict.model_copy(update={"rungs": passed})
    further = dataclasses.replace(row, source="victim/speedrun_results.json", verdict=verified)
    assert merge_copies([row, further])[0].source.startswith("victim/")
