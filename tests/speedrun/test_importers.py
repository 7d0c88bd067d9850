"""Other people's records: nanochat's table, modded-nanogpt's logs, and the real files of the public contest."""

import json
import os
import pathlib
import resource
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import ResultsError
from marin.site.leaderboard import scaling_view
from marin.site.leaderboard.summary import summarize
from marin.speedrun.board.leaderboard import build_board, collect
from marin.speedrun.board.row_store import RowStore
from marin.speedrun.board.rows import Row, Unreadable
from marin.speedrun.importers import public_rows, read_list
from marin.speedrun.importers.modded_nanogpt import read_modded_logs
from marin.speedrun.importers.nanochat import LEADERBOARD, read_nanochat_table

SHARED = (
    pathlib.Path(os.environ.get("MARIN_SHARED_DATA", pathlib.Path(__file__).parents[3] / "shared" / "data"))
    / "leaderboard"
)

# --- nanochat -----------------------------------------------------------------------------------------------------

HEADER = (
    "| # | time | val_bpb | CORE | Description | Date | Commit | Contributors |\n|---|---|---|---|---|---|---|---|\n"
)


def _table(tmp_path: pathlib.Path, *lines: str, header: str = HEADER) -> list[Row | Unreadable]:
    path = tmp_path / "README.md"
    path.write_text("# nanochat\n\n| depth | params |\n|---|---|\n| 12 | 286M |\n\n" + header + "\n".join(lines) + "\n")
    return list(read_nanochat_table(path))


def test_the_facts_that_ship_are_seven_rows_of_which_six_compete() -> None:
    board = collect([], [LEADERBOARD]).track("time-to-gpt2")
    facts = [(entry.name, entry.rank, entry.values["training_time"], entry.values["core"]) for entry in board.entries]
    assert facts == [
        ("nanochat/6", 1, pytest.approx(1.65 * 3600), 0.2626),
        ("nanochat/5", 2, pytest.approx(1.80 * 3600), 0.2690),
        ("nanochat/4", 3, pytest.approx(2.02 * 3600), 0.2571),
        ("nanochat/3", 4, pytest.approx(2.76 * 3600), 0.2602),
        ("nanochat/2", 5, pytest.approx(2.91 * 3600), 0.2578),
        ("nanochat/1", 6, pytest.approx(3.04 * 3600), 0.2585),
    ]
    fourth = board.entries[2]
    assert fourth.spread is not None and fourth.spread.n == 7
    assert "p = 0.39" in fourth.verdict["statistics"].findings[0].message
    assert [entry.name for entry in board.records] == ["nanochat/5"]


def test_a_readmes_table_gives_the_columns_of_the_seed(tmp_path: pathlib.Path) -> None:
    (row,) = _table(
        tmp_path,
        "| 5 | 1.80 | 0.71808 | **0.2690** (n=5) | auto [round 1](https://x.com/1) | Mar 9 2026 | `6ed7d1d` | @a @b |",
    )
    assert isinstance(row, Row)
    assert (row.training_time, row.bits_per_byte, row.core, row.core_version) == (1.8 * 3600, 0.71808, 0.2690, "v1")
    assert (row.description, row.date, row.git_commit, row.author) == ("auto round 1", "2026-03-09", "6ed7d1d", "@a @b")
    assert (row.hardware, row.stated_runs) == ("8 x H100", 5)


def test_two_people_may_have_the_same_hundredths_of_an_hour(tmp_path: pathlib.Path) -> None:
    """2.03 x 3600 has sixteen digits as a float, of which the table states three."""
    rows = _table(
        tmp_path,
        "| 1 | 2.03 | 0.7184 | 0.2585 | depth 24 | Jan 29 2026 | 348fbb3 | @a |",
        "| 2 | 2.03 | 0.7180 | 0.2612 | depth 26 | Feb 2 2026 | a48fbb3 | @b |",
    )
    board = build_board([row for row in rows if isinstance(row, Row)]).track("time-to-gpt2")
    assert [(entry.name, entry.rank) for entry in board.entries] == [("nanochat/2", 1), ("nanochat/1", 1)]


def test_a_cell_with_an_escaped_bar_or_a_link_is_read_as_it_is_shown(tmp_path: pathlib.Path) -> None:
    commit, author = "[6ed7d1d](https://x.com/c/6ed7d1d)", "[@a](https://x.com/a)"
    (row,) = _table(tmp_path, rf"| 5 | 1.80 | 0.7 | 0.2690 | relu \| gelu | Mar 9 2026 | {commit} | {author} |")
    assert isinstance(row, Row)
    assert (row.description, row.date) == ("relu | gelu", "2026-03-09")
    assert (row.git_commit, row.author) == ("6ed7d1d", "@a")


