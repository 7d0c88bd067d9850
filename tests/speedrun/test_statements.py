"""Signed statements: whose word lifts which rung, and whose does not."""

import base64
import json
import pathlib
import random
import re
import shutil
import subprocess

import pytest
from forgeries.editing import edit_run
from forgeries.honest import Plan, write_submission

from marin.errors import ConfigError
from marin.speedrun.board.row_store import RowStore, list_directory
from marin.speedrun.verdict import Verdict
from marin.speedrun.verification import Context, Submission, verify_submission
from marin.speedrun.verification.statements import NAMESPACE, Kind, Measured, Predicate, envelope, make_statement

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


class Contest:
    """A submission with two runs, a trusted judge, and somebody whom nobody knows."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.directory = write_submission(
            folder / "submission", [Plan(steps=12, seed=seed) for seed in (0, 1)], random.Random(1)
        )
        self.keys = {name: folder / name for name in ("judge", "author", "stranger")}
        for name, key in self.keys.items():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)], check=True)
        self.allowed = folder / "allowed_signers"
        self.allowed.write_text("".join(
            f'{name}@example.org namespaces="{NAMESPACE}" {self.keys[name].with_suffix(".pub").read_text()}' for name in ("judge", "author")
        ))  # fmt: skip

    def bits(self, run: int) -> float:
        value = json.loads((self.directory / "speedrun_results.json").read_text())
        return value["runs"][run]["run_info"]["evaluation"]["bits_per_byte"]

    def measured(self, factor: float = 1.0, runs: tuple[int, ...] = (0, 1)) -> list[Measured]:
        return [Measured(run=run, bits_per_byte=self.bits(run) * factor) for run in runs]

    def state(
        self, kind: Kind, by: str, measured: list[Measured], name: str = "s", confirmed: bool = True
    ) -> pathlib.Path:
        content = make_statement(
            Submission.read(self.directory), kind, Predicate(measured=measured, confirmed=confirmed)
        )
        place = self.directory / "statements" / f"{name}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(envelope(content, self.keys[by]))
        return place

    def verdicts(self) -> list[Verdict]:
        return [verdict for _, verdict in verify_submission(self.directory, Context(allowed_signers=self.allowed))]

    def why(self, rung: str = "re-evaluated", run: int = 0) -> str:
        verdict = self.verdicts()[run]
        assert verdict[rung].outcome == "open"
        return " ".join(finding.message for finding in verdict[rung].findings)


@pytest.fixture
def contest(tmp_path: pathlib.Path) -> Contest:
    return Contest(tmp_path)


@pytest.mark.parametrize(("kind", "rung"), [("re-evaluation", "re-evaluated"), ("re-run", "re-run")])
def test_statement_of_a_listed_signer_lifts_its_rung_for_the_runs_it_names(
    contest: Contest, kind: Kind, rung: str
) -> None:
    contest.state(kind, "judge", contest.measured(runs=(1,)))
    first, second = contest.verdicts()
    assert (first[rung].outcome, first.level) == ("open", "log")
    assert (second[rung].outcome, second.level) == ("passed", rung)
    assert "judge@example.org found" in second[rung].findings[0].message


def test_verdict_by_a_key_that_is_valid_for_a_time_is_not_kept(contest: Contest, tmp_path: pathlib.Path) -> None:
    def key() -> str | None:
        store = RowStore(tmp_path / "cache", contest.allowed)
        return store.key_of(str(contest.directory), "s/speedrun_results.json", list_directory(str(contest.directory)))

    without_time = contest.allowed.read_text()
    contest.allowed.write_text(without_time.replace("namespaces=", 'VALID-before="20990101",namespaces='))
    assert key() is not None
    contest.state("re-evaluation", "judge", contest.measured())
    assert contest.verdicts()[0]["re-evaluated"].outcome == "passed"
    assert key() is None
    contest.allowed.write_text(without_time)
    assert key() is not None


def test_statement_of_a_stranger_lifts_nothing(contest: Contest) -> None:
    contest.state("re-run", "stranger", contest.measured())
    why = contest.why("re-run")
    assert re.search(r"not among the allowed signers \(ED25519 key SHA256:[\w+/=]{43}\)", why), why


def test_statement_of_the_claimant_lifts_nothing(contest: Contest) -> None:
    contest.state("claim", "author", [], "claim")
    contest.state("re-run", "author", contest.measured(), "rerun")
    assert "whose submission it is" in contest.why("re-run")


def test_allowed_signers_of_the_submission_itself_are_not_asked(contest: Contest) -> None:
    contest.state("re-run", "stranger", contest.measured())
    line = f"stranger@example.org {contest.keys['stranger'].with_suffix('.pub').read_text()}"
    (contest.directory / "allowed_signers").write_text(line)
    assert contest.verdicts()[0]["re-run"].outcome == "open"


@pytest.mark.parametrize(("factor", "confirmed"), [(1.02, True), (0.97, True), (1.0, False)])
def test_statement_that_does_not_confirm_fails_the_rung(contest: Contest, factor: float, confirmed: bool) -> None:
    contest.state("re-evaluation", "judge", contest.measured(factor), confirmed=confirmed)
    verdict = contest.verdicts()[0]
    assert verdict["re-evaluated"].outcome == "failed"
    assert not verdict.counts
    assert "not confirmed" in verdict["re-evaluated"].findings[0].message


def test_statement_about_another_log_or_results_file_does_not_count(contest: Contest) -> None:
    contest.state("re-evaluation", "judge", contest.measured())
    path = contest.directory / "speedrun_results.json"
    path.write_text(path.read_text().replace("A small Llama.", "A large Llama."))
    assert "of a results file that was changed since" in contest.why()
    shutil.rmtree(contest.directory / "logs")
    without = json.loads(path.read_text())
    for run in without["runs"]:
        run["run_info"].pop("digests")
    path.write_text(json.dumps(without))
    assert "about another speedrun_results.json" in contest.why()


@pytest.mark.parametrize("without_log", [False, True])
def test_refutation_is_not_voided_by_a_change_of_the_results(contest: Contest, without_log: bool) -> None:
    contest.state("re-run", "judge", contest.measured(0.9))
    path = contest.directory / "speedrun_results.json"
    path.write_text(path.read_text() + "\n")
    if without_log:
        shutil.rmtree(contest.directory / "logs")
    assert [verdict["re-run"].outcome for verdict in contest.verdicts()] == ["failed", "failed"]


def test_author_who_makes_no_claim_confirms_nothing_of_his_own(contest: Contest) -> None:
    contest.state("re-run", "author", contest.measured())
    path = contest.directory / "speedrun_results.json"
    assert contest.verdicts()[0]["re-run"].outcome == "passed"  # nothing says that it is his
    (contest.directory / "statements" / "s.json").unlink()
    path.write_text(path.read_text().replace("Ada Example", "Author"))
    contest.state("re-run", "author", contest.measured())
    assert "whose submission it is" in contest.why("re-run")


@pytest.mark.parametrize(
    ("url", "counts"),
    [
        ("https://github.com/Judge", False),
        ("https://github.com/judge/?tab=repositories", False),
        ("https://judge.example.net/", False),
        ("https://judge.example.net/marin/", False),
        ("https://www.linkedin.com/in/judge/", False),
        ("https://github.com/judgement", True),
        ("https://github.com", True),
        (None, True),
    ],
)
def test_account_that_the_authors_address_names_confirms_nothing_of_his_own(
    contest: Contest, url: str | None, counts: bool
) -> None:
    """The judge's own submission, under his full name."""
    for run in (0, 1):
        edit_run(contest.directory, lambda info: info["author"].update(name="J. U. D. Jones", url=url), run)
    contest.state("re-evaluation", "judge", contest.measured())
    verdict = contest.verdicts()[0]
    assert (verdict.level == "re-evaluated") is counts
    if not counts:
        assert "signed by judge@example.org, whose submission it is" in contest.why()


