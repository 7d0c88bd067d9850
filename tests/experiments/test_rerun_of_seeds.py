"""`marin verify --rerun 2` of a real run of the template: two seeds are claimed, two further ones are trained in the sandbox."""

import json
import re
import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rerun_of_two_further_seeds_confirms_the_mean_of_two_real_runs(
    repository: Path, user_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    try:
        sandbox.require()
    except ConfigError as error:
        pytest.skip(str(error))
    clone = tmp_path / "marin"
    git(tmp_path, "clone", "--quiet", str(repository), str(clone))
    folder = clone / "experiments" / "speedrun" / NAME
    folder.mkdir()
    text = (clone / "experiments" / "hackable_transformer_starter_template.py").read_text()
    for old, new in FILLED_IN.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "main.py").write_text(text)
    (folder / "__init__.py").touch()
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "-m", NAME)
    environment = {name: value for name, value in user_environment.items() if name != "CI"}

    def run(*arguments: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=clone, env=environment | variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    run(f"experiments.speedrun.{NAME}.main", "--prefix", "store", SR_SIZES="cpu", SR_SEEDS="0,1")
    run("marin", "submit", f"experiments/speedrun/{NAME}", "--prefix", "store")
    out = run("marin", "verify", f"experiments/speedrun/{NAME}", "--rerun", "2", "--trust-code")
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
