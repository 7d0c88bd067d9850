"""Tracks, entries by seeds, gates and records, as a results file makes them."""

import dataclasses
import pathlib
from typing import Any

import pytest
from example_runs import run_info

from marin.site.leaderboard.summary import summarize
from marin.speedrun.board.leaderboard import TrackBoard, build_board
from marin.speedrun.board.rows import Row, rows_of
from marin.speedrun.statistics.means import Noise
from marin.speedrun.tracks import (
    CPU_10_MINUTES,
    FINEWEB_EDU,
    LOSS_3_28,
    METRICS,
    SINGLE_GPU,
    TIME_TO_GPT2,
    TRACKS,
    Data,
    Gate,
    Hardware,
    Track,
    other_track,
)

NODE = {
    "resources": {"accelerator_type": "H100", "gpu_count": 8},
    "num_chips": 8,
    "num_devices": 8,
    "device_flops": 989.5e12,
}


def _row(name: str, *, bits: float | None = 1.5, cost: float | None = None, day: int = 1, **changes: Any) -> Row:
    if cost is not None:
        changes = {"training_hardware_flops": cost, "training_time": cost / 312e12} | changes
    run = run_info(**{
        "eval/paloma/c4_en/bpb": bits, "tokenized_dataset": "tokenized/fineweb-edu-10B",
        "run_completion_timestamp": f"2026-01-{day:02d} 00:00:00 UTC", "description": name,
    } | changes)  # fmt: skip
    return rows_of(run, name, f"{name}/speedrun_results.json")[0]


def _node_row(name: str, core: float, seconds: float, *, seed: int = 0, **changes: Any) -> Row:
    cost = seconds * 8 * 989.5e12
    changes = NODE | {"core_metric": core, "core_version": "v1", "seed": seed, "train_config": {"seed": seed}} | changes
    return _row(name, cost=cost, **{"training_time": seconds} | changes)


def _track(rows: list[Row], track: Track, **more: Any) -> TrackBoard:
    return build_board(rows, **more).track(track.key)


def test_every_row_stands_on_its_tracks_or_among_the_other_runs() -> None:
    python_docs = {"name": "python_docs/heldout", "digest": "d", "bits_per_byte": 1.7}
    on_processor = {"evaluation": python_docs, "resources": {"num_cpus": 2}, "platform": "cpu"}
    rows = [
        _row("one-gpu"),
        _row("pod", resources={"tpu_type": "v5p-32", "slice_count": 1}, num_chips=16),
        _row("processor", bits=None, tokenized_dataset="tokenized/python_docs-4096", **on_processor),
        _row("own-words", bits=None, tokenized_dataset="tokenized/mine", **on_processor),
        _row("other-text", bits=None, evaluation=python_docs | {"name": "novels"}),
        _row("other-data", tokenized_dataset="tokenized/dclm"),
        _row("unscored", bits=None),
        _node_row("gpt2", 0.3, 3600.0, bits=None),
        _row("speedy", bits=None, evaluation={"name": "fineweb/validation", "loss": 3.27}, **NODE),
    ]
    tracks = (FINEWEB_EDU, TIME_TO_GPT2, LOSS_3_28, SINGLE_GPU, CPU_10_MINUTES)
    assert set(tracks) <= set(TRACKS)  # others may be added
    whole = build_board(rows, tracks=tracks)
    found = {board.track.key: [entry.name for entry in board.entries] for board in whole.tracks}
    assert found == {
        "fineweb-edu": ["one-gpu", "pod"],
        "single-gpu": ["one-gpu"],
        "cpu-10-minutes": ["processor"],
        "time-to-gpt2": ["gpt2"],
        "loss-3.28": ["speedy"],
        "other-python-docs-heldout-d": ["own-words"],
        "other-novels-d": ["other-text"],
        "other-paloma-c4-en": ["other-data"],
        "other-not-evaluated": ["unscored"],
    }


