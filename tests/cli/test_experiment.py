"""`marin experiment new` and `marin report`, from a question to the page that answers it."""

import os
import pathlib
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from marin.cli.main import dispatch
from marin.errors import ConfigError, MarinError
from marin.speedrun.statistics.preregistration import check_slug

Marin = Callable[..., subprocess.CompletedProcess[str]]
FIELDS = {
    "--question": 'Does "it" help? """ \\ {x}',
    "--hypothesis": "It does, by more than 0.1.",
    "--metric": "loss",
    "--stopping-rule": "Three seeds of each arm.",
}
FLAGS = [word for pair in FIELDS.items() for word in pair]


@pytest.fixture
def here(clone: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Marin:
    """`marin` in this process, which spares each call the imports of a new one; the clone is the working directory."""
    monkeypatch.chdir(clone)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        status, said = 2, ""
        try:
            status = dispatch(list(arguments))
        except MarinError as error:
            said = str(error)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, out, err + said)

    return run


# An experiment whose runs need no training: a loss by arm and seed, and measurements on the way.
RUNS = """
import dataclasses, json, pathlib
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep, this_output_path
from marin.execution.sweep import sweep
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

@dataclasses.dataclass(frozen=True)
class Config:
    arm: str
    seed: int
    output_path: str = this_output_path()

def train(config):
    loss = {{"plain": 2.0, "idea": {idea}}}[config.arm] + 0.01 * config.seed + 0.001 * len(config.arm) * config.seed**2
    folder = pathlib.Path(config.output_path)
    if config.seed == {failing}:
        raise ValueError("diverged")
    info = {{"model_flops_per_token": 1000.0}}
    (folder / "run.json").write_text(json.dumps(info))
    lines = [{{"event": "start", "from_step": 0}}]
    lines += [{{"event": "step", "step": step, "tokens": 10}} for step in range(4)]
    lines += [{{"event": "evaluation", "step": step, "loss": loss + 4 - step}} for step in (2, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
    (folder / "result.json").write_text(json.dumps({{"loss": loss}}))

preregistration = Preregistration(
    number=7, slug="idea", question="Does the <idea> help?", hypothesis="It does, by more than 0.1.",
    metric=Metric("loss", "result.json:loss", curve="loss"), stopping_rule="Three seeds.",
    decision=Decision({{"arm": "idea"}}, {{"arm": "plain"}}, effect=0.1), note="Nothing follows.",
)

def make(arm, seed):
    return ExecutorStep("runs", train, Config(arm, seed))

runs = sweep(make, arm=["plain", "idea"], seed=[0, 1, 2])
if __name__ == "__main__":
    executor_main(steps=[*runs, experiment_step(preregistration, runs)])
"""


# --- beginning ----------------------------------------------------------------------------------------------------


def test_new_experiment_gets_the_next_number_and_runs_as_it_stands(marin: Marin, clone: pathlib.Path) -> None:
    (clone / "experiments" / "exp72_baselines.py").write_text("")
    done = marin("experiment", "new", "tied-head", *FLAGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m experiments.exp73_tied_head --prefix local_store" in done.stdout
    namespace: dict[str, object] = {"__name__": "imported"}
    module = clone / "experiments" / "exp73_tied_head.py"
    exec(compile(module.read_text(), str(module), "exec"), namespace)
    plan = namespace["preregistration"]
    assert (plan.name, plan.question, plan.metric.name) == ("exp73_tied_head", FIELDS["--question"], "loss")  # type: ignore[attr-defined]
    assert len(namespace["runs"]) == 6  # type: ignore[arg-type]
    issue = (clone / "experiments" / "exp73_tied_head.md").read_text()
    for text in FIELDS.values():
        assert text in issue


@pytest.mark.slow
def test_skeleton_runs_at_processor_size_and_its_report_has_a_verdict(marin: Marin, clone: pathlib.Path) -> None:
    assert marin("experiment", "new", "rates", *FLAGS).returncode == 0
    script = clone / "experiments" / "exp1_rates.py"
    script.write_text(script.read_text().replace("return small_run(", "return small_run(num_steps=4, "))
    command = [sys.executable, str(script), "--prefix", "store"]
    subprocess.run(command, cwd=clone, check=True, timeout=280)
    done = marin("report", str(script), "--prefix", "store", cwd=clone)
    assert done.returncode == 0 and "6 of 6 runs are done" in done.stdout, done.stderr


def test_new_experiment_without_a_field_names_its_flag(here: Marin, clone: pathlib.Path) -> None:
    done = here("experiment", "new", "idea", *FLAGS[:4])
    assert done.returncode == 2 and "--metric, --stopping-rule" in done.stderr and "Traceback" not in done.stderr
    assert list((clone / "experiments").glob("exp*")) == []


@pytest.mark.parametrize("slug", ["", "1st", "a b", "../up", "a__b", "x" * 60, "ümlaut"])
def test_bad_slug_is_refused(slug: str) -> None:
    with pytest.raises(ConfigError, match="slug"):
        check_slug(slug)


def test_new_experiment_with_a_bad_slug_ends_in_one_message(marin: Marin, clone: pathlib.Path) -> None:
    done = marin("experiment", "new", "../up", *FLAGS)
    assert done.returncode == 2 and "slug" in done.stderr and "Traceback" not in done.stderr
    assert list((clone / "experiments").glob("exp*")) == []


def test_slug_or_number_that_is_there_is_refused_and_kept(here: Marin, clone: pathlib.Path) -> None:
    path = clone / "experiments" / "exp5_idea.py"
    path.write_text("mine")
    for arguments, named in (
        (["idea"], "exp5_idea.py"),
        (["other", "--number", "5"], "exp5_idea.py"),
        (["other", "--number", "0"], "--number"),
        (["other", "--number", "1" * 23], "--number has 23 digits"),
    ):
        done = here("experiment", "new", *arguments, *FLAGS)
        assert done.returncode == 2 and named in done.stderr
    assert path.read_text() == "mine" and len(list((clone / "experiments").glob("exp*"))) == 1
    assert here("experiment", "new", "other", *FLAGS, "--effect", "-1").returncode == 2


def test_what_no_flag_says_is_asked_for_on_a_terminal(clone: pathlib.Path, environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "marin", "experiment", "new", "asked", *FLAGS[:4]]
    with subprocess.Popen(
        command, cwd=clone, env=environment, stdin=theirs, stdout=subprocess.PIPE, text=True
    ) as asked:
        os.close(theirs)
        os.write(ours, b"the loss\nThree seeds.\n")
        output, _ = asked.communicate(timeout=60)
    os.close(ours)
    assert asked.returncode == 0 and "Which figure decides" in output
    assert 'stopping_rule="Three seeds."' in (clone / "experiments" / "exp1_asked.py").read_text()


# --- reporting ----------------------------------------------------------------------------------------------------


def _run(clone: pathlib.Path, environment: dict[str, str], idea: float, failing: int = 9) -> int:
    script = clone / "experiments" / "exp7_idea.py"
    script.write_text(RUNS.format(idea=idea, failing=failing))
    command = [sys.executable, str(script), "--prefix", "store"]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, timeout=120, check=False).returncode