@pytest.mark.parametrize(
    ("name", "principal", "counts"),
    [
        ("J. U. D. Jones and The Judge", "the.judge@example.org", False),
        ("Ada Example, Judge (Example Lab)", "judge@example.org", False),
        ("Jane Udge", "judge+marin@example.org", False),
        ("Jane Udge", "judge@example.org", False),
        ("The Judge 北京", "the.judge@example.org", False),
        ("Jane Fudge", "judge@example.org", True),
    ],
)
def test_signer_who_is_one_of_the_authors_by_another_spelling_confirms_nothing(
    contest: Contest, name: str, principal: str, counts: bool
) -> None:
    contest.allowed.write_text(contest.allowed.read_text().replace("judge@example.org", principal))
    for run in (0, 1):
        edit_run(contest.directory, lambda info: info["author"].update(name=name), run)
    contest.state("re-evaluation", "judge", contest.measured())
    assert (contest.verdicts()[0].level == "re-evaluated") is counts


def test_claimant_with_a_second_key_and_address_confirms_nothing_of_his_own(contest: Contest) -> None:
    contest.allowed.write_text(contest.allowed.read_text().replace("judge@example.org", "author@home.example.net"))
    contest.state("claim", "author", [], "claim")
    contest.state("re-run", "judge", contest.measured(), "rerun")
    assert "signed by author@home.example.net, whose submission it is" in contest.why("re-run")