@pytest.mark.parametrize(
    ("track", "row", "words"),
    [
        (FINEWEB_EDU, _row("a", tokenized_dataset="tokenized/dclm"), "training data is tokenized/dclm"),
        (
            FINEWEB_EDU,
            _row("a", tokenized_dataset="0.9 x tokenized/fineweb-edu-10B + 0.1 x tokenized/mine"),
            "training data is 0.9 x tokenized/fineweb-edu-10B + 0.1 x tokenized/mine, the track's is FineWeb-Edu",
        ),
        (FINEWEB_EDU, _row("a", bits=None), "no Bits per byte"),
        (SINGLE_GPU, _row("a", **NODE), "8 chips, the track has 1"),
        (CPU_10_MINUTES, _row("a"), "evaluation set is paloma/c4_en"),
        (TIME_TO_GPT2, _node_row("a", 0.3, 60.0, core_version="v2"), "version of CORE is v2"),
        (TIME_TO_GPT2, _row("a", core_metric=0.3, core_version="v1"), "1 chip, the track has 8"),
        (
            TIME_TO_GPT2,
            _node_row(
                "a", 0.3, 60.0, core_version="v1", resources={"num_cpus": 2}, platform="cpu", processor="8 x H100"
            ),
            "the hardware is CPU (8 x H100)",
        ),
        (LOSS_3_28, _row("a"), "no Validation loss"),
    ],
)
def test_a_track_says_why_a_run_is_not_of_it(track: Track, row: Row, words: str) -> None:
    assert words in (track.why_not(row) or "")


def test_mixture_of_the_tracks_own_data_is_of_the_track() -> None:
    parts = "0.5 x tokenized/fineweb-edu-10B + 0.5 then 0 x /prefix/tokenized/FineWeb_Edu-350BT"
    assert FINEWEB_EDU.why_not(_row("a", tokenized_dataset=parts)) is None


def test_a_new_track_is_a_new_object() -> None:
    cheap = Track(
        key="under-1e16", title="Under 1e16 FLOPs", text=("Best bits per byte for at most 1e16 FLOPs.",), metric="bits_per_byte",
        cost="training_time", objective="best quality", data=Data("C4-EN", evaluation_set="paloma/c4_en"), hardware=Hardware("any"),
        gates=(Gate("training_hardware_flops", "<=", 1e16, of="every run"),), noise=Noise(0.01, 10, "a test"),
    )  # fmt: skip
    rows = [_row("dear", bits=1.0, cost=1e18), _row("cheap", bits=1.2, cost=1e15), _row("worse", bits=1.3, cost=1e14)]
    board = build_board(rows, tracks=(*TRACKS, cheap)).track("under-1e16")
    assert [(entry.name, entry.rank) for entry in board.entries] == [("cheap", 1), ("worse", 2), ("dear", None)]
    assert "1e+16" in board.entries[2].not_ranked[0]


def test_every_track_is_complete_and_has_text() -> None:
    assert len({track.key for track in TRACKS}) == len(TRACKS)
    for track in TRACKS:
        assert track.text and all(paragraph.endswith(".") for paragraph in track.text)
        assert track.min_runs >= 1 and 0 < track.p_value <= 0.01
        assert track.noise is None or (track.noise.sd > 0 and track.noise.source)
    assert (
        CPU_10_MINUTES.noise is not None and CPU_10_MINUTES.noise.runs is not None and CPU_10_MINUTES.noise.runs >= 10
    )


# --- entries ------------------------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seeds_are_one_entry_with_a_spread() -> None:
    values = [1.50, 1.51, 1.49]
    rows = [
        _row(
            f"mine/seed_{seed}",
            bits=bits,
            seed=seed,
            train_config={"train_batch_size": 8, "num_train_steps": 50, "seed": seed},
        )
        for seed, bits in enumerate(values)
    ]
    other = _row("mine/wide", bits=1.4, train_config={"train_batch_size": 16, "num_train_steps": 25})
    entries = {entry.name: entry for entry in _track([*rows, other], FINEWEB_EDU).entries}
    assert set(entries) == {"mine", "mine/wide"}
    entry = entries["mine"]
    assert [row.seed for row in entry.rows] == [0, 1, 2]
    assert entry.spread is not None
    assert (entry.spread.n, entry.spread.mean, entry.spread.sd) == (3, pytest.approx(1.5), pytest.approx(0.01))
    assert entry.values["bits_per_byte"] == pytest.approx(1.5)


def test_the_same_run_given_twice_counts_once_and_another_author_is_another_entry() -> None:
    same = dict(seed=1, bits=1.5)
    rows = [_row("mine#1", **same), _row("mine#2", description="again", **same)]  # type: ignore[arg-type]
    theirs = _row("mine#3", author={"name": "B", "affiliation": "", "url": None}, cost=3e15, seed=2)
    entries = _track([*rows, theirs], FINEWEB_EDU).entries
    assert sorted((entry.author, entry.spread.n) for entry in entries if entry.spread) == [("Ada Example", 1), ("B", 1)]


