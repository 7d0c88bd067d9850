"""The steps of the workflows, run on good and on hostile pull requests; and what the files themselves may not say."""

import fnmatch
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from forgeries.editing import edit_log, edit_run, edit_run_json
from forgeries.honest import Plan, write_submission

from marin.speedrun.board import row_store
from marin.speedrun.pull_request_tree import Extracted, extract
from marin.speedrun.verification import verify_submission
from tests.workflows.conftest import Origin, git
from tests.workflows.runner import ROOT, WORKFLOWS, load, run_job

SUBMISSION = pathlib.Path("experiments", "speedrun", "my_run")


def _good(head: pathlib.Path, name: str = "my_run", **plan: object) -> pathlib.Path:
    directory = head / SUBMISSION.parent / name
    directory.mkdir(parents=True)
    return write_submission(directory, [Plan(seed=5, **plan)], random.Random(11))


def test_workflow_on_a_good_pull_request_passes_and_shows_the_verdict(origin: Origin):
    done = origin.validate(lambda head: _good(head))
    assert done.failed is None, done.out
    assert "submissions that change: my_run" in done.out and "reached: log" in done.out
    # Whatever a submission says stands between the lines that turn the runner's commands off and on.
    assert len(re.findall(r"^::stop-commands::([0-9a-f]{32})$[\s\S]*?^::\1::$", done.out, re.MULTILINE)) == 2


@pytest.mark.slow
def test_workflow_on_edited_results_fails_at_the_verdict(origin: Origin):
    def change(head: pathlib.Path) -> None:
        results = _good(head) / "speedrun_results.json"
        content = json.loads(results.read_text())
        content["runs"][0]["run_info"]["training_time"] /= 2
        results.write_text(json.dumps(content))

    done = origin.validate(change)
    assert done.failed == "Verify each submission" and "FAILED" in done.out


