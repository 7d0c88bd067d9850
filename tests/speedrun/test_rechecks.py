"""Scoring a checkpoint again and training again: what is run, what is taken from it, and when nothing runs at all."""

import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
from typing import Any

import pytest
from forgeries.editing import bind, digest, edit_evaluation, edit_log, edit_run_json
from forgeries.honest import Plan, write_submission

from marin.cli import recheck
from marin.cli.main import dispatch
from marin.errors import ConfigError, ResultsError
from marin.speedrun import rechecks, scoring_apart, submitting
from marin.speedrun.scoring_apart import Found
from marin.speedrun.verification import Context, Submission, verify_submission
from marin.speedrun.verification.judgement import judge
from marin.speedrun.verification.statements import NAMESPACE, Measured
from marin.training.checkpoint_manifest import Layout, Manifest, seal_of


@pytest.fixture
def scored_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every run scored the same apart from its code: stand-ins have no model. See tests/experiments/test_second_opinions.py for those that do."""
    monkeypatch.setattr(rechecks, "_scored_apart", lambda *arguments: arguments[4])


@pytest.fixture
def submission(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "my_run").mkdir()
    return write_submission(tmp_path / "my_run", [Plan()], random.Random(1))


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
    [(["--rerun", "0"], "from 1 to 100"), (["--evaluate", "nowhere"], "no such directory: give the author's run"),
     (["--rerun", "1", "--evaluate", "."], "one of --evaluate")],
)  # fmt: skip
def test_verify_with_senseless_flags_says_what_to_give(flags: list[str], problem: str, submission: pathlib.Path):
    with pytest.raises(ConfigError, match=problem):
        dispatch(["verify", str(submission), "--trust-code", *flags])


def test_code_of_an_unknown_commit_is_not_taken_from_elsewhere(submission: pathlib.Path, tmp_path: pathlib.Path):
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "clone")], check=True)
    (tmp_path / "work").mkdir()
    with pytest.raises(ConfigError, match="commit"):
        rechecks.prepare(Submission.read(submission), tmp_path / "clone", None, tmp_path / "work", 60.0)
    assert not (tmp_path / "work" / "code").exists()


def test_a_commit_that_changes_marin_itself_is_named_and_one_that_changes_its_experiment_is_not(tmp_path: pathlib.Path):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(*changed: str) -> str:
        for name in changed:
            place = tmp_path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{name} {len(list(tmp_path.rglob('*')))}")
        git("add", ".")
        git("commit", "-qm", "x")
        return git("rev-parse", "HEAD")

    git("init", "-q", "-b", "main")
    commit("marin/evaluation/bits_per_byte.py", "README.md")
    git("checkout", "-qb", "theirs")
    honest = commit("experiments/speedrun/my_run/main.py")
    forged = commit("marin/evaluation/bits_per_byte.py")
    git("checkout", "-q", "main")
    commit(
        "marin/evaluation/bits_per_byte.py", "marin/optim/muon.py"
    )  # what the branch has since is no change of theirs
    assert rechecks.warning_of_own_framework(tmp_path, honest) is None
    said = rechecks.warning_of_own_framework(tmp_path, forged)
    assert said is not None and "(marin/evaluation/bits_per_byte.py)" in said
    git("merge", "-q", "--strategy=ours", "theirs")
    assert rechecks.warning_of_own_framework(tmp_path, forged) is None  # the branch has it too


def test_run_directory_of_another_run_is_refused(submission: pathlib.Path, tmp_path: pathlib.Path):
    other = write_submission(tmp_path, [Plan(seed=4)], random.Random(9))
    workspace = rechecks.Workspace(tmp_path / "work", "my_run", 60.0)
    with pytest.raises(ConfigError, match="no run of the submission"):
        rechecks.reevaluate(Submission.read(submission), other / "logs" / "0", workspace)
    with pytest.raises(ConfigError, match=r"logs has no run.json: give the directory in which the run trained"):
        rechecks.reevaluate(Submission.read(submission), other / "logs", workspace)


SCORED_AGAIN = """
import json, os, pathlib, sys
if "--dry_run" in sys.argv:
    sys.exit(print("would skip checkpoints/speedrun/example: done"))