def test_an_entrys_address_stays_when_a_seed_is_added() -> None:
    train = {"train_batch_size": 8, "num_train_steps": 50}
    rows = [
        _row(f"mine#{seed}", seed=seed, bits=1.5 + seed / 100, train_config=train | {"seed": seed})
        for seed in (1, 2, 3)
    ]
    keys = [_track(rows[:n], FINEWEB_EDU).entries[0].key for n in (2, 3)]
    assert keys[0] == keys[1]


# --- gates and records --------------------------------------------------------------------------------------------


def _node_entry(name: str, cores: list[float], seconds: float, day: int, **changes: Any) -> list[Row]:
    return [
        _node_row(f"{name}/{seed}", core, seconds + seed / 8, seed=seed, day=day, **changes)
        for seed, core in enumerate(cores)
    ]


def test_time_to_gpt2_ranks_by_time_and_needs_the_mean_above_the_bound_and_the_test_for_a_record() -> None:
    sure = [0.270, 0.268, 0.272, 0.266, 0.274]
    rows = [
        *_node_entry("first", sure, 9000.0, 1),
        *_node_entry("lucky", [0.2571, 0.2552, 0.2590, 0.2555, 0.2580], 6000.0, 2, description="lucky"),
        *_node_entry("below", [0.250, 0.252, 0.254, 0.249, 0.251], 5000.0, 3),
        *_node_entry("faster", [value + 1e-4 for value in sure], 7000.0, 4),
        *_node_entry("slower", [value + 2e-4 for value in sure], 9500.0, 5),
        *_node_entry("single", [0.275], 4000.0, 6),
    ]
    board = _track(rows, TIME_TO_GPT2)
    ranks = {entry.name: entry.rank for entry in board.entries}
    assert ranks == {"single/0": 1, "lucky": 2, "faster": 3, "first": 4, "slower": 5, "below": None}
    assert [entry.name for entry in board.records] == ["first", "faster"]
    by_name = {entry.name: entry for entry in board.entries}
    assert "CORE > 0.256525 does not hold" in by_name["below"].not_ranked[0]
    assert "not shown at p < 0.01" in by_name["lucky"].verdict["statistics"].findings[0].message
    assert by_name["lucky"].verdict["statistics"].outcome == "failed"
    assert "needs at least 5" in by_name["single/0"].verdict["statistics"].findings[0].message
    assert by_name["faster"].is_record and not by_name["single/0"].is_record


def test_an_entry_of_which_some_runs_state_no_time_has_no_rank_and_is_no_record() -> None:
    rows = _node_entry("mine", [0.270, 0.268, 0.272, 0.266, 0.274], 9000.0, 1)
    rows[2:] = [dataclasses.replace(row, training_time=None, training_hardware_flops=None) for row in rows[2:]]
    board = _track(rows, TIME_TO_GPT2)
    (entry,) = board.entries
    assert (entry.rank, entry.is_record, entry.values["training_time"]) == (None, False, None)
    assert "training time: not stated by 3 of 5 runs" in entry.not_ranked[0]
    assert board.records == ()


def test_figures_of_several_evaluation_sets_have_no_mean_and_runs_that_do_not_count_are_no_evidence() -> None:
    other = {"name": "nanochat/validation", "bits_per_byte": 0.75}
    rows = [
        _node_row("mine/0", 0.27, 3000.0, seed=0, model_config={"depth": 24}),
        _node_row("mine/1", 0.27, 3000.125, seed=1, model_config={"depth": 24}, evaluation=other, **{"eval/paloma/c4_en/bpb": None}),
        _node_row("mine/2", 0.20, 3000.25, seed=2, model_config={"depth": 12}, total_tokens=-1),
    ]  # fmt: skip
    entry = next(entry for entry in _track(rows, TIME_TO_GPT2).entries if entry.counts)
    assert (len(entry.rows), entry.values["core"], entry.values["bits_per_byte"]) == (2, 0.27, None)
    assert [(line["depth"], line["runs"], line["bits_per_byte"]) for line in entry.evidence] == [(24, 2, None)]