def test_a_public_row_that_is_no_object_says_so_in_plain_words(tmp_path: pathlib.Path) -> None:
    (tmp_path / "runs.json").write_text('[5, {"run_name": "a", "author": null}]')
    reasons = [found.reason for found in read_list(tmp_path / "runs.json") if isinstance(found, Unreadable)]
    assert reasons == ["the whole is 5, expected an object", "field `author` is null, expected an object"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("| 1 | 3.04 | 0.7 | high | d24 | Jan 29 2026 | 348fbb3 | @a |", "CORE is 'high'"),
        ("| 1 | 3.04 | 0.7 | 2.5 | d24 | Jan 29 2026 | 348fbb3 | @a |", "at most 1"),
        ("| 1 | -3 | 0.7 | 0.26 | d24 | Jan 29 2026 | 348fbb3 | @a |", "time is '-3'"),
        ("| 1 | 0 | 0.7 | 0.26 | d24 | Jan 29 2026 | 348fbb3 | @a |", "positive number of hours"),
        ("| 1 | 3 | nan | 0.26 | d24 | Jan 29 2026 | 348fbb3 | @a |", "val_bpb is 'nan'"),
        ("| 1 | 3 | 0.7 | 0.26 | d24 | Feb 31 2026 | 348fbb3 | @a |", "date is 'Feb 31 2026'"),
        ("| 1 | 3 |", "fewer than the table has columns"),
    ],
)
def test_a_bad_cell_is_unreadable_with_its_line_and_the_other_rows_are_read(
    tmp_path: pathlib.Path, line: str, words: str
) -> None:
    good = "| 2 | 2.91 | 0.74504 | 0.2578 | d26 | Feb 2 2026 | a67eba3 | @a |"
    bad, row = _table(tmp_path, line, good)
    assert isinstance(bad, Unreadable) and isinstance(row, Row)
    assert bad.source == "README.md, line 9" and words in bad.reason


def test_a_markdown_file_without_a_leaderboard_says_so(tmp_path: pathlib.Path) -> None:
    (found,) = _table(tmp_path, header="| nothing | here |\n")
    assert isinstance(found, Unreadable) and "time, CORE and description" in found.reason


# --- modded-nanogpt -----------------------------------------------------------------------------------------------

GPU = "|   {i}  NVIDIA H100 80GB HBM3          On  |   00000000:61:00.0 Off |                    0 |\n"


def _log(*, loss: str = "3.2787", program: str = "import torch\n", steps: int = 500, last: int | None = None) -> str:
    text = program + "=" * 100 + "\nRunning Python 3.12.7 (main)\nRunning PyTorch 2.6.0 compiled for CUDA 12.6\n"
    text += "".join(GPU.format(i=i) for i in range(8)) + "=" * 100 + "\n"
    text += f"step:0/{steps} val_loss:10.8258 train_time:0ms step_avg:0.03ms\n"
    for step in range(1, (steps if last is None else last) + 1):
        text += f"step:{step}/{steps} train_time:{57 * step}ms step_avg:57.00ms\n"
        if step % 250 == 0:
            text += f"step:{step}/{steps} val_loss:{loss if step == steps else '4.1'} train_time:{57 * step}ms step_avg:57.00ms\n"
    return text + "peak memory allocated: 31024 MiB reserved: 46192 MiB\n"


def test_logs_of_one_program_are_one_entry_of_the_3_28_track(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "2025-01-16_Sub3Min"
    folder.mkdir()
    losses = ["3.2770", "3.2775", "3.2782", "3.2779", "3.2768"]
    for number, loss in enumerate(losses):
        (folder / f"run{number}.txt").write_text(_log(loss=loss))
    (folder / "other.txt").write_text(_log(loss="3.2799", program="import torch, fast\n"))
    board = collect([], [folder]).track("loss-3.28")
    assert [(len(entry.rows), entry.rank, entry.is_record) for entry in board.entries] == [(5, 1, True), (1, 1, False)]
    entry = board.entries[0]
    assert entry.values["loss"] == pytest.approx(sum(map(float, losses)) / 5)
    assert (entry.values["training_time"], entry.hardware, entry.date) == (28.5, "8 x H100", "2025-01-16")
    curve = entry.rows[0].details["validations"]
    assert [point["step"] for point in curve] == [0, 250, 500]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\n", "not a log of modded-nanogpt"),
        (_log(last=400), "ends at step 400 of 500"),
        (_log().replace("step:300/500 train_time:17100ms", "step:300/500 train_time:100ms"), "clock runs backwards"),
        (_log().replace("step:300/500 train_time:17100ms step_avg:57.00ms\n", ""), "step 301 follows step 299"),
        (_log(loss="nan"), "val_loss is 'nan'"),
        (_log().replace("step:300/500", "step:300/900"), "two logs in one file"),
        (_log(program=""), "program is not in the log"),
    ],
)
def test_a_log_that_is_not_of_a_whole_run_is_unreadable_with_the_reason(
    tmp_path: pathlib.Path, text: str, words: str
) -> None:
    (tmp_path / "log.txt").write_text(text)
    (found,) = read_modded_logs(tmp_path)
    assert isinstance(found, Unreadable)
    assert found.source == "log.txt" and words in found.reason


