"""The pull request that `marin submit` writes: its text, the linked page, how it is pushed and opened, and secrets in none of it."""

import http.server
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest
from forgeries.honest import Plan, write_submission
from submission_place import Place

from marin.cli.main import dispatch
from marin.errors import ConfigError
from marin.execution.redaction import redact, secrets_in
from marin.speedrun import submitting
from marin.speedrun.pull_request import body, cost_text, fenced, markdown_text
from marin.speedrun.tracks import TRACKS
from marin.speedrun.verification import verify_submission

SECRET = "s3cret-value-of-this-test"


@pytest.fixture
def pages() -> Iterator[str]:
    """`{url}/ok`, `/private` (403), `/gone` (404), `/in` (leads to a login)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = {"/ok": 200, "/login": 200, "/private": 403, "/in": 302}.get(self.path, 404)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/login")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_cost_is_seconds_where_the_track_counts_time_and_flops_elsewhere():
    of = {track.key: track for track in TRACKS}
    assert cost_text(of["cpu-10-minutes"], 185.44) == "185.4 s"
    assert cost_text(of["time-to-gpt2"], 5940) == "5,940.0 s"
    assert cost_text(of["fineweb-edu"], 5940e12) == "5.940e+15"
    assert cost_text(of["single-gpu"], None) == "unknown"


def test_submit_from_elsewhere_names_the_way_and_commands_that_work_from_there(
    place: Place, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    place.add_runs(Plan())
    (tmp_path / "bin" / "gh").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "gh").chmod(0o755)
    monkeypatch.chdir(place.directory.parent)
    with pytest.raises(ConfigError, match="^experiments/speedrun/example is not there: give example$"):
        dispatch(["submit", "experiments/speedrun/example"])
    assert dispatch(["submit", "example", "--prefix", str(place.prefix)]) == 0
    out = capsys.readouterr().out
    assert f"\n  cd {place.root} && git " in out
    assert f"then: marin submit {place.directory} --no-gather --open" in out  # after the way that was named, too


def test_submit_says_how_to_push_from_a_clone_without_branch_or_origin(
    place: Place, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    place.add_runs(Plan())
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "git").symlink_to(shutil.which("git", path=os.defpath) or pytest.skip("no git"))
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))  # and no gh

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=place.root, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def command() -> str:
        assert place.submit() == 0
        return capsys.readouterr().out.partition("ready. Commit and push it:\n  ")[2].partition("\n")[0]

    assert place.submit() == 0
    said = capsys.readouterr().out
    assert f"ready, but {place.root} is no git clone: copy experiments/speedrun/example into one" in said
    git("init", "--quiet", "--initial-branch=main")
    git("add", "pyproject.toml")
    git("commit", "--quiet", "-m", "begun")
    assert command().startswith("git add ") and command().endswith("git push -u origin HEAD")
    git("init", "--quiet", "--bare", "../fork.git")
    git("remote", "add", "myfork", "../fork.git")
    git("config", "user.name", "Ada")
    git("config", "user.email", "ada@example.org")
    git("checkout", "--quiet", "--detach")
    subprocess.run(command(), shell=True, cwd=place.root, check=True, capture_output=True)
    assert git("rev-parse", "--abbrev-ref", "HEAD@{upstream}") == "myfork/example"
    assert "experiments/speedrun/example/speedrun_results.json" in git("ls-tree", "-r", "--name-only", "myfork/example")
    (place.root.parent / "ignored").write_text("logs/\n")
    git("config", "core.excludesFile", str(place.root.parent / "ignored"))
    (place.directory / "README.md").write_text("More of it.")
    git("rm", "-r", "--cached", "--quiet", "experiments/speedrun/example/logs")
    forced = "git add --force experiments/speedrun/example/logs"
    pushing = command()
    assert forced in pushing
    subprocess.run(pushing, shell=True, cwd=place.root, check=True, capture_output=True)
    assert "example/logs/0/metrics.jsonl" in git("ls-tree", "-r", "--name-only", "myfork/example")
    assert forced not in command()  # git knows them
    git("init", "--quiet", "--bare", "../lab.git")
    git("remote", "add", "origin", "../lab.git")
    assert command().endswith("git push -u myfork HEAD")
    git("push", "--quiet", "origin", "HEAD:main")
    git("remote", "rename", "origin", "upstream")
    git("remote", "rename", "myfork", "origin")
    git("checkout", "--quiet", "--track", "-b", "idea", "upstream/main")
    assert command().endswith("git push -u origin HEAD")
    git("remote", "rename", "origin", "myfork")
    git("config", "remote.pushDefault", "myfork")
    assert command().endswith("git push -u myfork HEAD")


def test_submit_with_gh_opens_only_when_told(place: Place, tmp_path: pathlib.Path, capfd):
    place.add_runs(Plan())
    log = tmp_path / "gh.log"
    gh = tmp_path / "bin" / "gh"
    gh.write_text(f'#!/bin/sh\nfor argument in "$@"; do echo "$argument" >> {log}; done\n')
    gh.chmod(0o755)
    assert place.submit() == 0
    assert not log.exists()  # no person, no flag: nothing is opened
    assert "example --no-gather --open\n" in capfd.readouterr().out
    assert place.submit("--approach", "Wider, as it's cheap.") == 0
    (again,) = re.findall("^then: marin (.*)$", capfd.readouterr().out, re.MULTILINE)
    assert dispatch(shlex.split(again)[:-1]) == 0
    assert "Wider, as it's cheap." in place.body().replace("\\", "")
    capfd.readouterr()
    assert place.submit("--open") == 0
    said = log.read_text().splitlines()
    assert said[:3] == ["pr", "create", "--title"] and said[3].startswith("speedrun: example: ")
    assert said[4:] == ["--body-file", str(place.root / ".submit" / "example.md")]


@pytest.mark.parametrize(("path", "problem"), [("ok", None), ("private", "403"), ("gone", "404"), ("in", "login")])
def test_page_problem_says_what_a_stranger_would_see(path: str, problem: str | None, pages: str):
    found = submitting.page_problem(f"{pages}/{path}")
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_page_problem_of_no_page_is_said_plainly():
    assert "no web address" in (submitting.page_problem("file:///etc/passwd") or "")
    assert "could not be checked" in (submitting.page_problem("http://127.0.0.1:9/") or "")


def test_text_of_a_pull_request_of_any_size_is_one_that_github_takes(tmp_path: pathlib.Path):
    plans = [Plan(steps=4, seed=seed, description="*很长的描述*" * 4_000) for seed in range(2)]
    runs = verify_submission(write_submission(tmp_path / "long", plans, random.Random(3)))
    text = body("long", runs * 200, [], "python -m long", None)
    assert len(text) <= 65_536
    assert "… (cut)" in text and "and 320 more, which stand in the results" in text
    assert text.count("```") % 2 == 0 and "## Verification" in text


def test_pull_request_text_of_an_author_is_shown_and_not_obeyed():
    hostile = "<script>x</script> [a](javascript:x) @everyone ``` #1 | cell"
    shown = markdown_text(hostile)
    assert (
        "<script>" not in shown.replace("\\<", "") and "@everyone" not in shown and "](" not in shown.replace("\\]", "")
    )
    block = fenced("```\n</details>\n````")
    assert block.startswith("`````\n") and block.endswith("\n`````")


def test_redaction_hides_values_flags_and_shapes():
    environment = {"HF_TOKEN": SECRET, "PATH": "/usr/bin", "SHORT_TOKEN": "abc"}
    command = [
        "main.py",
        "--hf_token",
        "x",
        f"--url=http://{SECRET}@host",
        "--api_key=1234",
        "ghp_" + "b" * 36,
        "--seed",
        "3",
    ]
    hidden = redact(command, environment)
    assert hidden == [
        "main.py",
        "--hf_token",
        "<hidden>",
        "--url=http://<hidden>@host",
        "--api_key=<hidden>",
        "<hidden>",
        "--seed",
        "3",
    ]
    assert secrets_in(" ".join(command), environment) and not secrets_in(" ".join(hidden), environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZER", "marin-community/marin-tokenizer"),
        ("MAX_TOKENS", "10000000"),
        ("TOKENS_PER_STEP", "524_288.0"),
        ("NUM_TOKENS", "1.25e+10"),
    ],
)
def test_variables_that_speak_of_tokenizers_and_numbers_of_tokens_hold_no_secret(name: str, value: str):
    text = f"--data {value}"
    assert secrets_in(text, {name: value}) == []
    assert redact(text.split(), {name: value}) == text.split()
    assert secrets_in(text, {"GH_TOKEN": value}) == ["the value of GH_TOKEN"]
    assert secrets_in(f"--data {SECRET}", {"API_TOKENS": SECRET}) == ["the value of API_TOKENS"]