def test_an_entry_of_time_to_gpt2_shows_what_its_change_does_at_other_depths() -> None:
    rows = [
        _node_row(f"mine/d{depth}-{seed}", core, 3000.0 + seed / 8, seed=seed, model_config={"depth": depth})
        for depth, core in ((12, 0.15), (24, 0.27), (30, 0.3))
        for seed in (0, 1)
    ]
    board = _track(rows, TIME_TO_GPT2)
    entry = next(entry for entry in board.entries if entry.values["core"] == 0.27)
    shown = [(line["depth"], line["runs"], line["core"], line["bits_per_byte"]) for line in entry.evidence]
    assert shown == [(12, 2, pytest.approx(0.15), 1.5), (24, 2, pytest.approx(0.27), 1.5)]
    assert _track([_row("a")], FINEWEB_EDU).entries[0].evidence == ()


def test_a_run_over_the_time_limit_takes_the_rank_of_the_whole_entry() -> None:
    python_docs = {"name": "python_docs/heldout", "digest": "d", "bits_per_byte": 1.7}
    rows = []
    for seed, seconds in enumerate([500.0, 590.0, 600.5]):
        changes = {
            "training_time": seconds,
            "training_hardware_flops": seconds * 1e11,
            "device_flops": 1e11,
            "seed": seed,
        }
        rows.append(_row(
            f"mine/{seed}", bits=None, evaluation=python_docs | {"bits_per_byte": 1.7 + seed / 100}, resources={"num_cpus": 2},
            platform="cpu", device_name="cpu", tokenized_dataset="tokenized/python_docs", **changes,
        ))  # fmt: skip
    board = _track(rows, CPU_10_MINUTES)
    assert [(entry.rank, len(entry.rows)) for entry in board.entries] == [(None, 3)]
    assert "1 of 3 runs: 600.5" in board.entries[0].not_ranked[0]
    assert _track(rows[:2], CPU_10_MINUTES).entries[0].rank == 1


def test_records_of_a_pareto_track_are_better_than_the_record_of_their_day_by_more_than_noise() -> None:
    rows = [
        _row("first", bits=1.2, cost=1e18, day=1), _row("noise", bits=1.2 - 1e-5, cost=2e18, day=2),
        _row("better", bits=1.1, cost=3e18, day=3), _row("undated", bits=1.0, cost=4e18, run_completion_timestamp=None),
        _row("late", bits=1.15, cost=5e17, day=4),
    ]  # fmt: skip
    board = _track(rows, FINEWEB_EDU)
    assert [entry.name for entry in board.records] == ["first", "better"]
    assert [entry.rank for entry in board.entries] == [1, 2, 3, 4, 5]
    noise = next(entry for entry in board.entries if entry.name == "noise")
    assert "not shown" in noise.verdict["statistics"].findings[0].message


# --- copies -------------------------------------------------------------------------------------------------------


def test_one_run_that_stands_first_on_a_track_without_a_noise_model_is_beaten_by_three_that_show_it() -> None:
    def runs(name: str, bits: list[float], day: int) -> list[Row]:
        train = {"train_batch_size": 8, "num_train_steps": 50}
        return [
            _row(f"{name}/seed_{seed}", bits=value, cost=1e19 * day + seed * 1e15, day=day, tokenized_dataset="tokenized/dclm", seed=seed,
                 train_config=train | {"seed": seed})
            for seed, value in enumerate(bits)
        ]  # fmt: skip

    rows = [*runs("first", [1.50], 1), *runs("also-one", [1.40], 2), *runs("by-chance", [1.48, 1.43, 1.57], 3)]
    board = build_board([*rows, *runs("clear", [1.40, 1.41, 1.405], 4)]).track("other-paloma-c4-en")
    found = {entry.name.partition("/")[0]: entry for entry in board.entries}
    said = {name: str(entry.verdict["statistics"].findings) for name, entry in found.items()}
    assert {name for name, entry in found.items() if entry.is_record} == {"first", "clear"}
    assert "cannot be told from chance: one run without a noise model" in said["also-one"]
    assert "not shown" in said["by-chance"]
    assert "one run is taken to have the spread of these 3" in said["clear"]


def test_a_copied_result_with_another_device_or_author_is_held_and_the_earlier_stands() -> None:
    time = {"training_time": 31.42247619945556, "training_hardware_flops": 31.42247619945556 * 312e12}
    first = _row("hello", day=1, **time)
    author = {"name": "Mallory", "affiliation": "", "url": None}
    copy = _row("mine", day=9, author=author, **time)
    board = _track([first, copy], FINEWEB_EDU)
    found = {entry.name: (entry.rank, entry.verdict.counts) for entry in board.entries}
    assert found == {"hello": (1, True), "mine": (None, False)}
    messages = [finding.message for entry in board.entries for finding in entry.verdict["arithmetic"].findings]
    assert any("hello by Ada Example" in message for message in messages)
    tie = dataclasses.replace(copy, date=first.date)
    assert {entry.rank for entry in _track([first, tie], FINEWEB_EDU).entries} == {None}


