"""`marin submit` on runs made by the engine's own record code, with stand-ins for gh and for run pages; nothing is asked for."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from forgeries.honest import Plan
from submission_place import Place

from marin.cli.main import dispatch
from marin.errors import ConfigError, ResultsError, StorageError
from marin.speedrun import signers, submitting
from marin.speedrun.evaluation_record import EvaluationRecord
from marin.speedrun.pull_request import body
from marin.speedrun.results import Author, dump_results, load_results
from marin.speedrun.verdict import Verdict
from marin.speedrun.verification import verify_submission

SECRET = "s3cret-value-of-this-test"


def test_submit_gathers_checks_places_and_writes_the_pull_request(place: Place, capsys):
    place.add_runs(Plan(seed=0), Plan(seed=1))
    chosen = place.add_runs(Plan(seed=0), rng=2)
    assert place.submit("--run", str(chosen[0])) == 0
    out = capsys.readouterr().out
    (info,) = load_results(place.directory / "speedrun_results.json")
    for part in ("run.json", "metrics.jsonl"):  # byte for byte: the chain binds them
        assert (place.directory / "logs" / "0" / part).read_bytes() == (chosen[0] / part).read_bytes()
    assert (place.directory / "logs" / "0" / "evaluation.json").exists()
    ((_, verdict),) = verify_submission(place.directory)
    assert verdict.level == "log"
    assert "as it will stand" in out and "other" in out and "Grace Other" in out
    assert "Allow edits by maintainers" in out
    body = place.body()
    assert body in out
    for part in (
        "## Approach",
        "A small Llama",
        "START OF PRINT RUN INFO",
        "python -m experiments.speedrun.example.main",
    ):
        assert part in body
    assert f"{info.evaluation.bits_per_byte:.4f}" in body and f"{info.training_hardware_flops:.3e}" in body
    assert "**" in body  # the own row among its neighbours
    assert "gain: No other entry is as good" in out and "No other entry is as good, at any cost" in body


def test_submit_takes_the_newest_run_of_each_name_and_says_which_it_left(place: Place, capsys):
    old = place.add_runs(Plan(seed=0))
    new = place.add_runs(Plan(seed=0), Plan(seed=0), rng=2)[1]
    assert place.submit() == 0
    (info,) = load_results(place.directory / "speedrun_results.json")
    assert info == load_results(new / "speedrun_results.json")[0]
    out = capsys.readouterr().out
    assert f"left out: {old[0].name}" in out


def test_submit_says_what_the_tracks_test_makes_of_the_runs_and_shows_core(place: Place, capsys):
    (run,) = place.add_runs(Plan(seed=0))
    (info,) = load_results(run / "speedrun_results.json")
    place.submit()
    assert "statistics: one run and no noise model of the track" in capsys.readouterr().out
    assert "Statistics:" in place.body() and "| CORE |" not in place.body()
    scored = info.model_copy(update={"core_metric": 0.2571, "core_version": "v1"})
    text = body("example", [(scored, Verdict(rungs=()))], [], "command", None)
    assert "| bits per byte | CORE |" in text and "| 0.2571 |" in text


def test_submit_of_another_run_says_whose_place_it_took(place: Place, capsys):
    first, second = place.add_runs(Plan(seed=0), Plan(seed=1))
    info = json.loads((second / "run.json").read_text())
    (second / "run.json").write_text(json.dumps(info | {"run_name": "example_wide"}))
    place.submit("--run", str(first), "--run", str(second))
    assert "made room" not in capsys.readouterr().out
    place.submit("--run", str(first))
    assert "example_wide, gathered here before, made room for" in capsys.readouterr().out
    assert [log.name for log in (place.directory / "logs").iterdir()] == ["0"]


def test_submit_of_a_later_run_says_that_rows_of_the_board_must_stay(place: Place, capsys):
    (first,) = place.add_runs(Plan(seed=0))
    (later,) = place.add_runs(Plan(seed=1), rng=2)
    assert place.submit("--run", str(first)) == 0 and place.submit("--run", str(first)) == 0
    assert "they must stay" not in capsys.readouterr().out
    assert place.submit("--run", str(later)) == 0
    assert "note: 1 of the runs that the results here held are not among these" in capsys.readouterr().out
    assert place.submit("--run", str(first), "--run", str(later)) == 0
    assert "they must stay" not in capsys.readouterr().out


def _unsigned(run: pathlib.Path) -> None:
    """As the Time-to-GPT-2 pipeline leaves its results."""
    path = run / "speedrun_results.json"
    (info,) = load_results(path)
    nobody = Author(name="(none given)", affiliation="(none given)")
    path.write_bytes(dump_results([info.model_copy(update={"author": nobody})]))


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_submit_of_a_run_that_a_listed_signer_refuted_is_not_ready_and_shows_no_rank(
    place: Place, tmp_path: pathlib.Path, monkeypatch, capsys
):
    keygen = shutil.which("ssh-keygen", path=os.defpath) or ""
    monkeypatch.setenv("PATH", os.path.dirname(keygen))
    subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "signers").write_text(f"judge@example.org {(tmp_path / 'key.pub').read_text()}")
    monkeypatch.setattr(signers, "ALLOWED_SIGNERS", tmp_path / "signers")
    place.add_runs(Plan(seed=0))
    assert place.submit() == 0
    (tmp_path / "found.json").write_text('[{"run": 0, "bits_per_byte": 7.5}]')
    flags = ["--key", str(tmp_path / "key"), "--kind", "re-run", "--measured", str(tmp_path / "found.json")]
    assert dispatch(["sign", str(place.directory), *flags]) == 0
    capsys.readouterr()
    assert place.submit() == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "judge@example.org found 7.5000 bits per byte" in said and "not confirmed" in said
    assert "without a rank: its verdict does not allow one" in said
    assert dispatch(["verify", str(place.directory), "--allowed-signers", str(tmp_path / "signers")]) == 1


def test_submit_of_given_runs_takes_their_evaluations_from_the_usual_prefix(place: Place, monkeypatch):
    (run,) = place.add_runs(Plan())
    monkeypatch.setenv("MARIN_PREFIX", str(place.prefix))
    assert dispatch(["submit", str(place.directory), "--run", str(run)]) == 0
    assert (place.directory / "logs" / "0" / "evaluation.json").is_file()


def test_submit_of_a_run_without_an_evaluations_file_leaves_none_of_another_run(place: Place):
    (first,) = place.add_runs(Plan())
    assert place.submit() == 0
    (run,) = place.add_runs(Plan(), rng=2)
    shutil.rmtree(place.prefix / "evaluation")
    assert place.submit("--run", str(first)) == 0
    assert (place.directory / "logs" / "0" / "evaluation.json").exists()
    assert place.submit("--run", str(run)) == 0
    assert not (place.directory / "logs" / "0" / "evaluation.json").exists()


def test_submit_puts_a_name_to_runs_that_have_none(place: Place, capsys):
    (run,) = place.add_runs(Plan())
    _unsigned(run)
    before = (run / "speedrun_results.json").read_bytes()
    assert place.submit("--run", str(run)) == 1
    assert "author.name is still the placeholder" in capsys.readouterr().out
    assert place.submit("--run", str(run), "--author", "Ada Example", "--description", "The plain recipe.") == 0
    (info,) = load_results(place.directory / "speedrun_results.json")
    assert (info.author.model_dump(), info.description) == (
        {"name": "Ada Example", "affiliation": "", "url": None},
        "The plain recipe.",
    )
    assert (run / "speedrun_results.json").read_bytes() == before


def test_submit_under_a_page_without_its_scheme_says_what_to_write_before_it_gathers(place: Place):
    (run,) = place.add_runs(Plan())
    _unsigned(run)
    with pytest.raises(ConfigError, match="--url 'example.org/me' .* write https://example.org/me, or leave it out"):
        place.submit("--run", str(run), "--author", "Ada Example", "--url", "example.org/me")
    assert not (place.directory / "speedrun_results.json").exists()


def test_submit_of_a_run_that_was_not_scored_says_so(place: Place, capsys):
    (run,) = place.add_runs(Plan())
    (info,) = load_results(run / "speedrun_results.json")
    digests = info.digests.model_copy(update={"evaluation_link": EvaluationRecord().link(info.digests.log_head)})
    bare = {"evaluation": None, "validity": None, "compressors": None, "sample": None, "digests": digests}
    (run / "speedrun_results.json").write_bytes(dump_results([info.model_copy(update=bare)]))
    assert place.submit("--run", str(run)) == 0
    shown = capsys.readouterr().out
    assert "without a rank: Bits per byte is not stated" in shown and "it gets no rank on any track" in shown
    assert (
        "Without a rank: Bits per byte is not stated" in shown.partition("## Approach")[2]
    )  # whoever merges it sees it too


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--author", "Mallory"], "name 'Ada Example' as their author: leave --author out"),
        (["--url", "https://example.org"], "give --author too"),
        (["--run", "local_store", "--no-gather"], "no run is taken: leave out --run"),
        (["--author", "Ada", "--no-gather"], "leave out --author, --affiliation, --url, --description"),
    ],
)
def test_submit_under_a_name_that_cannot_be_says_why(place: Place, flags: list[str], problem: str):
    place.add_runs(Plan())
    with pytest.raises(ConfigError, match=problem):
        place.submit(*flags)
    assert not (place.directory / "speedrun_results.json").exists()


def test_submit_again_without_the_runs_checks_what_was_gathered(place: Place):
    place.add_runs(Plan())
    assert place.submit() == 0
    before = {path: path.read_bytes() for path in place.directory.rglob("*") if path.is_file()}
    shutil.rmtree(place.prefix)
    assert place.submit() == 0 and place.submit("--no-gather") == 0
    with pytest.raises(ConfigError, match="--author, --description would change nothing: give --prefix or --run"):
        place.submit("--author", "Ada Example", "--description", "Better words.")
    assert before == {path: path.read_bytes() for path in place.directory.rglob("*") if path.is_file()}


def test_submit_leaves_runs_of_a_longer_name_to_their_submission(place: Place):
    (run,) = place.add_runs(Plan())
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"run_name": "example_moe_130m"}))
    assert [found.directory for found in submitting.find_runs(place.prefix, "example").runs] == [run]
    assert submitting.find_runs(place.prefix, "example", ["example_moe", "other"]).runs == ()


def test_submit_of_edited_results_is_not_ready_and_says_why(place: Place, capsys):
    place.add_runs(Plan())
    assert place.submit() == 0
    results = place.directory / "speedrun_results.json"
    content = json.loads(results.read_text())
    content["runs"][0]["run_info"]["training_time"] *= 0.5
    results.write_text(json.dumps(content))
    assert place.submit("--no-gather", "--open") == 1
    out = capsys.readouterr().out
    assert "error: run 0:" in out and "not ready" in out


def test_submit_with_a_secret_in_a_log_writes_nothing(place: Place, monkeypatch):
    (run,) = place.add_runs(Plan())
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"command": ["main.py", SECRET]}))
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    with pytest.raises(ConfigError, match="the value of WANDB_API_KEY") as caught:
        place.submit()
    assert SECRET not in str(caught.value)
    assert sorted(path.name for path in place.directory.iterdir()) == ["main.py"]


def test_submit_with_a_secret_in_the_experiment_is_not_ready(place: Place, capsys):
    place.add_runs(Plan())
    (place.directory / "main.py").write_text(f"TOKEN = 'hf_{'a' * 34}'\n")
    assert place.submit() == 1
    out = capsys.readouterr().out
    assert "main.py: a token that begins with 'hf_a'" in out and "a" * 34 not in out


def test_submit_that_cannot_write_into_the_clone_does_not_advise_another_prefix(place: Place):
    place.add_runs(Plan(seed=0))
    (place.directory / "logs").write_text("")
    with pytest.raises(StorageError, match=r"logs/0/run.json cannot be written: .* choose another clone"):
        place.submit()


def test_submit_without_runs_says_where_it_looked(place: Place):
    with pytest.raises(ConfigError, match="no finished run named 'example'"):
        place.submit()


def test_submit_of_a_directory_elsewhere_is_refused(place: Place, tmp_path: pathlib.Path):
    with pytest.raises(ConfigError, match="give experiments/speedrun/NAME"):
        dispatch(["submit", str(tmp_path)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("example", "example is not there: give experiments/speedrun/example"),
        ("experiments/speedrun/example/main.py", "main.py is a file: give experiments/speedrun/example"),
        ("experiments/speedrun/exampel", "exampel is not there: give experiments/speedrun/example"),
        ("experiments/speedrun/zzz", "zzz is not there: give experiments/speedrun/NAME"),
        ("experiments/speedrun", "is no directory of experiments/speedrun: give experiments/speedrun/NAME"),
    ],
)
def test_submit_of_a_wrong_path_names_the_directory_that_it_comes_close_to(place: Place, given: str, told: str):
    with pytest.raises(ConfigError, match=f"{re.escape(told)}$"):
        dispatch(["submit", given])


@pytest.mark.parametrize("damaged", ["{", "[]", ""])
def test_submit_leaves_out_a_damaged_run_and_names_it(place: Place, damaged: str, capsys):
    (run,) = place.add_runs(Plan())
    other = run.with_name("another-00000000")
    shutil.copytree(run, other)
    (other / "run.json").write_text(damaged)
    assert [found.directory for found in submitting.find_runs(place.prefix, "example").runs] == [run]
    assert f"{other / 'run.json'} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "content", "problem"),
    [
        ("run.json", None, "has results but no run.json: give the directory in which the run trained"),
        ("metrics.jsonl", None, "has results but no metrics.jsonl"),
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[]", "run.json is damaged"),
    ],
)
def test_submit_of_a_directory_that_is_no_run_says_what_to_give(
    place: Place, part: str, content: str | None, problem: str
):
    (run,) = place.add_runs(Plan())
    (run / part).unlink()
    if content is not None:
        (run / part).write_text(content)
    with pytest.raises(ResultsError, match=problem):
        place.submit("--run", str(run))


def test_submit_of_a_path_that_is_no_directory_says_what_to_give(place: Place):
    (run,) = place.add_runs(Plan())
    with pytest.raises(
        ResultsError, match="speedrun_results.json is a file: give the directory in which the run trained"
    ):
        place.submit("--run", str(run / "speedrun_results.json"))
    with pytest.raises(ResultsError, match="is not there: give the directory in which the run trained"):
        place.submit("--run", str(run.with_name("gone")))


def test_submit_takes_the_evaluation_of_its_own_run_where_another_came_out_alike(place: Place):
    """As the same config does under another name: training is deterministic."""
    place.add_runs(Plan())
    (own,) = place.prefix.glob("evaluation/speedrun/*/evaluation.json")
    content = json.loads(own.read_text())
    content["validity"]["seconds"] += 0.25
    other = own.parents[1] / "another-00000000" / own.name
    other.parent.mkdir()
    other.write_text(json.dumps(content))
    assert place.submit() == 0
    assert (place.directory / "logs" / "0" / "evaluation.json").read_bytes() == own.read_bytes()


@pytest.mark.parametrize("damaged", ["{", "[]"])
def test_submit_passes_over_a_damaged_evaluation_and_names_it(place: Place, damaged: str, capsys):
    place.add_runs(Plan())
    other = place.prefix / "evaluation" / "speedrun" / "another-00000000" / "evaluation.json"
    other.parent.mkdir()
    other.write_text(damaged)
    assert place.submit() == 0
    assert f"{other} is damaged" in capsys.readouterr().err
    assert (place.directory / "logs" / "0" / "evaluation.json").is_file()