def test_workflow_runs_nothing_of_a_hostile_pull_request_and_takes_no_link(origin: Origin, tmp_path: pathlib.Path):
    ran = tmp_path / "ran"
    code = f"import pathlib; pathlib.Path({str(ran)!r}).write_text('code of the submission ran')\n"

    def change(head: pathlib.Path) -> None:
        directory = _good(head)
        modules = (
            "__init__.py",
            "main.py",
            "sitecustomize.py",
            "usercustomize.py",
            "conftest.py",
            "json.py",
            "marin.py",
            "yaml.py",
        )
        for name in modules:
            (directory / name).write_text(code)
        for name in (
            "sitecustomize.py",
            "usercustomize.py",
            "conftest.py",
            "marin/__init__.py",
            "marin/__main__.py",
            "setup.py",
        ):
            (head / name).write_text(code)  # the head's own marin: the base's is used
        (head / "requirements.lock").write_text("evil\n")
        (head / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
        (directory / "logs" / "0" / "passwd").symlink_to("/etc/passwd")
        (directory / "up").symlink_to("../../../..")
        (directory / "::error::x\n::set-env name=PATH::x.txt").write_text("x")
        (directory / "a\\b").write_text("x")

    done = origin.validate(change)
    assert done.failed == "Take the submissions out of it as data"
    for refused in (
        "logs/0/passwd is a symbolic link",
        "my_run/up is a symbolic link",
        "a name with control characters",
    ):
        assert refused in done.out
    assert not ran.exists()
    taken = origin.folder / f"runner-{origin.count}" / "temp" / "pull-request"
    assert not any(path.is_symlink() for path in taken.rglob("*"))
    assert not any(os.access(path, os.X_OK) for path in taken.rglob("*") if path.is_file())


@pytest.mark.slow
def test_workflow_on_a_pull_request_that_only_has_hostile_code_passes_and_runs_none(
    origin: Origin, tmp_path: pathlib.Path
):
    ran = tmp_path / "ran"

    def change(head: pathlib.Path) -> None:
        directory = _good(head)
        for name in ("__init__.py", "main.py", "sitecustomize.py", "conftest.py", "json.py"):
            (directory / name).write_text(f"open({str(ran)!r}, 'w')\n")

    assert origin.validate(change).failed is None
    assert not ran.exists()


def test_workflow_on_removed_results_fails(origin: Origin):
    done = origin.validate(lambda head: (head / "experiments/speedrun/hello_world/speedrun_results.json").unlink())
    assert done.failed == "Take the submissions out of it as data"
    assert "rows are never deleted" in done.out


def test_run_that_is_taken_out_of_standing_results_is_refused_and_one_that_is_put_right_is_not(
    origin: Origin, tmp_path: pathlib.Path
):
    standing = SUBMISSION.with_name("standing")

    def three_seeds(head: pathlib.Path) -> None:
        (head / standing).mkdir()
        write_submission(head / standing, [Plan(seed=seed) for seed in range(3)], random.Random(11))

    base = origin.pull_request(three_seeds)["github.event.pull_request.head.sha"]

    def taken(change: Callable[[list[dict[str, Any]]], object]) -> Extracted:
        def edit(head: pathlib.Path) -> None:
            git(head, "fetch", "--quiet", "origin", base)
            git(head, "reset", "--quiet", "--hard", base)
            results = head / standing / "speedrun_results.json"
            content = json.loads(results.read_text())
            change(content["runs"])
            results.write_text(json.dumps(content))

        commit = origin.pull_request(edit)["github.event.pull_request.head.sha"]
        return extract(base, commit, tmp_path / commit, origin.path)

    assert taken(lambda runs: [run["run_info"].update(description="put right") for run in runs]).refused == []
    assert taken(lambda runs: runs.append(json.loads(json.dumps(runs[0])))).refused == []
    (problem,) = taken(lambda runs: runs.pop(1)).refused  # the unlucky seed
    assert (
        problem.startswith("standing: 1 of the 3 runs that stand on the board are gone") and "never deleted" in problem
    )
    faster = taken(lambda runs: runs[0]["run_info"].update(training_time=1.5))
    assert faster.refused == []
    said = "standing: rows of the board say otherwise: training_time "
    assert faster.to_look_at[-1].startswith(said) and faster.to_look_at[-1].endswith(" is 1.5")


def test_pull_request_that_began_before_the_base_branch_had_further_runs_takes_none_of_them_out(
    origin: Origin, tmp_path: pathlib.Path
):
    standing = SUBMISSION.with_name("growing")

    def first_run(head: pathlib.Path) -> None:
        (head / standing).mkdir()
        write_submission(head / standing, [Plan(seed=0)], random.Random(11))

    def go_on(head: pathlib.Path) -> None:
        git(head, "fetch", "--quiet", "origin", begun)
        git(head, "reset", "--quiet", "--hard", begun)

    def further_run(head: pathlib.Path) -> None:
        go_on(head)
        shutil.rmtree(head / standing)
        write_submission(head / standing, [Plan(seed=seed) for seed in (0, 1)], random.Random(11))

    def text(head: pathlib.Path) -> None:
        go_on(head)
        (head / standing / "README.md").write_text("What the idea is.\n")

    begun = origin.pull_request(first_run)["github.event.pull_request.head.sha"]
    base, head = (origin.pull_request(each)["github.event.pull_request.head.sha"] for each in (further_run, text))
    assert extract(base, head, tmp_path / "extracted", origin.path).refused == []


def test_extraction_names_what_a_person_has_to_look_at_and_keeps_what_was_said_of_a_row(
    origin: Origin, tmp_path: pathlib.Path
):
    standing = pathlib.Path("experiments", "speedrun", "hello_world")

    def take_out(base: str, head: str) -> Extracted:
        return extract(base, head, tmp_path / head, origin.path)

    def objected(head: pathlib.Path) -> None:
        (head / standing / "challenge.json").write_text('{"reason": "another run has the same losses"}')
        (head / standing / "statements").mkdir()
        (head / standing / "statements" / "eve.json").write_text("{}")

    objection = origin.pull_request(objected)["github.event.pull_request.head.sha"]
    added = take_out(origin.base, objection)
    assert added.refused == []
    assert added.to_look_at == [
        "hello_world stands on the board already: does its author ask for this? challenge.json, statements/eve.json"
    ]

    def silenced(head: pathlib.Path) -> None:
        git(head, "fetch", "--quiet", "origin", objection)
        git(head, "reset", "--quiet", "--hard", objection)
        shutil.rmtree(head / standing / "statements")
        (head / standing / "challenge.json").unlink()
        (head / standing / "speedrun_results.json").write_text("{}")
        (head / "experiments" / "speedrun" / "allowed_signers").write_text("eve ssh-ed25519 AAAA\n")
        for number in range(7):
            (head / "marin" / f"new_{number}.py").write_text("")

    silencing = origin.pull_request(silenced)["github.event.pull_request.head.sha"]
    found = take_out(objection, silencing)
    assert [problem.partition(":")[0] for problem in found.refused] == [
        f"{standing}/challenge.json is removed",
        f"{standing}/statements/eve.json is removed",
    ]
    assert found.to_look_at == [
        "hello_world stands on the board already: does its author ask for this? challenge.json, speedrun_results.json,"
        " statements/eve.json",
        "experiments/speedrun/allowed_signers says whose word counts",
        "files that belong to no submission: marin/ (7 files)",
    ]


def test_what_was_said_of_a_row_is_not_reworded_and_its_signature_not_covered(origin: Origin, tmp_path: pathlib.Path):
    standing = pathlib.Path("experiments", "speedrun", "hello_world")
    written = {"challenge.json": '{"reason": "too fast"}', "statements/eve.json": "{}", "statements/eve.sig": "hers"}

    def objected(head: pathlib.Path) -> None:
        for name, text in written.items():
            (head / standing / name).parent.mkdir(exist_ok=True)
            (head / standing / name).write_text(text)

    objection = origin.pull_request(objected)["github.event.pull_request.head.sha"]

    def reworded(head: pathlib.Path) -> None:
        git(head, "fetch", "--quiet", "origin", objection)
        git(head, "reset", "--quiet", "--hard", objection)
        for name in written:
            (head / standing / name).write_text("all is well")
        (head / standing / "statements" / "eve.json.sig").write_text("his")

    rewording = origin.pull_request(reworded)["github.event.pull_request.head.sha"]
    refused = extract(objection, rewording, tmp_path / "taken", origin.path).refused
    assert [problem.partition(":")[0] for problem in refused] == [f"{standing}/{name} is changed" for name in written]


def test_row_is_not_taken_out_behind_a_directory_that_is_called_as_results_are(origin: Origin, tmp_path: pathlib.Path):
    standing = SUBMISSION.with_name("pair")

    def two_seeds(head: pathlib.Path) -> None:
        (head / standing).mkdir()
        write_submission(head / standing, [Plan(seed=seed) for seed in range(2)], random.Random(12))

    base = origin.pull_request(two_seeds)["github.event.pull_request.head.sha"]

    def one(head: pathlib.Path) -> None:
        git(head, "fetch", "--quiet", "origin", base)
        git(head, "reset", "--quiet", "--hard", base)
        results = head / standing / "speedrun_results.json"
        results.write_text(json.dumps({"runs": json.loads(results.read_text())["runs"][1:]}))
        hidden = head / standing / "more" / "speedrun_results.json" / "a"
        hidden.parent.mkdir(parents=True)
        hidden.write_text("")

    head = origin.pull_request(one)["github.event.pull_request.head.sha"]
    (problem,) = extract(base, head, tmp_path / "taken", origin.path).refused
    assert problem.startswith("pair: 1 of the 2 runs that stand on the board are gone")


@pytest.mark.parametrize("begins_with", ["victim", "main"])
def test_merge_that_leaves_out_what_the_base_branch_merged_is_refused(
    origin: Origin, tmp_path: pathlib.Path, begins_with: str
):
    """Of a base branch and a head that are both merges of the same two commits, both of these are where they parted."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(origin.path), str(clone))
    git(clone, "checkout", "--quiet", "-b", "victim")
    _good(clone, "victim", steps=30)
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "-m", "a run")
    git(clone, "checkout", "--quiet", "main")
    (clone / "other.txt").write_text("")
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "-m", "goes on")
    parents = {"main": git(clone, "rev-parse", "HEAD"), "victim": git(clone, "rev-parse", "victim")}
    git(clone, "merge", "--quiet", "--no-ff", "-m", "take it in", "victim")
    base = git(clone, "rev-parse", "HEAD")
    other = parents["main" if begins_with == "victim" else "victim"]
    git(clone, "checkout", "--quiet", "-b", "evil", parents[begins_with])
    git(clone, "merge", "--quiet", "--no-ff", "-m", "merge", other)
    git(clone, "rm", "-r", "--quiet", "experiments/speedrun/victim")
    git(clone, "commit", "--quiet", "--amend", "-m", "merge")
    refused = extract(base, git(clone, "rev-parse", "HEAD"), tmp_path / "taken", clone).refused
    assert any("victim/speedrun_results.json is removed: rows are never deleted" in problem for problem in refused)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mine/.gitattributes", "obeyed by git"),
        ("speedrun_results.json", "lies in no directory of its own"),
        ("mine/.more/speedrun_results.json", "hidden directory"),
        ("hello_world#1/main.py", "number sign"),
        (f"{chr(0x674E) * 70}/main.py", "very long"),  # 210 bytes
    ],
)
def test_path_that_the_board_or_a_checkout_takes_otherwise_is_refused(
    origin: Origin, tmp_path: pathlib.Path, path: str, words: str
):
    def add(head: pathlib.Path) -> None:
        place = head / SUBMISSION.parent / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{}")

    head = origin.pull_request(add)["github.event.pull_request.head.sha"]
    refused = extract(origin.base, head, tmp_path / "taken", origin.path).refused
    assert refused and all(words in problem for problem in refused)


@pytest.mark.parametrize("place", ["checkpoints/speedrun/hello_world", "hello_world-speedrun_results-0123abcd"])
def test_submission_that_the_board_would_call_as_another_is_named(origin: Origin, tmp_path: pathlib.Path, place: str):
    head = origin.pull_request(lambda head: _good(head, place, steps=30))["github.event.pull_request.head.sha"]
    found = extract(origin.base, head, tmp_path / "taken", origin.path).to_look_at
    assert f"{place} looks like hello_world, which stands on the board already" in found


@pytest.mark.parametrize("author", ["Ada Example", "ADA  example"])
def test_submission_under_the_name_of_an_author_of_the_board_is_named(
    origin: Origin, tmp_path: pathlib.Path, author: str
):
    def taken(base: str, name: str) -> tuple[str, list[str]]:
        def add(head: pathlib.Path) -> None:
            if base != origin.base:
                git(head, "fetch", "--quiet", "origin", base)
                git(head, "reset", "--quiet", "--hard", base)
            directory = _good(head, name, steps=30)
            if name == "ada_again":
                edit_run(directory, lambda info: info["author"].update(name=author))

        commit = origin.pull_request(add)["github.event.pull_request.head.sha"]
        return commit, extract(base, commit, tmp_path / name, origin.path).to_look_at

    first, nothing = taken(origin.base, "ada_first")
    assert nothing == []
    _, again = taken(first, "ada_again")
    assert again == [f"ada_again is by {author}, as ada_first of the board: does that author ask for this?"]


def test_extraction_finds_results_at_any_depth(origin: Origin, tmp_path: pathlib.Path):
    def change(head: pathlib.Path) -> None:
        for name in ("newbie/run1", "newbie/more/run2", "hello_world/mine"):
            directory = head / SUBMISSION.parent / name
            directory.mkdir(parents=True)
            (directory / "speedrun_results.json").write_text("{}")

    head = origin.pull_request(change)["github.event.pull_request.head.sha"]
    extract(origin.base, head, tmp_path / "taken", origin.path)
    listed = (tmp_path / "taken" / "submissions").read_bytes().decode().split("\0")[:-1]
    tree = tmp_path / "taken" / "tree"
    found = {str(pathlib.Path(path).relative_to(tree)) for path in listed}
    assert found == {"newbie/run1", "newbie/more/run2", "hello_world", "hello_world/mine"}


def test_copy_is_found_although_the_request_changes_what_it_copies(origin: Origin, tmp_path: pathlib.Path):
    def add(head: pathlib.Path) -> None:
        _good(head, "victim", steps=30)

    base = origin.pull_request(add)["github.event.pull_request.head.sha"]

    def copy(head: pathlib.Path) -> None:
        git(head, "fetch", "--quiet", "origin", base)
        git(head, "reset", "--quiet", "--hard", base)
        runs = head / SUBMISSION.parent
        for name in ("Vic-tim", "zz/victim"):  # one looks like it, the other ends like it
            shutil.copytree(runs / "victim", runs / name)

            def noisy(events: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
                for event in events:
                    if event["event"] == "step":
                        event["loss"] *= 1 + rng.gauss(0, 1e-5)
                return events

            edit_run_json(runs / name, lambda info: info["seeds"].update(model=17))
            edit_log(runs / name, lambda events, noisy=noisy: noisy(events, random.Random(1)), careful=True)
            edit_run(runs / name, lambda info: info["author"].update(name="Eve Copy"))
        shutil.rmtree(runs / "victim" / "logs")
        edit_run(runs / "victim", lambda info: info.update(description="changed"))
        name = "vict\u0456m"  # a Cyrillic letter
        shutil.copytree(runs / "victim", runs / name)

    head = origin.pull_request(copy)["github.event.pull_request.head.sha"]
    found = extract(base, head, tmp_path / "taken", origin.path)
    assert "Vic-tim looks like victim, which stands on the board already" in found.to_look_at
    assert any("mixes Cyrillic and Latin letters" in problem for problem in found.refused)
    tree = tmp_path / "taken" / "tree"
    paths = [str(tree / name) for name in ("Vic-tim", "zz/victim", "victim")]
    known = str(tmp_path / "taken" / "known")
    done = subprocess.run(
        [sys.executable, "-m", "marin", "verify", *paths, "--known", known, "--tree", str(tree)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    out = done.stdout
    copied, ending, changed = out.split("reached:")[:3]
    for said in (copied, ending):
        assert "step times are those of victim to the microsecond" in " ".join(said.split())
    assert "log" in changed and "is that of victim:" not in changed  # its earlier version is no copy of it


@pytest.mark.slow
def test_workflow_on_a_copy_of_a_merged_run_fails(origin: Origin):
    def change(head: pathlib.Path) -> None:
        directory = head / SUBMISSION
        directory.mkdir(parents=True)
        content = (head / "experiments/speedrun/hello_world/speedrun_results.json").read_text()
        (directory / "speedrun_results.json").write_text(content.replace('"name": "Marin"', '"name": "Eve Copier"'))

    done = origin.validate(change)
    assert done.failed == "Verify each submission", done.out


def test_submission_in_a_clone_as_git_for_windows_makes_it_keeps_its_chain(tmp_path: pathlib.Path):
    made = tmp_path / "made"
    (made / SUBMISSION).mkdir(parents=True)
    write_submission(made / SUBMISSION, [Plan(seed=5)], random.Random(11))
    (made / "README.md").write_text("a text\n")
    shutil.copy(ROOT / ".gitattributes", made)
    git(made, "init", "--quiet", "--initial-branch=main")
    git(made, "add", ".")
    git(made, "commit", "--quiet", "-m", "my run")
    git(tmp_path, "clone", "--quiet", "--config", "core.autocrlf=true", str(made), "clone")
    assert (tmp_path / "clone" / "README.md").read_bytes() == b"a text\r\n"
    ((_, verdict),) = verify_submission(tmp_path / "clone" / SUBMISSION)
    assert verdict.level == "log"


@pytest.mark.parametrize("part", ["metrics.jsonl", "run.json"])
def test_log_with_line_ends_of_windows_is_named_for_what_it_is(tmp_path: pathlib.Path, part: str):
    write_submission(tmp_path, [Plan(seed=5)], random.Random(11))
    path = tmp_path / "logs" / "0" / part
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    ((_, verdict),) = verify_submission(tmp_path)
    (finding,) = [found for found in verdict["log"].findings if found.severity == "error"]
    assert verdict.level == "arithmetic" and f"{part}: its lines end as on Windows" in finding.message


def test_site_workflow_begins_with_whatever_decides_what_pages_say() -> None:
    patterns = load("leaderboard-site.yml")[True]["push"]["paths"]  # YAML takes the key `on` for a truth
    deciding = [path.relative_to(ROOT).as_posix() for path in row_store.program_files()]
    assert "marin/hardware.py" in deciding
    deciding += [
        "experiments/speedrun/one/speedrun_results.json",
        "marin/site/leaderboard/build.py",
        "requirements.lock",
    ]
    missed = [path for path in deciding if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
    assert missed == []


@pytest.mark.slow
def test_site_workflow_builds_the_site_of_merged_submissions(origin: Origin, tmp_path: pathlib.Path):
    job = load("leaderboard-site.yml")["jobs"]["build"]
    done = run_job(job, {"runner.temp": str(tmp_path / "temp")}, origin.path, tmp_path / "runner")
    assert done.failed is None, done.out
    assert (tmp_path / "runner" / "temp" / "site" / "index.html").is_file()


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_workflow_file_grants_little_and_pins_its_actions(path: pathlib.Path):
    text, content = path.read_text(), load(path.name)
    triggers = content[True]  # YAML reads `on` as true
    assert "pull_request_target" not in triggers and "workflow_run" not in triggers
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert "timeout-minutes" in job
        writes = {name for name, access in job.get("permissions", {}).items() if access == "write"}
        assert not writes or not any("run" in step or "checkout" in step["uses"] for step in job["steps"])
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
            # An expression inside of a script would paste text of the pull request into it.
            assert "${{" not in step.get("run", "")
    assert "secrets." not in re.sub(r"secrets\.token_hex", "", text)