def test_rows_kept_by_digest_are_the_same_and_are_verified_again_when_a_byte_changed(tmp_path: pathlib.Path) -> None:
    from marin.speedrun.board.leaderboard import collect
    from marin.speedrun.results import write_results

    for name in ("a", "b"):
        write_results(tmp_path / "tree" / name / "speedrun_results.json", run_info(description=name))
    plain = collect([tmp_path / "tree"])
    assert collect([tmp_path / "tree"], cache=tmp_path / "cache") == plain
    kept = (tmp_path / "cache" / "rows.jsonl").read_bytes()
    assert collect([tmp_path / "tree"], cache=tmp_path / "cache") == plain
    assert (tmp_path / "cache" / "rows.jsonl").read_bytes() == kept
    write_results(tmp_path / "tree" / "b" / "speedrun_results.json", run_info(description="b", model_size=7))
    changed = collect([tmp_path / "tree"], cache=tmp_path / "cache")
    assert changed == collect([tmp_path / "tree"]) != plain
    whole = (tmp_path / "cache" / "rows.jsonl").read_text()
    for damaged in (whole.replace(" 7, ", " 8, "), whole[:-300], whole.replace("\t", " ")):
        assert damaged != whole
        (tmp_path / "cache" / "rows.jsonl").write_text(damaged)
        assert collect([tmp_path / "tree"], cache=tmp_path / "cache") == changed
        assert (tmp_path / "cache" / "rows.jsonl").read_text() == whole
    (tmp_path / "cache" / "rows.jsonl").write_text("nonsense\n")
    assert collect([tmp_path / "tree"], cache=tmp_path / "cache") == changed


def test_tracks_of_other_runs_have_titles_of_their_own() -> None:
    made = {
        other_track(where, digest, metric)
        for where in ("one", "two")
        for digest in (None, "ab" * 32)
        for metric in METRICS
    }
    made.add(other_track("one", None, "core", "v2"))
    assert len({track.title for track in made}) == len({track.key for track in made}) == len(made) == 13


def test_versions_of_core_are_not_ranked_among_each_other() -> None:
    rows = [
        _row(f"{version}-{core}", bits=None, core_metric=core, core_version=version, cost=1e16 * (1 + core))
        for version, core in (("v1", 0.25), ("v2", 0.27), ("v1", 0.2))
    ]
    boards = [board for board in build_board(rows).tracks if board.entries]
    assert {board.track.title: [(entry.name, entry.rank) for entry in board.entries] for board in boards} == {
        "Other runs: no evaluation set (CORE)": [("v1-0.25", 1), ("v1-0.2", 2)],
        "Other runs: no evaluation set (CORE v2)": [("v2-0.27", 1)],
    }


def test_p_below_what_a_float_tells_from_none_is_not_said_to_be_none() -> None:
    board = _track([_row("one", bits=1.5), _row("two", bits=1.2, day=2, seed=7)], FINEWEB_EDU)
    said = " ".join(finding.message for entry in board.entries for finding in entry.verdict["statistics"].findings)
    assert "p < 1e-15: shown" in said and "p = 0" not in said


def test_seeds_do_not_leave_the_mean_by_another_affiliation_or_spelling() -> None:
    authors = [
        {"name": "Ada Example", "affiliation": "A"},
        {"name": "ada  example", "affiliation": "B", "url": "https://b.org"},
    ]
    rows = [
        _row(f"mine#{seed + 1}", bits=1.5, seed=seed, cost=1e16 * (1 + seed), author=authors[seed % 2])
        for seed in range(4)
    ]
    (entry,) = _track(rows, FINEWEB_EDU).entries
    assert len(entry.rows) == 4


