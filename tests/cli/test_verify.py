"""`marin verify` and `marin sign` as a person uses them."""

import json
import pathlib
import random
import shutil
import subprocess
import sys

import pytest
from forgeries.editing import set_figure
from forgeries.honest import Plan, write_submission

from marin.cli.main import dispatch
from marin.errors import ConfigError, StorageError
from marin.speedrun.verification import statements


@pytest.fixture
def submission(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_submission(tmp_path / "mine", [Plan(steps=12)], random.Random(0))


def test_verify_shows_every_rung_with_what_it_does_not_prove(
    submission: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["verify", str(submission)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "parsed passed",
        "arithmetic passed",
        "log passed",
        "statistics open",
        "re-evaluated open",
        "re-run open",
        "reached: log",
    ):
        assert words in shown
    assert "does not prove that the run took place: a whole log that fits can be made up" in shown


def test_verify_of_a_failing_rung_ends_with_status_1(
    submission: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_figure(submission, "training_time", 0.1)
    assert dispatch(["verify", str(submission)]) == 1
    shown = capsys.readouterr().out
    assert "FAILED" in shown and "corrected:" in shown and "not sound" in shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("example.org/me?a=1", "it does not say https:// in front: write https://example.org/me?a=1, or null"),
        ("@me", "give one that begins with https://, or null"),
        ("https://\u0440\u0430y.example", "its host mixes Cyrillic and Latin letters"),
    ],
)
def test_verify_of_an_authors_page_that_is_no_web_address_says_what_to_write(
    submission: pathlib.Path, capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    set_figure(submission, "author.url", url)
    assert dispatch(["verify", str(submission)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "parsed to mend x author.url" in shown and words in shown and "not sound" in shown


def test_verify_as_json_holds_rungs_findings_and_level(
    submission: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(submission, submission.parent / "other")
    broken = submission.parent / "broken"
    broken.mkdir()
    (broken / "speedrun_results.json").write_text("{")
    assert dispatch(["verify", "--json", str(submission), str(broken), "--known", str(submission.parent)]) == 1
    value = json.loads(capsys.readouterr().out)
    copied, unread = value["submissions"]
    assert copied["runs"][0]["level"] == "arithmetic"
    assert [rung["outcome"] for rung in copied["runs"][0]["rungs"] if rung["rung"] == "log"] == ["failed"]
    assert "the log is that of other" in json.dumps(copied)
    assert "cut short" in unread["unreadable"] and unread["runs"] == []


def test_verify_escapes_what_a_terminal_would_obey(
    submission: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_figure(submission, "author.name", "\x1b[2J[red]Eve")
    assert dispatch(["verify", str(submission)]) == 1
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown and "\\x1b[2J[red]Eve" in shown


def test_verify_runs_no_submitted_code_and_imports_no_jax(submission: pathlib.Path) -> None:
    (submission / "main.py").write_text("open('ran', 'w')\n")
    code = f"import sys\nfrom marin.cli.main import dispatch\nstatus = dispatch(['verify', {str(submission)!r}])\nassert 'jax' not in sys.modules\nsys.exit(status)"
    done = subprocess.run([sys.executable, "-c", code], cwd=submission, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (submission / "ran").exists()


def test_verify_of_a_path_that_is_not_there_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="give a submission"):
        dispatch(["verify", str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="required: PATH"):
        dispatch(["verify"])


def test_verify_looks_up_the_commit_in_a_clone(
    submission: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = tmp_path / "clone"
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    run = submission / "logs" / "0" / "run.json"
    run.write_text(run.read_text().replace("0123456789abcdef0123456789abcdef01234567", commit))
    assert dispatch(["verify", str(submission), "--repository", str(clone)]) == 1
    assert "before its commit was made" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data", "."], "without --evaluate or --rerun, --data would change nothing: leave it out"),
        (["--statement", "found.json", "--timeout", "5"], "--statement and --timeout would change nothing: leave them"),
        (["--rerun", "1", "--trust-code", "--json"], "with --rerun, --json would change nothing"),
        (["--rerun", "1", "--trust-code", "--eval-bundle", "."], "with --rerun, --eval-bundle would change nothing"),
        (["--evaluate", ".", "--trust-code", "--known", "."], "with --evaluate, --known would change nothing"),
    ],
)
def test_verify_refuses_flags_that_would_change_nothing(submission: pathlib.Path, flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dispatch(["verify", str(submission), *flags])


def test_verify_with_a_repository_that_is_none_says_so(submission: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="no git repository: give the clone"):
            dispatch(["verify", str(submission), "--repository", str(place)])


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_sign_and_verify_work_without_a_network(
    submission: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    (tmp_path / "signers").write_text(f"bob@example.org {key.with_suffix('.pub').read_text()}")
    bits = json.loads((submission / "speedrun_results.json").read_text())["runs"][0]["run_info"]["evaluation"][
        "bits_per_byte"
    ]
    (tmp_path / "found.json").write_text(json.dumps([{"run": 0, "bits_per_byte": bits}]))
    assert (
        dispatch(
            [
                "sign",
                str(submission),
                "--key",
                str(key),
                "--kind",
                "re-evaluation",
                "--measured",
                str(tmp_path / "found.json"),
            ]
        )
        == 0
    )
    assert dispatch(["verify", str(submission), "--allowed-signers", str(tmp_path / "signers")]) == 0
    assert "reached: re-evaluated" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--measured"):
        dispatch(["sign", str(submission), "--key", str(key), "--kind", "re-run"])
    shutil.rmtree(submission / "statements")
    (submission / "statements").write_text("")
    with pytest.raises(StorageError, match="choose another DIR"):
        dispatch(["sign", str(submission), "--key", str(key)])


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
@pytest.mark.parametrize(
    ("found", "flags", "words"),
    [
        ('[{"run": 1, "bits_per_byte": 1.5}]', ["--kind", "re-run"], r"names run 1, .* has run 0 alone"),
        ("[]", ["--kind", "re-evaluation", "--refuted"], r"names no run, .* has run 0 alone"),
        (None, ["--refuted"], r"--refuted is about another's claim"),
        ('[{"run": 0}]', ["--kind", "re-run"], r"`measured\[0\]`: neither bits_per_byte nor core is stated"),
        (
            '[{"run": 0,',
            ["--kind", "re-run"],
            r'cut short: write what you found as \[{"run": 0, "bits_per_byte": 1.234}\]$',
        ),
    ],
)
def test_sign_of_what_would_say_nothing_is_refused(
    submission: pathlib.Path, tmp_path: pathlib.Path, found: str | None, flags: list[str], words: str
) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    if found is not None:
        (tmp_path / "found.json").write_text(found)
        flags = [*flags, "--measured", str(tmp_path / "found.json")]
    with pytest.raises(ConfigError, match=words):
        dispatch(["sign", str(submission), "--key", str(tmp_path / "key"), *flags])
    assert not (submission / "statements").exists()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_sign_by_two_of_the_same_words_keeps_both_and_locked_or_expired_keys_are_told(
    submission: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force"), monkeypatch.setenv("SSH_ASKPASS", "false")  # ask no terminal
    for name, phrase in (("ada", ""), ("bob", ""), ("locked", "secret")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", str(tmp_path / name)], check=True)
    for name in ("ada", "bob"):
        assert dispatch(["sign", str(submission), "--key", str(tmp_path / name)]) == 0
    assert len(list((submission / "statements").iterdir())) == 2
    (submission / "statements" / "empty.json").touch()
    public = [(tmp_path / f"{name}.pub").read_text() for name in ("ada", "bob")]
    (tmp_path / "signers").write_text(f'ada@a.org valid-before="20200101" {public[0]}bob@b.org {public[1]}')
    capsys.readouterr()
    dispatch(["verify", str(submission), "--allowed-signers", str(tmp_path / "signers")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "line 1 of that file does not count: key has expired" in shown and "signed by bob@b.org" in shown
    assert "statements/empty.json: the file is empty" in shown
    with pytest.raises(ConfigError, match=r"passphrase.* unlock it with `ssh-add .*locked` and give .*locked\.pub"):
        statements.envelope(b"words", tmp_path / "locked")


def test_verify_of_another_file_than_results_says_which_directory_is_wanted(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / ("deep" * 20) / "runs.json"  # wider than a terminal: the path must stay one that can be copied
    other.parent.mkdir()
    other.write_text("not json")
    assert dispatch(["verify", str(other)]) == 1
    shown = capsys.readouterr().out
    assert f"{other}: is another file: give the directory that holds speedrun_results.json\n" in shown