def test_report_has_verdict_pictures_cost_and_a_link_to_every_step(
    marin: Marin, clone: pathlib.Path, environment: dict[str, str]
) -> None:
    assert _run(clone, environment, idea=1.5) == 0
    done = marin("report", "exp7", "--prefix", "store")
    assert done.returncode == 0, done.stderr
    assert "supported" in done.stdout and "6 of 6 runs" in done.stdout
    folder = clone / "docs" / "reports"
    page = (folder / "exp7_idea.md").read_text()
    assert "**The hypothesis is supported.**" in page and "Nothing follows." in page
    assert (
        "1.2e+05 model FLOPs" not in page and "7.2e+05 model FLOPs" in page
    )  # 6 runs of 40 tokens, three passes of 1000
    links = re.findall(r"\(http://127\.0\.0\.1:8321/experiment\?path=([^)]+)\)", page)
    assert len(links) == 7 and all((clone / "store" / link / ".executor_info").is_file() for link in links)
    for image in re.findall(r"\((images/[^)]+)\)", page):
        svg = (folder / image).read_text()
        assert svg.startswith("<svg") and len(svg) < 40_000
    assert "[Does the &lt;idea> help?](exp7_idea.md)" in (folder / "index.md").read_text()
    assert str(clone) not in page


def test_report_of_unfinished_runs_decides_nothing_and_says_how_many_are_done(
    here: Marin, clone: pathlib.Path, environment: dict[str, str]
) -> None:
    assert _run(clone, environment, idea=1.5, failing=2) == 2
    done = here("report", "exp7_idea", "--prefix", "store")
    assert done.returncode == 0 and "4 of 6 runs" in done.stdout
    page = (clone / "docs" / "reports" / "exp7_idea.md").read_text()
    assert "**Nothing is decided.**" in page and "2 of the 6 runs that the rule needs are not done" in page
    assert page.count("| FAILED |") == 4  # in the table of runs and in that of steps


def test_report_before_any_run_is_a_page_without_pictures(here: Marin, clone: pathlib.Path) -> None:
    (clone / "experiments" / "exp7_idea.py").write_text(RUNS.format(idea=1.5, failing=9))
    assert here("report", "exp7", "--prefix", "store").returncode == 0
    assert "No run is done" in (clone / "docs" / "reports" / "exp7_idea.md").read_text()
    assert not (clone / "docs" / "reports" / "images").exists() and not (clone / "store").exists()


def test_report_refuses_what_is_no_experiment_and_a_page_of_a_person(here: Marin, clone: pathlib.Path) -> None:
    (clone / "experiments" / "exp8_none.py").write_text(
        'from marin.execution.executor import executor_main\nif __name__ == "__main__":\n    executor_main(steps=[])\n'
    )
    for name, said in (
        ("exp99", "no experiment"),
        ("exp8", "experiment_step"),
        ("../etc", "no experiment's name"),
    ):
        done = here("report", name, "--prefix", "store")
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    (clone / "experiments" / "exp7_idea.py").write_text(RUNS.format(idea=1.5, failing=9))
    page = clone / "docs" / "reports" / "exp7_idea.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Mine\n")
    done = here("report", "exp7", "--prefix", "store")
    assert done.returncode == 2 and "was not made by" in done.stderr and page.read_text() == "# Mine\n"


@pytest.mark.parametrize("output", ["file", "file/folder"])
def test_report_into_a_file_is_refused_with_the_flag_that_named_it(
    here: Marin, clone: pathlib.Path, output: str
) -> None:
    (clone / "experiments" / "exp7_idea.py").write_text(RUNS.format(idea=1.5, failing=9))
    (clone / "file").touch()
    done = here("report", "exp7", "--prefix", "store", "--output", output)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("move it away or choose another --output")