folder = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1]) / "evaluation" / "speedrun" / "example-0"
folder.mkdir(parents=True)
probe = {{"passed": True}}
probes = dict.fromkeys(("normalization", "one_pass", "byte_count"), probe) | {{"causality": {{"passed": {causal}}}}}
validity = {{"passed": {causal}, "seed": int(os.environ["MARIN_PROBE_SEED"]), **probes}}
(folder / "evaluation.json").write_text(json.dumps({{"evaluation": {evaluation}, "validity": validity}}))
if {program} and os.environ["MARIN_KEEP_PROGRAM"]:
    (folder / "program").mkdir()
    (folder / "program" / "about.json").touch()
"""


def _scored_again(
    submission: pathlib.Path, scratch: pathlib.Path, *, causal: bool = True, program: bool = True
) -> tuple[Submission, Measured]:
    """What comes of a checkpoint whose own code has replaced a clock and finds the figures that it claims."""
    run, workspace = submission / "logs" / "0", rechecks.Workspace(scratch, "my_run", 60.0)
    code = workspace.code / "experiments" / "speedrun" / "my_run"
    code.mkdir(parents=True)
    for package in (code, code.parent, code.parent.parent):
        (package / "__init__.py").touch()
    evaluation = json.loads((run / "evaluation.json").read_text())["evaluation"] | {"replaced": ["time.perf_counter"]}
    (code / "main.py").write_text(SCORED_AGAIN.format(evaluation=evaluation, causal=causal, program=program))
    _end_with_checkpoint(submission, _write_checkpoint(run, 40))
    read = Submission.read(submission)
    (measured,) = rechecks.reevaluate(read, run, workspace)
    return read, measured


def _outcome(read: Submission, measured: Measured) -> str | None:
    judgement = judge(read.runs, 0, [measured], "re-evaluation")
    return None if judgement is None else f"{judgement.outcome}: {judgement.words}"


def test_probes_that_fail_when_a_checkpoint_is_scored_again_refute_what_the_figures_confirm(
    submission: pathlib.Path, scratch: pathlib.Path
):
    """The author's own evaluation says that all passed; the figures are those that he claims."""
    read, measured = _scored_again(submission, scratch, causal=False, program=False)
    assert measured.bits_per_byte == read.runs[0].quality and measured.failed_probes == ["causality"]
    assert measured.replaced == ["time.perf_counter"]
    assert str(_outcome(read, measured)).startswith("differs: ")


