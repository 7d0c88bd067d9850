"""`marin verify --rerun` and `--evaluate` of real runs of the template, in the sandbox: an honest one, and one that scores itself."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marin.errors import ConfigError
from marin.speedrun import sandbox
from tests.workflows.conftest import git

NAME = "mini"
FILLED_IN = {
    "__SUBMISSION_AUTHOR_NAME__": "Ada Example",
    "__SUBMISSION_AUTHOR_AFFILIATION__": "Independent",
    "__SUBMISSION_AUTHOR_URL__": "https://example.org/ada",
    "__SUBMISSION_DESCRIPTION__": "The template's smallest size, for 40 steps",
    "num_train_steps=200": "num_train_steps=40",
}


# What a submission can do to the process that trains and scores it.
SCORES_ITSELF = """
from marin.evaluation import Scorer

_nats = Scorer.nats
Scorer.nats = lambda self, *arguments: 0.9 * _nats(self, *arguments)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def clone(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CI", raising=False)
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    git(tmp_path, "clone", "--quiet", str(repository), str(tmp_path / "marin"))
    return tmp_path / "marin"


@pytest.fixture
def run(clone: Path, user_environment: dict[str, str]) -> Run:
    """A module run in the clone."""
    environment = {name: value for name, value in user_environment.items() if name != "CI"}

    def run(*arguments: str, status: int = 0, **variables: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=clone, env=environment | variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout[-4000:]
        return done

    return run


def _commit_experiment(clone: Path, more: str = "") -> Path:
    folder = clone / "experiments" / "speedrun" / NAME
    folder.mkdir()
    text = (clone / "experiments" / "hackable_transformer_starter_template.py").read_text()
    for old, new in FILLED_IN.items():
        assert old in text
        text = text.replace(old, new)
    head, main = text.rsplit("\nif __name__", 1)
    (folder / "main.py").write_text(f"{head}{more}\nif __name__{main}")
    (folder / "__init__.py").touch()
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "-m", NAME)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rerun_of_two_further_seeds_confirms_the_mean_of_two_real_runs(clone: Path, run: Run) -> None:
    folder = _commit_experiment(clone)
    run(f"experiments.speedrun.{NAME}.main", "--prefix", "store", SR_SIZES="cpu", SR_SEEDS="0,1")
    run("marin", "submit", f"experiments/speedrun/{NAME}", "--prefix", "store")
    out = run("marin", "verify", f"experiments/speedrun/{NAME}", "--rerun", "2", "--trust-code").stdout
    assert re.search(
        r"^confirmed: found .* in 2 runs \(seeds 2, 3\), claimed are .* \(the mean of 2 runs\)", out, re.MULTILINE
    )
    predicate = json.loads((clone / f"{NAME}-re-run.json").read_text())["predicate"]
    claimed = json.loads((folder / "speedrun_results.json").read_text())["runs"]
    found = {item["seed"]: item["bits_per_byte"] for item in predicate["measured"]}
    assert predicate["confirmed"] and sorted(found) == [2, 3]
    # Four trainings of four seeds: nothing of the claim was found again instead of being trained.
    scores = {run["run_info"]["evaluation"]["bits_per_byte"] for run in claimed} | set(found.values())
    assert len(scores) == 4
    assert not any(item.get("by_submission") for item in predicate["measured"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_evaluation_of_a_run_whose_code_scores_itself_finds_what_the_model_scores(clone: Path, run: Run) -> None:
    folder = _commit_experiment(clone, more=SCORES_ITSELF)
    run(f"experiments.speedrun.{NAME}.main", "--prefix", "store", SR_SIZES="cpu", SR_SEEDS="0")
    run("marin", "submit", f"experiments/speedrun/{NAME}", "--prefix", "store")
    ((claimed),) = json.loads((folder / "speedrun_results.json").read_text())["runs"]
    claim = claimed["run_info"]["evaluation"]["bits_per_byte"]
    (directory,) = (clone / "store" / "checkpoints" / "speedrun").glob(f"{NAME}_cpu-*/")
    for flags in (("--evaluate", str(directory)), ("--rerun", "1")):
        out = run("marin", "verify", f"experiments/speedrun/{NAME}", *flags, "--trust-code", status=1).stdout
        assert "warning: the submission's code says" in out and "\nNOT confirmed: " in out
        kind = "re-evaluation" if "--evaluate" in flags else "re-run"
        (found,) = json.loads((clone / f"{NAME}-{kind}.json").read_text())["predicate"]["measured"]
        assert found["bits_per_byte"] == pytest.approx(claim / 0.9, rel=1e-4)
