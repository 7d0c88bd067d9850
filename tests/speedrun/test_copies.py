"""Which of several rows of one run stands: what git had first, whatever the files say of their dates."""

import json
import pathlib
import random
import shutil
import subprocess
from typing import Any

import pytest
from example_runs import run_info, run_json
from forgeries.editing import edit_log, edit_run
from forgeries.honest import Plan, write_submission

from marin.site.leaderboard.track_view import views_of
from marin.speedrun.board.leaderboard import Board, build_board, collect
from marin.speedrun.board.rows import rows_of
from marin.speedrun.verification.commits import commit_times

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
BEFORE = 30 * 86_400.0


def _git(repository: pathlib.Path, *arguments: str) -> None:
    subprocess.run(["git", *IDENTITY, *arguments], cwd=repository, check=True, capture_output=True)


@pytest.fixture
def contest(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository whose branch has one submission, `victim`."""
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    write_submission(tmp_path / "runs" / "victim", [Plan(steps=30, seed=0)], random.Random(3))
    _commit(tmp_path)
    return tmp_path / "runs"


def _commit(repository: pathlib.Path) -> None:
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "-m", "runs")


def _copied(contest: pathlib.Path, name: str, *, author: str | None = "Eve Copy", **changes: Any) -> pathlib.Path:
    directory = shutil.copytree(contest / "victim", contest / name)

    def change(info: dict[str, Any]) -> None:
        info.update(changes)
        if author is not None:
            info["author"] = {"name": author, "affiliation": "", "url": None}

    edit_run(directory, change)
    return directory


def _standing(board: Board) -> dict[str, bool]:
    return {entry.rows[0].source.removesuffix("/speedrun_results.json"): entry.rank is not None for track in board.tracks for entry in track.entries}  # fmt: skip


@pytest.mark.parametrize("author", ["Ada Lovelace", "ADA  lovelace", "Ada\u00a0Lovelace"])
def test_author_by_another_spelling_may_show_two_runs_on_one_page(author: str) -> None:
    link = "https://wandb.ai/ada/speed/runs/abc"
    infos = [run_info(author={"name": name, "affiliation": "", "url": None}, wandb_run_link=link, seed=seed, training_time=600.5 + seed)
             for seed, name in enumerate(["Ada Lovelace", author])]  # fmt: skip
    board = build_board(
        [row for seed, info in enumerate(infos) for row in rows_of(info, f"mine/{seed}", f"mine/{seed}")]
    )
    assert not any(
        finding.field == "wandb_run_link" and finding.severity == "error"
        for row in board.rows
        for finding in row.findings
    )


@pytest.mark.parametrize("name", ["copy", "victim/deeper", "zz/a/b"])
@pytest.mark.parametrize("merged", [False, True])
def test_backdated_copy_does_not_stand_before_the_run_it_copies(contest: pathlib.Path, name: str, merged: bool) -> None:
    copy = _copied(contest, name)

    def earlier(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [event | {"time": event["time"] - BEFORE} for event in events]

    edit_log(copy, earlier, careful=True)
    if merged:
        _git(contest, "checkout", "--quiet", "-b", "other")
        _commit(contest)
        _git(contest, "checkout", "--quiet", "main")
        (contest.parent / "other.txt").write_text("")
        _commit(contest)
        _git(contest, "merge", "--quiet", "--no-ff", "-m", "merge", "other")
    board = collect([contest])
    assert _standing(board) == {"victim": True, name: False}
    (held,) = [row for row in board.rows if row.author == "Eve Copy"]
    assert "is that of victim by" in held.verdict["arithmetic"].findings[-1].message


def test_copy_does_not_stand_where_git_is_asked_to_show_signatures(
    contest: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    for name, value in {"gpg.format": "ssh", "user.signingkey": str(key), "log.showSignature": "true"}.items():
        _git(contest, "config", name, value)
    _git(contest, "commit", "--quiet", "--amend", "--no-edit", "-S")
    copy = _copied(contest, "copy")
    edit_log(copy, lambda events: [event | {"time": event["time"] - BEFORE} for event in events], careful=True)
    _git(contest, "add", ".")
    _git(contest, "commit", "--quiet", "-m", "copy", "-S")
    assert _standing(collect([contest])) == {"victim": True, "copy": False}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=contest, check=True, capture_output=True, text=True).stdout
    assert commit_times(contest)(head.strip()) is not None


def test_backdated_copy_is_not_decided_where_git_cannot_say(contest: pathlib.Path) -> None:
    _copied(contest, "copy", run_completion_timestamp="2020-01-01 00:00:00 UTC")
    shutil.rmtree(contest.parent / ".git")
    rows = {row.source.partition("/")[0]: row for row in collect([contest]).rows}
    assert not rows["copy"].counts and rows["victim"].counts  # the copy's date contradicts its log, which fails a rung
    shutil.rmtree(contest / "copy")
    copy = _copied(contest, "copy")
    edit_log(copy, lambda events: [event | {"time": event["time"] - BEFORE} for event in events], careful=True)
    assert _standing(collect([contest])) == {"victim": False, "copy": False}


@pytest.mark.parametrize("notice", ["challenge.json", "withdrawn.json"])
def test_notice_holds_for_its_authors_other_copies_and_not_for_what_a_stranger_copied(
    contest: pathlib.Path, notice: str
) -> None:
    _copied(contest, "stranger")  # of another author
    shutil.copytree(contest / "victim", contest / "stranger" / "same")  # with every byte the same
    for directory in (contest / "stranger", contest / "stranger" / "same"):
        (directory / notice).write_text(json.dumps({"reason": "not what it says"}))
    assert _standing(collect([contest])) == {"victim": True, "stranger": False}
    shutil.rmtree(contest / "stranger")
    (contest / "victim" / notice).write_text(json.dumps({"reason": "the log is made up"}))
    _commit(contest)
    for author, description in ((None, "the same"), (None, "described anew")):
        shutil.rmtree(contest / "again", ignore_errors=True)
        _copied(contest, "again", author=author, description=description)
        board = collect([contest])
        noticed = [row.verdict.challenged or row.verdict.withdrawn for row in board.rows]
        assert all(said and "made up" in said for said in noticed), noticed
        ranked = [name for name, rank in _standing(board).items() if rank]
        assert ranked == ([] if notice == "withdrawn.json" else ["victim"])


def test_author_counts_a_run_once_in_whatever_directories_it_lies(contest: pathlib.Path) -> None:
    _copied(contest, "again", author=None, description="the same run, described anew")
    assert _standing(collect([contest])) == {"victim": True, "again": False}


def test_run_that_was_written_again_with_its_processors_name_counts_once(tmp_path: pathlib.Path) -> None:
    write_submission(tmp_path / "victim", [Plan(steps=30, device="cpu")], random.Random(3))
    _copied(tmp_path, "again", author=None, processor=None)
    board = collect([tmp_path])
    assert {row.hardware for row in board.rows} == {"CPU", "CPU (Example CPU)"}
    assert sorted(_standing(board).values()) == [False, True]


def test_a_seed_counts_once_in_directories_side_by_side_and_a_run_below_another_is_not_of_its_entry(
    tmp_path: pathlib.Path,
) -> None:
    rng = random.Random(5)
    for name in ("mine/s0", "mine/s1", "mine/s2"):
        write_submission(tmp_path / name, [Plan(steps=30, seed=0)], rng)
    write_submission(tmp_path / "mine" / "s3", [Plan(steps=30, seed=1)], rng)
    write_submission(tmp_path / "whole", [Plan(steps=30, seed=seed) for seed in (0, 1)], rng)
    write_submission(tmp_path / "whole" / "below", [Plan(steps=30, seed=2)], rng)
    entries = [entry for track in collect([tmp_path]).tracks for entry in track.entries]
    found = {(entry.name, tuple(sorted({row.seed for row in entry.rows}))): len(entry.rows) for entry in entries}
    assert found == {("mine", (0, 1)): 2, ("whole", (0, 1)): 2, ("whole/below", (2,)): 1}


def _without_log(directory: pathlib.Path, **changes: Any) -> None:
    """As older files are: results alone."""
    shutil.rmtree(directory / "logs", ignore_errors=True)
    for name in ("metrics.jsonl", "run.json"):
        (directory / name).unlink(missing_ok=True)

    def change(info: dict[str, Any]) -> None:
        info.pop("digests", None)
        info.update(changes)

    edit_run(directory, change)


def test_score_of_another_to_the_last_digit_without_a_log_takes_no_rank(contest: pathlib.Path) -> None:
    """Time and cost a little lower, another name, no log: the score is still the other's."""
    results = json.loads((contest / "victim" / "speedrun_results.json").read_text())["runs"][0]["run_info"]
    faster = {name: 0.97 * results[name] for name in ("training_time", "training_hardware_flops")}
    copy = _copied(contest, "copy")
    _without_log(copy, **faster)
    board = collect([contest])
    assert _standing(board) == {"victim": True, "copy": False}
    (held,) = [row for row in board.rows if row.author == "Eve Copy"]
    assert any(
        "bits per byte, for which there is no log, is that of victim by" in finding.message for finding in held.findings
    )


def test_score_with_few_digits_or_of_ones_own_is_nobodys_copy(contest: pathlib.Path) -> None:
    results = json.loads((contest / "victim" / "speedrun_results.json").read_text())["runs"][0]["run_info"]
    faster = {name: 0.97 * results[name] for name in ("training_time", "training_hardware_flops")}
    own = _copied(contest, "own", author=None)
    _without_log(own, **faster)
    board = collect([contest])
    findings = [finding.message for row in board.rows for finding in row.findings]
    assert not any("for which there is no log" in message for message in findings)


@pytest.mark.parametrize("git", [True, False])
def test_copy_of_a_withdrawn_run_takes_no_rank_with_or_without_git(contest: pathlib.Path, git: bool) -> None:
    (contest / "victim" / "withdrawn.json").write_text(json.dumps({"reason": "the evaluation was wrong"}))
    _commit(contest)
    if not git:
        shutil.rmtree(contest.parent / ".git")
    copy = _copied(contest, "copy")
    (copy / "withdrawn.json").unlink()
    assert _standing(collect([contest])) == {"victim": False, "copy": False}
    (held,) = [row for row in collect([contest]).rows if row.author == "Eve Copy"]
    assert "is that of victim by" in held.verdict["arithmetic"].findings[-1].message


def test_copy_that_is_withdrawn_takes_nothing_from_the_run_that_came_first(contest: pathlib.Path) -> None:
    """A stranger's copy that came later takes nothing away by being withdrawn."""
    copy = _copied(contest, "copy")
    (copy / "withdrawn.json").write_text(json.dumps({"reason": "sour grapes"}))
    _commit(contest)
    assert _standing(collect([contest])) == {"victim": True, "copy": False}


@pytest.fixture
def older(tmp_path: pathlib.Path) -> pathlib.Path:
    """A repository whose branch had a run of Eve's, `eve`, before it had `victim`."""
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    write_submission(tmp_path / "runs" / "eve", [Plan(steps=30, seed=5)], random.Random(4))
    edit_run(tmp_path / "runs" / "eve", lambda info: info["author"].update(name="Eve Copy"))
    _commit(tmp_path)
    write_submission(tmp_path / "runs" / "victim", [Plan(steps=30, seed=0)], random.Random(3))
    _commit(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("deleted_between", [False, True])
def test_file_that_was_there_before_does_not_bring_a_copied_run_its_age(
    older: pathlib.Path, deleted_between: bool
) -> None:
    assert _standing(collect([older])) == {"eve": True, "victim": True}
    shutil.rmtree(older / "eve")
    if deleted_between:
        _commit(older)
    _copied(older, "eve")
    _commit(older)
    assert _standing(collect([older])) == {"eve": False, "victim": True}
    shutil.rmtree(older / "eve")
    shutil.copytree(older / "victim", older / "eve")  # with every byte the same
    (older / "eve" / "withdrawn.json").write_text(json.dumps({"reason": "not what it says"}))
    _commit(older)
    assert _standing(collect([older])) == {"victim": True}


def test_run_keeps_its_age_when_its_file_is_edited_or_takes_another_run_in(contest: pathlib.Path) -> None:
    _copied(contest, "copy")
    _commit(contest)
    edit_run(contest / "victim", lambda info: info.update(description="described anew"))
    _commit(contest)
    edit_run(contest / "copy", lambda info: info.update(description="described anew too"))
    assert _standing(collect([contest])) == {"victim": True, "copy": False}


@pytest.mark.parametrize("order", [("runs", "zz"), ("zz", "runs")])
def test_copy_at_the_same_place_of_another_directory_does_not_take_the_place_of_the_run(
    contest: pathlib.Path, order: tuple[str, ...]
) -> None:
    """Several --results-dir of one repository: a source is relative to its own."""
    other = contest.parent / "zz"
    other.mkdir()
    shutil.move(_copied(contest, "copy"), other / "victim")
    edit_log(
        other / "victim", lambda events: [event | {"time": event["time"] - BEFORE} for event in events], careful=True
    )
    _commit(contest)
    board = collect([contest.parent / name for name in order])
    ranks = {entry.author: entry.rank is not None for track in board.tracks for entry in track.entries}
    assert not ranks.pop("Eve Copy") and list(ranks.values()) == [True]


@pytest.mark.parametrize(
    "link",
    [
        "http://wandb.ai/example/marin/runs/plain-1",
        "https://www.wandb.ai/example/marin/runs/plain-1?nw=nwuser",
        "https://wandb.ai/example/marin/runs/plain-1/overview#config",
        "https://WANDB.ai/example/marin/runs/plain-1/",
    ],
)
def test_run_page_under_another_spelling_is_the_same_page(tmp_path: pathlib.Path, link: str) -> None:
    page = "https://wandb.ai/example/marin/runs/plain-1"
    rows = []
    for name, author, url, date in (
        ("one", "Ada", page, "01"),
        ("two", "Eve", link, "02"),
        ("three", "Bob", None, "03"),
    ):
        info = run_info(
            author={"name": author, "affiliation": ""}, wandb_run_link=url, run_completion_timestamp=f"2026-01-{date} 03:04:05 UTC",
            description=name,
        )  # fmt: skip
        rows += rows_of(info, name, f"{name}/speedrun_results.json")
    held = {row.run_name for row in build_board(rows).rows if not row.counts}
    assert held == {"two"}


def _hand_in(place: pathlib.Path, author: str, bits: float, date: str) -> None:
    """A results file of the FineWeb-Edu track, committed."""
    place.mkdir(parents=True, exist_ok=True)
    run = run_json(
        author={"name": author, "affiliation": ""}, description=f"{author}: {bits}", tokenized_dataset="tokenized/fineweb-edu",
        run_completion_timestamp=f"{date} 03:04:05 UTC", **{"eval/paloma/c4_en/bpb": bits},
    )  # fmt: skip
    (place / "speedrun_results.json").write_text(json.dumps({"runs": [{"run_info": run}]}))


def test_backdated_run_is_judged_against_the_record_that_was_there_when_it_came(tmp_path: pathlib.Path) -> None:
    """A difference that chance explains takes no record, whatever date its file states; one that is shown does, on the day it came."""
    _git(tmp_path, "init", "--quiet", "--initial-branch=main")
    runs = tmp_path / "runs"
    _hand_in(runs / "old", "Ada", 1.5, "2026-01-02")
    _commit(tmp_path)
    _hand_in(runs / "lucky", "Eve", 1.49995, "2025-01-01")
    _commit(tmp_path)
    board = collect([runs]).track("fineweb-edu")
    assert [entry.name for entry in board.records] == ["old"]
    assert {entry.name: entry.rank for entry in board.entries} == {"lucky": 1, "old": 2}  # by their figures alone
    _hand_in(runs / "better", "Eve", 1.4, "2025-06-01")
    _commit(tmp_path)
    found = collect([runs])
    board = found.track("fineweb-edu")
    assert [entry.name for entry in board.records] == ["old", "better"]
    (view,) = [view for view in views_of(found) if view.board.track.key == "fineweb-edu"]
    days = [record["date"] or "" for record in view.records]
    assert days[0] == "2026-01-02" < days[1]
    assert [entry["date"] for entry in view.entries if entry["name"] == "better"] == ["2025-06-01"]