def test_an_entry_says_which_runs_of_its_configuration_stand_apart() -> None:
    lucky = [_row(f"lucky#{seed + 1}", bits=1.4, seed=seed, cost=1e16 * (1 + seed)) for seed in range(3)]
    unlucky = [_row(f"more#{seed}", bits=1.6, seed=seed, cost=1e16 * (1 + seed)) for seed in (3, 4)]
    other = _row("other", bits=1.6, seed=5, cost=9e16, author={"name": "Grace Other", "affiliation": ""})
    board = _track([*lucky, *unlucky, other], FINEWEB_EDU)
    said = {entry.name: " ".join(f.message for f in entry.verdict["statistics"].findings) for entry in board.entries}
    assert "2 more runs of this configuration stand apart, as more" in said["lucky"]
    assert "3 more runs of this configuration stand apart, as lucky" in said["more"]
    assert "apart" not in said["other"]


@pytest.mark.parametrize(("core", "withdrawn"), [(0.250, None), (0.261, "a bad batch")])
def test_an_entry_says_that_unlucky_seeds_which_miss_the_gate_or_were_withdrawn_stand_apart(
    core: float, withdrawn: str | None
) -> None:
    lucky = [_node_row(f"lucky#{seed + 1}", 0.268, 3600.0 + seed, seed=seed) for seed in range(5)]
    unlucky = [_node_row(f"more#{seed}", core, 3600.0 + seed, seed=seed) for seed in range(5, 10)]
    unlucky = [
        dataclasses.replace(row, verdict=row.verdict.model_copy(update={"withdrawn": withdrawn})) for row in unlucky
    ]
    board = _track([*lucky, *unlucky], TIME_TO_GPT2)
    said = {entry.name: " ".join(f.message for f in entry.verdict["statistics"].findings) for entry in board.entries}
    assert "5 more runs of this configuration stand apart, as more" in said["lucky"]


def test_run_without_a_score_is_not_said_to_be_ranked() -> None:
    (board,) = [board for board in build_board([_row("unscored", bits=None)]).tracks if board.entries]
    summary = summarize(board.entries[0])
    assert (summary["rank"], summary["state"], summary["reasons"]) == (None, "held", ["Bits per byte is not stated"])


@pytest.mark.parametrize(
    ("gate", "value", "words"),
    [
        (Gate("training_time", "<=", 600.0), 600.0004, "600.0004"),
        (Gate("loss", "<=", 3.28), 3.2800000000000002, "3.2800000000000002"),
        (Gate("core", ">", 0.256525), 0.256525, "0.256525"),
        (Gate("core", ">", 0.256525), 0.2, "0.2"),
        (Gate("core", ">", 0.256525), None, "not stated"),
    ],
)
def test_a_figure_that_misses_a_gate_by_little_is_not_written_as_one_that_keeps_it(
    gate: Gate, value: float | None, words: str
) -> None:
    assert gate.missed_by(value) == words


def test_runs_that_lie_closer_together_than_chance_are_warned_of_and_keep_what_they_show() -> None:
    """One honest submission in a thousand does; so do models that differ less than the track's. The test is by the model's noise anyway."""
    rows = [
        *_node_entry("first", [0.270, 0.268, 0.272, 0.266, 0.274], 9000.0, 1),
        *_node_entry("close", [0.2700, 0.2701, 0.2702, 0.2701, 0.2700], 7000.0, 2),
    ]
    close = next(entry for entry in _track(rows, TIME_TO_GPT2).entries if entry.name == "close")
    rung = close.verdict["statistics"]
    assert (close.is_record, rung.outcome, summarize(close)["significant"]) == (True, "passed", True)
    (said,) = [found for found in rung.findings if "lie closer together" in found.message]
    assert said.severity == "warning"


def test_runs_that_lie_close_together_and_do_not_show_their_claim_fail_for_that_alone() -> None:
    (entry,) = _track(_node_entry("close", [0.2566, 0.2567, 0.2566, 0.2567, 0.2566], 7000.0, 1), TIME_TO_GPT2).entries
    rung = entry.verdict["statistics"]
    assert (entry.is_record, rung.outcome) == (False, "failed")
    assert {found.severity for found in rung.findings} == {"warning"}


def test_runs_of_one_value_are_warned_of_with_a_p_that_is_not_zero() -> None:
    rows = [_node_row(f"same#{seed + 1}", 0.268, 3600.0 + seed, seed=seed) for seed in range(5)]
    (entry,) = _track(rows, TIME_TO_GPT2).entries
    said = " ".join(found.message for found in entry.verdict["statistics"].findings if found.severity == "warning")
    assert "lie closer together (sd 0) than runs with different seeds do (sd 0.0052; p < 1e-15)" in said