def test_log_is_named_and_dated_by_its_directory_also_from_what_was_kept(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / "2025-01-16_Sub3Min", tmp_path / "2025-02-01_Faster"]
    for folder in folders:
        folder.mkdir()
        (folder / "run.txt").write_text(_log())
    for folder in folders:
        store = RowStore(tmp_path / "cache")
        (row,) = read_list(folder / "run.txt", store)
        store.save()
        assert isinstance(row, Row)
        assert (row.run_name, row.date) == (f"{folder.name}/run", folder.name[:10])


def test_a_clock_that_is_set_back_in_the_first_steps_is_the_early_programs_way(tmp_path: pathlib.Path) -> None:
    (tmp_path / "log.txt").write_text(_log().replace("step:10/500 train_time:570ms", "step:10/500 train_time:42932ms"))
    (found,) = read_modded_logs(tmp_path / "log.txt")
    assert isinstance(found, Row) and found.training_time == 28.5


def test_a_list_of_another_kind_or_none_says_what_is_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(ResultsError, match=r"\.json.*\.md.*\.txt"):
        read_list(tmp_path / "rows.csv")
    for name in ("none.md", "none.txt", "none.json"):
        with pytest.raises(ResultsError, match="no such file"):
            list(read_list(tmp_path / name))


# --- anything at all ----------------------------------------------------------------------------------------------

_PIECES = st.sampled_from([
    "|", "| # | time | val_bpb | CORE | Description |\n", "|---|---|---|---|---|\n", "| 1 | 3.0 | 0.7 | 0.26 | x |\n", "=" * 60 + "\n",
    "step:1/2 val_loss:3.1 train_time:5ms step_avg:1ms\n", "step:2/2 val_loss:3.1 train_time:9ms step_avg:1ms\n", "code\n", "\x00", "é", "\ud7ff",
    "[" * 200, "(n=" + "9" * 30 + ")", "0" * 400, "\n", '[{"run_name": "a"}]', "1e999", "](" * 50,
])  # fmt: skip


@settings(max_examples=150)
@given(
    st.lists(st.one_of(_PIECES, st.text(max_size=20)), max_size=30),
    st.sampled_from([".md", ".txt", ".json"]),
    st.booleans(),
)
def test_no_input_raises_anything_but_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], ending: str, cut: bool
) -> None:
    content = "".join(parts).encode("utf-8", "surrogatepass")
    path = tmp_path_factory.getbasetemp() / f"anything{ending}"
    path.write_bytes(content[:-1] if cut else content)
    start = time.process_time()
    for item in read_list(path):
        assert isinstance(item, Row | Unreadable)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("ending", [".md", ".txt"])