def test_second_name_of_a_key_is_its_signers_too(contest: Contest) -> None:
    """An account beside an address: the claimant's in one, and what the results call their author in the other."""
    contest.allowed.write_text(contest.allowed.read_text().replace("judge@example.org", "judge@example.org,adaexample"))
    contest.state("re-run", "judge", contest.measured())
    assert "signed by judge@example.org, whose submission it is" in contest.why("re-run")
    contest.allowed.write_text(contest.allowed.read_text().replace(",adaexample", ",author@example.org"))
    contest.state("claim", "author", [], name="claim")
    assert "signed by judge@example.org, whose submission it is" in contest.why("re-run")


@pytest.mark.parametrize("options", ["", ' valid-before="20200101"', ' namespaces="git"'])
def test_a_key_that_stands_on_two_lines_has_the_names_of_both(contest: Contest, options: str) -> None:
    """As when a maintainer adds an author's address, and another had listed the same key as a judge's."""
    key = contest.keys["judge"].with_suffix(".pub").read_text()
    contest.allowed.write_text(f'{contest.allowed.read_text()}"adaexample,ada@home.example.net"{options} {key}')
    contest.state("re-run", "judge", contest.measured())
    assert "signed by judge@example.org, whose submission it is" in contest.why("re-run")


def test_a_key_whose_first_line_is_for_another_purpose_counts_by_its_second(contest: Contest) -> None:
    key = contest.keys["judge"].with_suffix(".pub").read_text()
    contest.allowed.write_text(f'git@example.org namespaces="git" {key}{contest.allowed.read_text()}')
    contest.state("re-evaluation", "judge", contest.measured())
    verdict = contest.verdicts()[0]
    assert verdict.level == "re-evaluated"
    assert "judge@example.org found" in " ".join(found.message for found in verdict["re-evaluated"].findings)


def test_more_statements_than_are_read_are_not_sound(contest: Contest) -> None:
    contest.state("re-run", "judge", contest.measured(0.9), "zoe")
    for number in range(64):
        (contest.directory / "statements" / f"!{number:03}.json").write_text("{}")
    verdict = contest.verdicts()[0]
    assert not verdict.sound
    assert "65 statements, of which 64 are read" in " ".join(f.message for f in verdict["parsed"].findings)