def test_figures_of_the_process_that_ran_the_code_decide_nothing(
    submission: pathlib.Path, scratch: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    """A commit from before runs were scored apart, or code that keeps its program to itself."""
    read, measured = _scored_again(submission, scratch, program=False)
    assert measured.by_submission and "could not be scored apart" in capsys.readouterr().err
    assert re.match("undecided: .*measured itself: read that code", str(_outcome(read, measured)))
    vouched = measured.model_copy(update={"by_submission": None, "replaced": None})  # by one who has read it
    assert str(_outcome(read, vouched)).startswith("agrees: ")


@pytest.mark.parametrize(
    ("factor", "failed", "outcome"),
    [(1.0, [], "agrees"), (1.01, [], "differs"), (1.0, ["one_pass"], "differs")],
    ids=["the same", "worse", "a probe fails"],
)  # fmt: skip
def test_figures_that_count_are_those_that_were_found_apart(
    factor: float, failed: list[str], outcome: str, submission: pathlib.Path, scratch: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    claim = Submission.read(submission).runs[0]
    assert claim.evaluation is not None and claim.quality is not None and claim.evaluation.digest is not None
    length = claim.evaluation.context_length or 0
    value, size = claim.quality * factor, claim.model_size or 0
    found = Found(value, value, claim.evaluation.digest, length, size, 0, 1.0, failed)
    asked: list[pathlib.Path] = []
    monkeypatch.setattr(scoring_apart, "score_apart", lambda *places: asked.extend(places[:3]) or found)
    read, measured = _scored_again(submission, scratch)
    program, store, checkpoint = asked
    assert program == store / "evaluation" / "speedrun" / "example-0" / "program"
    assert checkpoint == submission / "logs" / "0" / "checkpoints" / "step-00000040"  # what no code of its has touched
    assert measured.bits_per_byte == claim.quality * factor and measured.by_submission is None
    assert measured.replaced is None  # it had no part in scoring
    assert ("scored apart from it" in capsys.readouterr().err) == (factor != 1.0)
    assert str(_outcome(read, measured)).startswith(f"{outcome}: ")


@pytest.mark.parametrize(
    ("longer", "larger", "held", "message"),
    [(1, 0, 0, r"reads tokens at once: [\d,]+, its results say"), (0, 1, 0, r"is given parameters: [\d,]+, its results say"),
     (0, 0, 2_049, r"holds 2,049 bytes that are no parameters, its results say")],
)  # fmt: skip
def test_program_that_is_more_than_the_results_say_is_refused(
    longer: int, larger: int, held: int, message: str, submission: pathlib.Path, scratch: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):  # fmt: skip
    claim = Submission.read(submission).runs[0]
    length = claim.evaluation.context_length if claim.evaluation else None
    assert length is not None and claim.model_size is not None
    found = Found(1.0, 1.0, "digest", length + longer, claim.model_size + larger, held, 1.0, [])
    monkeypatch.setattr(scoring_apart, "score_apart", lambda *places: found)
    with pytest.raises(ResultsError, match=message):
        _scored_again(submission, scratch)


@pytest.mark.parametrize(("times", "refused"), [(1.05, False), (1.2, False), (1e9, True)])
def test_program_takes_the_flops_that_the_results_say_and_no_more_than_their_hardware_did(
    times: float, refused: bool, submission: pathlib.Path, scratch: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    claim = Submission.read(submission).runs[0]
    assert (
        claim.evaluation and claim.evaluation.flops_per_token and claim.evaluation.context_length and claim.model_size
    )
    flops = times * claim.evaluation.flops_per_token
    found = Found(1.0, 1.0, "digest", claim.evaluation.context_length, claim.model_size, 0, flops, [])
    monkeypatch.setattr(scoring_apart, "score_apart", lambda *places: found)
    if refused:
        with pytest.raises(ResultsError, match=r"its hardware could do [\d.e+]+ in the time that the results say"):
            _scored_again(submission, scratch)
    else:
        _scored_again(submission, scratch)
    assert ("FLOPs a token, its results say" in capsys.readouterr().err) == (times > 1.1)


def test_run_that_was_trained_again_is_held_to_what_was_claimed_not_to_its_own_results(
    submission: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Code that trains a larger model where it is run again says so in the results that it leaves, and nowhere else."""
    _end_with_checkpoint(submission, digest("own"))
    claim = Submission.read(submission).runs[0]
    size = claim.model_size or 0
    info = claim.model_copy(update={"model_size": 2 * size})
    run = tmp_path / "run"
    for place, content in (("checkpoints/step-00000040/manifest.json", "own"), ("program/about.json", "")):
        (run / place).parent.mkdir(parents=True)
        (run / place).write_text(content)
    length = claim.evaluation.context_length if claim.evaluation else None
    found = Found(1.0, 1.0, "digest", length or 0, 2 * size, 0, 1.0, [])
    monkeypatch.setattr(scoring_apart, "score_apart", lambda *places: found)
    workspace = rechecks.Workspace(tmp_path / "work", "my_run", 60.0)
    with pytest.raises(ResultsError, match="is given parameters"):
        rechecks._scored_apart(run / "evaluation.json", run, info, claim, Measured(run=0, bits_per_byte=1.0), workspace)


@pytest.mark.parametrize(
    ("claimed", "found", "outcomes"),
    [("own", "own", {"agrees"}), ("own", "another", {"differs"}), ("own", None, {"differs"}), (None, "any", {"agrees", "undecided"})],
)  # fmt: skip
def test_figures_confirm_a_claim_on_the_documents_that_it_names_alone(
    claimed: str | None, found: str | None, outcomes: set[str], submission: pathlib.Path
):
    read = Submission.read(submission)
    (claim,) = read.runs
    evaluation = claim.evaluation and claim.evaluation.model_copy(update={"digest": claimed})
    read = dataclasses.replace(read, runs=[claim.model_copy(update={"evaluation": evaluation})])
    measured = Measured(run=0, bits_per_byte=claim.quality, evaluation_digest=found)
    assert recheck._outcomes(read, [measured], "re-evaluation")[0] == outcomes


def test_core_that_was_measured_alone_is_on_no_other_documents_than_the_claim(submission: pathlib.Path):
    read = Submission.read(submission)
    assert recheck._outcomes(read, [Measured(run=0, core=0.2)], "re-evaluation")[0] == {"undecided"}


def _write_checkpoint(run: pathlib.Path, step: int) -> str:
    """Returns the digest that a log names it by."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "weights").write_bytes(bytes(step))
    Manifest.write(folder, step, Layout("cpu", 1, 1, {}, None))
    return seal_of(folder)


def _end_with_checkpoint(submission: pathlib.Path, digest: str) -> None:
    def change(events: list[dict[str, object]]) -> list[dict[str, object]]:
        events[-1]["checkpoint"] = digest
        return events

    edit_log(submission, change, careful=True)


def _as_pipe(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_checkpoint_that_the_log_does_not_end_with_is_not_scored(submission: pathlib.Path, tmp_path: pathlib.Path):
    """Weights that were trained for longer, say, in the place of the run's own or beside them."""
    run, workspace = submission / "logs" / "0", rechecks.Workspace(tmp_path / "work", "my_run", 60.0)
    code = workspace.code / "experiments" / "speedrun" / "my_run"
    code.mkdir(parents=True)
    (code / "main.py").write_text("raise SystemExit('not reached')\n")
    _, own, _ = (_write_checkpoint(run, step) for step in (30, 40, 80))
    _end_with_checkpoint(submission, digest("nowhere"))
    with pytest.raises(ConfigError, match="does not hold the checkpoint that the log ends with"):
        rechecks.reevaluate(Submission.read(submission), run, workspace)
    assert not workspace.store.exists()
    _end_with_checkpoint(submission, own)
    with pytest.raises(ConfigError):  # the file does nothing; what matters is what it would have found
        rechecks.reevaluate(Submission.read(submission), run, workspace)
    assert [path.name for path in workspace.store.glob("checkpoints/speedrun/0/checkpoints/*")] == ["step-00000040"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("damaged", ["state/weights", "manifest.sha256"])
@pytest.mark.parametrize("damage", [pathlib.Path.unlink, lambda path: path.write_bytes(b"x"), _as_pipe])
def test_damaged_checkpoint_is_named_where_it_lies_and_nothing_is_run(
    damaged: str, damage: Any, submission: pathlib.Path, tmp_path: pathlib.Path
):
    run, workspace = submission / "logs" / "0", rechecks.Workspace(tmp_path / "work", "my_run", 60.0)
    _end_with_checkpoint(submission, _write_checkpoint(run, 40))
    damage(run / "checkpoints" / "step-00000040" / damaged)
    with pytest.raises(ConfigError) as refused:
        rechecks.reevaluate(Submission.read(submission), run, workspace)
    said = str(refused.value)
    assert (
        f"{run}/checkpoints/step-00000040" in said
        and f"copy {run} again" in said
        and str(tmp_path / "work") not in said
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", ["run.json", "checkpoints/step-00000040/manifest.json"])
def test_run_directory_with_a_pipe_in_it_does_not_hang(place: str, submission: pathlib.Path, tmp_path: pathlib.Path):
    run, workspace = tmp_path / "run", rechecks.Workspace(tmp_path / "work", "my_run", 60.0)
    _end_with_checkpoint(submission, digest("own"))
    read = Submission.read(submission)
    shutil.copytree(submission / "logs" / "0", run)
    (run / place).unlink(missing_ok=True)
    (run / place).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(run / place)
    with pytest.raises(ResultsError, match="not a regular file"):
        rechecks.reevaluate(read, run, workspace)


@pytest.mark.timeout(60)
def test_what_of_a_run_directory_cannot_be_copied_is_named(submission: pathlib.Path, tmp_path: pathlib.Path):
    run = submission / "logs" / "0"
    _end_with_checkpoint(submission, _write_checkpoint(run, 40))
    read = Submission.read(submission)
    os.mkfifo(run / "profile")
    with pytest.raises(ConfigError, match=r"cannot be copied: .*/0/profile` is a named pipe"):
        rechecks.reevaluate(read, run, rechecks.Workspace(tmp_path / "work", "my_run", 60.0))


@pytest.mark.timeout(60)
def test_store_with_a_pipe_for_an_evaluation_does_not_hang(submission: pathlib.Path, tmp_path: pathlib.Path, capsys):
    run, evaluation = tmp_path / "store" / "checkpoints" / "speedrun" / "my_run-0", tmp_path / "store" / "evaluation"
    shutil.copytree(submission / "logs" / "0", run)
    (run / "run.json").write_text('{"run_name": "my_run"}')
    shutil.copy(submission / "speedrun_results.json", run)
    (evaluation / "speedrun" / "my_run-0").mkdir(parents=True)
    os.mkfifo(evaluation / "speedrun" / "my_run-0" / "evaluation.json")
    (found,) = submitting.find_runs(tmp_path / "store", "my_run").runs
    assert found.evaluation is None and "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reads", "names", "expected"),
    [
        ("SR_SIZES SR_SEEDS", ["my_run_300m", "my_run_300m_seed2", "my_run_cpu"], {"SR_SIZES": "300m,cpu", "SR_SEEDS": "2"}),
        ("SR_SIZES SR_SEEDS", ["my_run", "my_run_seed2", "other_130m", "my_run_130m; true"], {"SR_SEEDS": "2"}),
        ("SR_SEEDS", ["my_run_300m"], {"SR_SEEDS": "2"}),
        ("", ["my_run_300m"], {}),
    ],
)  # fmt: skip
def test_code_is_asked_for_the_sizes_and_seeds_of_the_claim_where_it_reads_them(
    reads: str, names: list[str], expected: dict[str, str], tmp_path: pathlib.Path
):
    workspace = rechecks.Workspace(tmp_path, "my_run", 60.0)
    (workspace.code / "experiments" / "speedrun" / "my_run").mkdir(parents=True)
    (workspace.code / "experiments" / "speedrun" / "my_run" / "main.py").write_text(f"# {reads}\n")
    assert workspace.variables(names, [2]) == expected


# Trains nothing: writes the results that a training of each seed would leave, `OFFSETS` apart from the claim.
STAND_IN = """
import json, os, pathlib, sys
OFFSETS = {offsets!r}
prefix = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1])
claim = json.loads(pathlib.Path(__file__).with_name("claim.json").read_text())
for number, seed in enumerate(os.environ.get("SR_SEEDS", "0").split(",")):
    info = json.loads(json.dumps(claim))
    info["seed"] = info["train_config"]["seed"] = {seed}
    info["evaluation"]["bits_per_byte"] *= 1 + OFFSETS[number % len(OFFSETS)]
    place = prefix / "checkpoints" / "speedrun" / f"my_run_seed{{seed}}-0"
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps({{"run_name": f"my_run_seed{{seed}}"}}))
    (place / "speedrun_results.json").write_text(json.dumps({{"runs": [{{"run_info": info}}]}}))
"""


def _claimed(folder: pathlib.Path, offsets: list[float], seed: str = "int(seed)") -> tuple[pathlib.Path, pathlib.Path]:
    """A submission of two seeds, 0.02 % apart, and the clone that has its commit."""
    directory, clone = folder / "my_run", folder / "clone"
    directory.mkdir()
    write_submission(directory, [Plan(steps=12, seed=number) for number in (0, 1)], random.Random(1))
    content = json.loads((directory / "logs" / "0" / "evaluation.json").read_text())
    for number in (0, 1):
        block = {**content["evaluation"], "bits_per_byte": content["evaluation"]["bits_per_byte"] * (1 + 2e-4 * number)}
        edit_evaluation(directory, lambda own, block=block: own.update(content | {"evaluation": block}), run=number)
        bind(directory, number)
    code = clone / "experiments" / "speedrun" / "my_run"
    code.mkdir(parents=True)
    for package in (code, code.parent, code.parent.parent):  # before those of a Marin that is installed here
        (package / "__init__.py").touch()
    claim = json.loads((directory / "speedrun_results.json").read_text())["runs"][0]["run_info"]
    (code / "claim.json").write_text(json.dumps(claim))
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=clone, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, check=True, capture_output=True, text=True)
    for number in (0, 1):
        edit_run_json(directory, lambda info: info["git"].update(commit=head.stdout.strip()), number, careful=True)
    (directory / "main.py").write_text(STAND_IN.format(offsets=offsets, seed=seed))
    return directory, clone


def _rerun(directory: pathlib.Path, clone: pathlib.Path, seeds: int, statement: pathlib.Path) -> int:
    flags = ["--rerun", str(seeds), "--trust-code", "--repository", str(clone), "--statement", str(statement)]
    return dispatch(["verify", str(directory), *flags])


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_rerun_with_three_further_seeds_lifts_the_rung_of_every_run_of_the_experiment(
    scratch: pathlib.Path, scored_alike: None, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    directory, clone = _claimed(tmp_path, [-2e-4, 0.0, 3e-4])
    statement = tmp_path / "rerun.json"
    assert _rerun(directory, clone, 3, statement) == 0
    said = capsys.readouterr().out
    assert "confirmed: found" in said and "in 3 runs (seeds 2, 3, 4)" in said and "the mean of 2 runs" in said
    measured = json.loads(statement.read_text())["predicate"]["measured"]
    assert [(item["run"], item["seed"]) for item in measured] == [(0, 2), (0, 3), (0, 4)]
    key = tmp_path / "judge"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    found = str(statement.with_name("rerun-measured.json"))
    assert dispatch(["sign", str(directory), "--key", str(key), "--kind", "re-run", "--measured", found]) == 0
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(f'judge@example.org namespaces="{NAMESPACE}" {key.with_suffix(".pub").read_text()}')
    for _, verdict in verify_submission(directory, Context(allowed_signers=allowed)):
        assert (verdict["re-run"].outcome, verdict.level) == ("passed", "re-run")
        assert "seeds 2, 3, 4" in verdict["re-run"].findings[0].message


def test_rerun_with_seeds_that_all_lie_elsewhere_refutes_what_one_run_would_confirm(
    scratch: pathlib.Path, scored_alike: None, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    directory, clone = _claimed(tmp_path, [5e-3, 5.1e-3, 4.9e-3])
    assert _rerun(directory, clone, 1, tmp_path / "one.json") == 0
    assert "seed 0:" in capsys.readouterr().out
    assert _rerun(directory, clone, 3, tmp_path / "three.json") == 1
    said = capsys.readouterr().out
    assert "NOT confirmed" in said and "--refuted" in said
    assert json.loads((tmp_path / "three.json").read_text())["predicate"]["confirmed"] is False


def test_rerun_of_code_whose_seeds_are_written_down_trains_the_claimed_seed_alone(
    scratch: pathlib.Path, scored_alike: None, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    directory, clone = _claimed(tmp_path, [0.0])
    for number in (0, 1):
        edit_run_json(directory, lambda info, n=number: info.update(run_name=f"my_run_seed{n}"), number, careful=True)
    code = (directory / "main.py").read_text().replace('os.environ.get("SR_SEEDS", "0").split(",")', '("0", "1")')
    only = '    import re; only = sys.argv[sys.argv.index("--run_only") + 1]\n'
    only += '    if not re.search(only, f"speedrun/my_run_seed{seed}-speedrun_results"): continue\n'
    loop, rest = code.split("    info = json.loads", 1)
    (directory / "main.py").write_text(f"{loop}{only}    info = json.loads{rest}")
    assert _rerun(directory, clone, 1, tmp_path / "one.json") == 0
    measured = json.loads((tmp_path / "one.json").read_text())["predicate"]["measured"]
    assert [(item["run"], item["seed"]) for item in measured] == [(0, 0)]


def test_rerun_of_code_that_trains_other_seeds_than_it_was_asked_for_is_refused(
    scratch: pathlib.Path, scored_alike: None, tmp_path: pathlib.Path
):
    directory, clone = _claimed(tmp_path, [0.0, 1e-4], seed="0")
    with pytest.raises(ResultsError, match=r"asked for the seeds 2,3 and left runs of 0, 0"):
        _rerun(directory, clone, 2, tmp_path / "two.json")