def test_a_large_hostile_file_takes_less_than_a_second_and_256_megabytes(tmp_path: pathlib.Path, ending: str) -> None:
    line = {
        ".md": HEADER + "| 1 | 3 | 0.7 | 0.26 | " + "[a](" * 400 + " |\n",
        ".txt": "|   0  NVIDIA " + "A" * 2000 + "\n" + "=" * 2000 + "\n",
    }[ending]
    path = tmp_path / f"large{ending}"
    path.write_text(line * ((500_000 if ending == ".md" else 20_000_000) // len(line)))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = list(read_list(path))
    assert found and time.process_time() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024


# --- the real files -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> pathlib.Path:
    if not SHARED.is_dir():
        pytest.skip("the shared data with real results files is not here (set MARIN_SHARED_DATA)")
    return SHARED


def test_the_two_known_bad_files_are_flagged_with_the_right_reason(shared: pathlib.Path) -> None:
    entries = {
        entry.rows[0].source: entry for entry in collect([shared / "results"]).track("fineweb-edu").entries
    }  # fmt: skip
    assert len(entries) == 5
    failed = {source: entry for source, entry in entries.items() if not entry.counts}
    assert set(failed) == {"adamw_llama_scaling/130m/speedrun_results.json", "llama_50m_gpu/speedrun_results.json"}
    doubled = [
        f
        for f in failed["adamw_llama_scaling/130m/speedrun_results.json"].verdict["arithmetic"].findings
        if f.severity == "error"
    ]
    assert any(
        "cores were counted as chips" in finding.message and finding.corrected == pytest.approx(8.2649e18, rel=1e-4)
        for finding in doubled
    )
    resumed = [
        f for f in failed["llama_50m_gpu/speedrun_results.json"].verdict["arithmetic"].findings if f.severity == "error"
    ]
    assert any("184.5%" in finding.message and "resumed" in finding.message for finding in resumed)
    assert all(entry.rank is None and not entry.on_frontier and not entry.is_record for entry in failed.values())


def test_ranks_frontier_and_history_of_the_public_rows_agree_with_another_computation(shared: pathlib.Path) -> None:
    stated = json.loads((shared / "runs.json").read_text())
    board = collect([], [shared / "runs.json"]).track("fineweb-edu")
    assert len(stated) == len(board.entries) == 96
    figures = {row["run_name"]: (row["training_hardware_flops"], row["eval_paloma_c4_en_bpb"]) for row in stated}
    for entry in board.entries:
        cost, bits = figures[entry.name]
        assert entry.rank == 1 + sum(other < bits for _, other in figures.values())
        beaten = any(c <= cost and b <= bits and (c, b) != (cost, bits) for c, b in figures.values())
        assert entry.on_frontier is not beaten
    best: list[tuple[str, float]] = []
    for row in sorted(stated, key=lambda row: (row["run_completion_timestamp"], row["eval_paloma_c4_en_bpb"])):
        clearly = not best or row["eval_paloma_c4_en_bpb"] < best[-1][1] - 2.3263 * 5e-5 * 2**0.5
        if clearly:
            best.append((row["run_name"], row["eval_paloma_c4_en_bpb"]))
    assert [entry.name for entry in board.records] == [name for name, _ in best]


def test_no_family_of_the_public_contest_supports_a_ranked_projection(shared: pathlib.Path) -> None:
    board = collect([], [shared / "runs.json"]).track("fineweb-edu")
    fits, num_unfitted = scaling_view.fits_of(board.track, [summarize(entry) for entry in board.entries])
    assert (len(fits), num_unfitted) == (19, 0) and all(fit.rank is None and fit.refusal for fit in fits)
    sizes = {fit.family: (len(fit.points), fit.parameters) for fit in fits}
    assert sizes["adamw_llama_scaling"] == (4, 2)
    assert sizes["muonh_qwen3_scaling"] == (7, 3)
    fit = next(fit for fit in fits if fit.family == "muonh_qwen3_scaling")
    assert fit.projection is not None and fit.at(fit.budget) == pytest.approx(fit.projection)


# --- the public list, kept ----------------------------------------------------------------------------------------


def test_rows_of_a_list_are_read_again_by_the_block_and_are_those_read_without_a_store(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "runs.json", tmp_path / "cache"
    author = {"name": "A", "affiliation": "B", "url": None}
    values: list[object] = [
        {"run_name": f"family/{number}", "author": author, "training_time": 10.0 + number} for number in range(2000)
    ]
    validate, validated = public_rows.PublicRow.model_validate, []
    monkeypatch.setattr(
        public_rows.PublicRow, "model_validate", lambda value: validated.append(value) or validate(value)
    )

    def num_read() -> int:
        path.write_text(json.dumps(values))
        alone = read_list(path)
        validated.clear()
        store = RowStore(cache)
        assert read_list(path, store) == alone
        store.save()
        return len(validated)

    assert num_read() == 2000
    assert num_read() == 0
    values[1234] = {**values[1234], "description": "another"}  # type: ignore[dict-item]
    assert 0 < num_read() < 700
    values.insert(0, {"run_name": "family/first", "author": author})
    assert 0 < num_read() < 700
    del values[700]
    assert 0 < num_read() < 700
    values[1500] = {"run_name": 3}
    broken = num_read()
    assert 0 < broken < 700
    assert num_read() == broken  # what could not be read is read again, and told each time
    assert [item.source for item in read_list(path, RowStore(cache)) if isinstance(item, Unreadable)] == [
        "runs.json, row 1501"
    ]
    kept = cache / "rows.jsonl"
    kept.write_bytes(kept.read_bytes().replace(b"family/1999", b"family/1998"))
    assert num_read() > broken  # a line that was damaged is not there
    values.clear()
    assert num_read() == 0
