"""A site that is built again, over another one or by another program: what is written anew, and what never is."""

import json
import pathlib
import shutil
from collections.abc import Callable

import pytest
from example_runs import run_info
from leaderboard_pages import snapshot, words_of

from marin.errors import StorageError
from marin.site.leaderboard import api, build, entry_page, pareto, scaling_view, timeline, track_page
from marin.site.leaderboard.build import build_site
from marin.site.leaderboard.output import RECORD, SiteWriter
from marin.speedrun.board import row_store
from marin.speedrun.board.leaderboard import build_board, collect
from marin.speedrun.board.rows import Row, rows_of
from marin.speedrun.tracks import FINEWEB_EDU, TIME_TO_GPT2
from marin.speedrun.verdict import RUNGS


def test_site_built_again_elsewhere_and_over_another_has_the_same_bytes(
    results_dir: pathlib.Path, site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # Over a smaller site, with a file of a person's own in it.
    build_site([results_dir / "hello"], [], tmp_path)
    (tmp_path / "charts" / "notes.txt").write_text("mine")
    build_site([results_dir], [], tmp_path)
    (tmp_path / "charts" / "notes.txt").unlink()
    assert snapshot(tmp_path) == snapshot(site)


def test_site_rebuilt_writes_only_what_changed_and_removes_what_is_gone(
    results_dir: pathlib.Path, site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    board = collect([results_dir])
    first = build.write_site(board, SiteWriter(str(tmp_path)), [results_dir])
    again = build.write_site(board, SiteWriter(str(tmp_path)), [results_dir])
    assert (first.num_written > 60, again.num_written) == (True, 0)
    (page,) = tmp_path.glob("entries/hello-*.html")
    page.write_text("cut")
    mended = build.write_site(board, SiteWriter(str(tmp_path)), [results_dir])
    assert mended.num_written == 1
    assert "Return the value." in page.read_text()
    smaller = collect([results_dir / "family"])
    build.write_site(smaller, SiteWriter(str(tmp_path)), [results_dir / "family"])
    assert not page.exists()


def test_site_is_written_again_by_a_program_whose_rules_are_others(
    results_dir: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = collect([results_dir / "hello"])
    build.write_site(board, SiteWriter(str(tmp_path)))
    for module in (build, entry_page, api):
        monkeypatch.setattr(module, "DOES_NOT_PROVE", dict.fromkeys(RUNGS, "anything at all"))
    monkeypatch.setattr(row_store, "program_digest", lambda: "of other rules")
    build.write_site(board, SiteWriter(str(tmp_path)))
    (page,) = tmp_path.glob("entries/hello-*.html")
    assert "Does not prove anything at all." in words_of(page)


def test_page_is_written_again_when_the_same_change_gives_another_figure_at_another_depth(
    tmp_path: pathlib.Path,
) -> None:
    def rows(core_at_12: float) -> list[Row]:
        made = []
        for depth, core in ((12, core_at_12), (24, 0.27)):
            run = run_info(resources={"accelerator_type": "H100", "gpu_count": 8}, num_chips=8, num_devices=8, device_flops=989.5e12, core_metric=core, core_version="v1", model_config={"depth": depth}, seed=0, train_config={"seed": 0}, training_hardware_flops=3000.0 * 8 * 989.5e12, training_time=3000.0)  # fmt: skip
            made += rows_of(run, f"mine/d{depth}", f"mine/d{depth}/speedrun_results.json")
        return made

    for core in (0.15, 0.16):
        build.write_site(build_board(rows(core), tracks=(TIME_TO_GPT2,)), SiteWriter(str(tmp_path)))
        (page,) = tmp_path.glob("entries/mine-d24-*.html")
        assert f"12 1 {core:.4f}" in words_of(page)


def test_every_page_of_a_table_has_a_column_that_came_with_an_entry_of_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track_page, "PAGE_SIZE", 2)
    for times in ({}, {"training_time": 60.0, "training_hardware_flops": 60.0 * 312e12}):
        rows = []
        for number in range(4):
            figures = {"training_time": None} | (times if number == 0 else {})
            run = run_info(tokenized_dataset="fineweb-edu", **{"eval/paloma/c4_en/bpb": 1.0 + number, **figures})
            rows += rows_of(run, f"size_{number}", f"size_{number}/speedrun_results.json")
        build.write_site(build_board(rows), SiteWriter(str(tmp_path)))
        for page in ("fineweb-edu.html", "fineweb-edu.page-2.html"):
            assert ('data-column="training_time"' in (tmp_path / "tracks" / page).read_text()) == bool(times), page


def test_site_built_over_an_earlier_one_is_the_site_built_anew_whatever_changed(
    results_dir: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a chart is drawn from stands for the drawing, which takes seconds.
    names = [f"{shape}-{scheme}" for shape in ("wide", "narrow") for scheme in ("light", "dark")]
    for module in (pareto, scaling_view, timeline):
        monkeypatch.setattr(module, "draw", lambda *shown: dict.fromkeys(names, repr(shown)))
    tree, site, cache = tmp_path / "tree", tmp_path / "site", tmp_path / "cache"
    for name in ("size_0", "size_1", "size_2", "size_3"):
        shutil.copytree(results_dir / "family" / name, tree / "family" / name)

    def change(name: str, old: str, new: str) -> None:
        path = tree / "family" / name / "speedrun_results.json"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def damage() -> None:
        kept = cache / "rows.jsonl"
        head, first, *lines = kept.read_bytes().splitlines(keepends=True)
        kept.write_bytes(b"".join([head, first.replace(b"Author", b"Nobody"), *lines[:-1], lines[-1][:200]]))

    changes: dict[str, Callable[[], object]] = {
        "nothing is there yet": lambda: None,
        "a description": lambda: change("size_1", "Run number 1.", "Another text."),
        "a figure that moves ranks": lambda: change("size_1", "1.45", "1.52"),
        "an addition": lambda: shutil.copytree(results_dir / "hello", tree / "hello"),
        "damage to what was kept": damage,
        "a removal": lambda: shutil.rmtree(tree / "family" / "size_2"),
    }
    written = {}
    for name, act in changes.items():
        act()
        written[name] = build_site([tree], [], site, cache=cache).num_written
        build_site([tree], [], tmp_path / name)
        assert snapshot(site) == snapshot(tmp_path / name), name
    assert written["damage to what was kept"] == 0
    assert 0 < written["a description"] < written["nothing is there yet"] / 2


def test_charts_are_drawn_again_for_another_figure_and_not_for_another_description(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The address of a listed row's page follows its whole text, and charts lead to it.
    drawn: list[str] = []
    for module in (pareto, scaling_view, timeline):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(
            module, "draw", lambda *shown, name=name, draw=module.draw: drawn.append(name) or draw(*shown)
        )
    rows = [
        {
            "run_name": f"family_{number % 2}/size_{number}", "author": {"name": "A", "affiliation": "B", "url": None}, "description": "first",
            "model_size": 10**6, "training_hardware_flops": 1e16 * 2**number, "eval_paloma_c4_en_bpb": 1 + 0.5 * 0.9**number,
            "run_completion_timestamp": f"2025-01-{number + 10} 00:00:00 UTC",
        }
        for number in range(10)
    ]  # fmt: skip
    found = {}
    for name, place, figure, value in (("first", 5, "description", "first"), ("description", 5, "description", "second"), ("figure", 5, "eval_paloma_c4_en_bpb", 1.2)):  # fmt: skip
        rows[place][figure] = value
        (tmp_path / "rows.json").write_text(json.dumps(rows))
        # On one track, since each that a run stands on has charts of its own.
        board = build_board(collect([], [tmp_path / "rows.json"]).rows, tracks=(FINEWEB_EDU,))
        drawn.clear()
        build.write_site(board, SiteWriter(str(tmp_path / "site")))
        build.write_site(board, SiteWriter(str(tmp_path / name)))
        assert snapshot(tmp_path / "site") == snapshot(tmp_path / name)
        found[name] = sorted(drawn)
    every = ["pareto", "scaling_view", "timeline"]
    assert found == {"first": sorted(every * 2), "description": every, "figure": sorted(every * 2)}
    assert "second" in next((tmp_path / "site" / "entries").glob("family-1-size-5-*.html")).read_text()


def test_site_build_that_was_cut_off_is_followed_by_a_whole_one(
    results_dir: pathlib.Path, site: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_site([results_dir / "hello"], [], tmp_path)
    written = 0

    def put(self: SiteWriter, path: str, data: bytes) -> None:
        nonlocal written
        written += 1
        if written > 10:
            raise KeyboardInterrupt
        original(self, path, data)

    original = SiteWriter._put
    monkeypatch.setattr(SiteWriter, "_put", put)
    with pytest.raises(KeyboardInterrupt):
        build_site([results_dir], [], tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / RECORD).exists()
    build_site([results_dir], [], tmp_path)
    whole = snapshot(site)
    assert {name: data for name, data in snapshot(tmp_path).items() if name in whole} == whole


def test_a_page_of_something_else_is_not_written_over(results_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "index.html").write_text("<h1>My garden</h1>")
    (tmp_path / "CNAME").write_text("example.org")
    with pytest.raises(StorageError, match=r"index.html is not a leaderboard's, and would be written over"):
        build_site([results_dir / "hello"], [], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CNAME", "index.html"]
    (tmp_path / "index.html").unlink()
    build_site([results_dir / "hello"], [], tmp_path)
    assert (tmp_path / "CNAME").read_text() == "example.org"
    assert (tmp_path / "tracks").is_dir()


def test_site_record_that_names_other_files_removes_none_of_them(
    results_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    target = tmp_path / "site"
    build_site([results_dir / "hello"], [], target)
    record = json.loads((target / RECORD).read_text())
    record["files"] |= {"../mine.txt": ["x", 4], str(tmp_path / "mine.txt"): ["x", 4]}
    (target / RECORD).write_text(json.dumps(record))
    build_site([results_dir / "hello"], [], target)
    assert (tmp_path / "mine.txt").read_text() == "mine"
