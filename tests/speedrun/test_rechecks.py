"""The sandbox for submitted code, against code that tries to get out; and when nothing runs at all."""

import pathlib
import random
import subprocess
import sys

import pytest
from forgeries.honest import Plan, write_submission

from marin.cli.main import dispatch
from marin.errors import ConfigError
from marin.speedrun import rechecks, sandbox
from marin.speedrun.verification import Submission


@pytest.fixture
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def scratch(outside_ci: None, tmp_path: pathlib.Path) -> pathlib.Path:
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.fixture
def submission(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "my_run").mkdir()
    return write_submission(tmp_path / "my_run", [Plan()], random.Random(1))


def _python(code: str, scratch: pathlib.Path, seconds: float = 60.0) -> sandbox.Finished:
    return sandbox.run([sys.executable, "-I", "-c", code], scratch, {}, seconds)


def test_sandbox_lets_code_write_its_scratch_directory_alone(scratch: pathlib.Path, tmp_path: pathlib.Path):
    code = f"""
import pathlib, sys
pathlib.Path("inside").write_text("x")
for place in {[str(tmp_path / "outside"), "/etc/marin-outside", "/var/tmp/marin-outside", str(pathlib.Path.home() / "outside")]}:
    try:
        pathlib.Path(place).write_text("x")
    except OSError:
        continue
    sys.exit(f"wrote {{place}}")
"""
    done = _python(code, scratch)
    assert done.status == 0, done.out
    assert (scratch / "inside").read_text() == "x" and not (tmp_path / "outside").exists()


def test_sandbox_has_no_network_and_no_other_process(scratch: pathlib.Path):
    with subprocess.Popen(["sleep", "60"]) as other:
        code = f"""
import os, socket, sys
try:
    os.kill({other.pid}, 0)
    sys.exit("sees another process")
except ProcessLookupError:
    pass
names = [name for _, name in socket.if_nameindex() if name != "lo"]
try:
    socket.create_connection(("127.0.0.1", 9), 1)
except OSError as error:
    sys.exit(0 if not names else f"has interfaces {{names}}")
"""
        done = _python(code, scratch)
        other.kill()
    assert done.status == 0, done.out


def test_sandbox_shows_neither_the_environment_nor_keys_in_the_home_directory(
    scratch: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("PRIVATE")
    (home / ".netrc").write_text("PRIVATE")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", "PRIVATE")
    code = f"""
import os, pathlib
home = pathlib.Path({str(home)!r})
print(sorted(os.environ), list((home / ".ssh").iterdir()), repr((home / ".netrc").read_text()))
"""
    done = _python(code, scratch)
    assert done.status == 0 and "PRIVATE" not in done.out and "HF_TOKEN" not in done.out
    assert "[] ''" in done.out
    assert (home / ".ssh" / "id_ed25519").read_text() == "PRIVATE"


def test_sandbox_kills_what_takes_too_long_with_all_that_it_started(scratch: pathlib.Path):
    code = "import subprocess, time; subprocess.Popen(['sleep', '4711']); time.sleep(600)"
    with pytest.raises(ConfigError, match="for more than 5 s"):
        _python(code, scratch, seconds=5.0)
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 4711" not in shown


def test_verify_that_would_run_code_without_trust_or_in_ci_runs_nothing(
    submission: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    def never(*args: object) -> None:
        raise AssertionError("ran submitted code")

    monkeypatch.setattr(rechecks, "prepare", never)
    monkeypatch.setattr(subprocess, "run", never)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(ConfigError, match="--trust-code"):
        dispatch(["verify", str(submission), "--rerun", "1"])
    monkeypatch.setenv("CI", "true")
    for flags in (["--rerun", "1"], ["--evaluate", str(tmp_path)]):
        with pytest.raises(ConfigError, match="never runs there"):
            dispatch(["verify", str(submission), "--trust-code", *flags])


@pytest.mark.parametrize(
    ("flags", "problem"),
    [(["--rerun", "0"], "from 1 to 100"), (["--evaluate", "nowhere"], "no such directory"),
     (["--rerun", "1", "--evaluate", "."], "one of --evaluate")],
)  # fmt: skip
def test_verify_with_senseless_flags_says_what_to_give(flags: list[str], problem: str, submission: pathlib.Path):
    with pytest.raises(ConfigError, match=problem):
        dispatch(["verify", str(submission), "--trust-code", *flags])


def test_machine_without_namespaces_is_told_why(
    outside_ci: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="unshare"):
        sandbox.require()
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    with pytest.raises(ConfigError, match="Operation not permitted"):
        sandbox.require()


def test_code_of_an_unknown_commit_is_not_taken_from_elsewhere(submission: pathlib.Path, tmp_path: pathlib.Path):
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "clone")], check=True)
    (tmp_path / "work").mkdir()
    with pytest.raises(ConfigError, match="commit"):
        rechecks.prepare(Submission.read(submission), tmp_path / "clone", None, tmp_path / "work", 60.0)
    assert not (tmp_path / "work" / "code").exists()


def test_run_directory_of_another_run_is_refused(submission: pathlib.Path, tmp_path: pathlib.Path):
    other = write_submission(tmp_path, [Plan(seed=4)], random.Random(9))
    workspace = rechecks.Workspace(tmp_path / "work", "my_run", 60.0)
    with pytest.raises(ConfigError, match="no run of the submission"):
        rechecks.reevaluate(Submission.read(submission), other / "logs" / "0", workspace)