def test_statement_whose_payload_was_changed_does_not_count(contest: Contest) -> None:
    place = contest.state("re-evaluation", "judge", contest.measured(0.9))
    value = json.loads(place.read_text())
    payload = json.loads(base64.b64decode(value["payload"]))
    payload["predicate"]["measured"] = [measured.model_dump(exclude_none=True) for measured in contest.measured()]
    value["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    place.write_text(json.dumps(value))
    assert "not of these bytes" in contest.why()


def _state_beside(contest: Contest, namespace: str) -> None:
    """A re-run's statement by the judge, with its signature in a file of its own."""
    content = make_statement(Submission.read(contest.directory), "re-run", Predicate(measured=contest.measured()))
    place = contest.directory / "statements" / "rerun.json"
    place.parent.mkdir()
    place.write_bytes(content)
    assert all(verdict["re-run"].outcome == "open" for verdict in contest.verdicts())
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", str(contest.keys["judge"]), str(place)], check=True
    )


def test_statement_with_a_signature_beside_it_counts(contest: Contest) -> None:
    _state_beside(contest, NAMESPACE)
    assert all(verdict["re-run"].outcome == "passed" for verdict in contest.verdicts())


def test_false_signature_laid_before_the_true_one_voids_nothing(contest: Contest) -> None:
    _state_beside(contest, NAMESPACE)
    for place in (contest.directory / "statements").glob("*.json.sig"):
        place.rename(place.with_name(place.name.removesuffix(".json.sig") + ".sig"))
        place.write_text("no signature")
    assert all(verdict["re-run"].outcome == "passed" for verdict in contest.verdicts())


def test_statement_with_a_signature_beside_it_counts_in_a_clone_as_git_for_windows_makes_it(
    contest: Contest, tmp_path: pathlib.Path
) -> None:
    _state_beside(contest, NAMESPACE)
    made, submission = tmp_path / "made", pathlib.Path("experiments/speedrun/my_run")
    shutil.copytree(contest.directory, made / submission)
    shutil.copy(pathlib.Path(__file__).parents[2] / ".gitattributes", made)
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "my run"]):
        subprocess.run(["git", *arguments], cwd=made, check=True)
    clone = ["git", "clone", "--quiet", "--config", "core.autocrlf=true", str(made), "clone"]
    subprocess.run(clone, cwd=tmp_path, check=True)
    contest.directory = tmp_path / "clone" / submission
    assert all(verdict["re-run"].outcome == "passed" for verdict in contest.verdicts())


def test_signature_for_another_purpose_does_not_count(contest: Contest) -> None:
    _state_beside(contest, "git")
    assert all(verdict["re-run"].outcome == "open" for verdict in contest.verdicts())


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b'{"payload":"!","signatures":[]}',
        b"\xff",
        b'{"payload":1}',
        b'{"payload":"e30=","signatures":[{"sig":"e30="}]}',
    ],
)
def test_statement_that_is_none_is_named_and_lifts_nothing(contest: Contest, content: bytes) -> None:
    (contest.directory / "statements").mkdir()
    (contest.directory / "statements" / "x.json").write_bytes(content)
    verdict = contest.verdicts()[0]
    assert verdict.level == "log"
    assert any("statements/x.json" in finding.message for finding in verdict["parsed"].findings)


def test_envelope_with_a_missing_key_says_how_to_make_one(contest: Contest) -> None:
    with pytest.raises(ConfigError, match="ssh-keygen -t ed25519"):
        envelope(b"{}", contest.directory / "none")


@pytest.mark.parametrize(("name", "field"), [("challenge.json", "challenged"), ("withdrawn.json", "withdrawn")])
def test_notices_stand_beside_the_rungs(contest: Contest, name: str, field: str) -> None:
    (contest.directory / name).write_text(json.dumps({"reason": "the timer", "by": "Bob", "date": "2026-11-22"}))
    verdict = contest.verdicts()[0]
    assert getattr(verdict, field) == "the timer (Bob, 2026-11-22)"
    assert verdict.counts == (field == "challenged")
    (contest.directory / name).write_text("no JSON")
    assert "no reason can be read" in getattr(contest.verdicts()[0], field)
