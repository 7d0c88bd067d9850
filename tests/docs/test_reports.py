"""The committed reports say what their own tables say, and belong to experiments that are there."""

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from marin.execution.graph import Graph
from marin.site.experiment_report import index_text
from marin.speedrun.experiment import experiment_step
from marin.speedrun.statistics.preregistration import Observation, Preregistration, decide

ROOT = Path(__file__).resolve().parents[2]
REPORTS = sorted((ROOT / "docs" / "reports").glob("exp*_*.md"))
by_report = pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)


def _table(text: str, heading: str) -> list[dict[str, str]]:
    lines = [
        line for line in text.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0].splitlines() if line.startswith("|")
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_list_of_reports_is_that_of_the_folder() -> None:
    assert len(REPORTS) >= 3
    folder = ROOT / "docs" / "reports"
    assert (folder / "index.md").read_text(encoding="utf-8") == index_text(folder)


@by_report
def test_verdict_follows_from_the_runs_by_the_rule_in_the_code(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    plan: Preregistration = importlib.import_module(f"experiments.{report.stem}").preregistration
    assert f"# {plan.question}" in text and plan.hypothesis in text and plan.stopping_rule in text
    rows = _table(text, "### Every run")
    columns = list(rows[0])
    parameters = columns[: columns.index("status")]
    runs = [
        Observation(
            {name: row[name] for name in parameters}, float(row[plan.metric.name]) if row[plan.metric.name] else None
        )
        for row in rows
    ]
    verdict = decide(plan.decision, plan.metric, runs)
    said = re.search(r"The candidate's advantage is (-?\d+\.\d+)", text)
    assert f"**The hypothesis is {verdict.outcome}.**" in text or "**Nothing is decided.**" in text
    assert ("**Nothing is decided.**" in text) == (verdict.outcome == "not decided")
    if said:
        assert float(said[1]) == pytest.approx(verdict.effect, abs=2e-4)  # the table is rounded to four places


@by_report
def test_report_says_under_the_claim_what_had_been_looked_at_and_names_the_record_of_that_plan(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    module = importlib.import_module(f"experiments.{report.stem}")
    plan: Preregistration = module.preregistration
    claim = text.partition("\n## ")[0]
    assert ("No clean preregistration" in claim) == bool(plan.looked_before) and plan.looked_before in claim
    # The rest of the page but for its last table follows from the runs; that table has the paths of the steps as they are.
    record = experiment_step(plan, module.runs, shown=getattr(module, "shown", None))
    paths = [node.output_path.removeprefix("store/") for node in Graph([*module.runs, record], "store").nodes]
    assert paths == [row["step"].partition("`]")[0].removeprefix("[`") for row in _table(text, "## Steps")]


def test_commits_that_reports_name_are_in_the_history() -> None:
    history = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        pytest.skip("the history is not here")
    for report in REPORTS:
        (line,) = re.findall(r"^- code: commit (.+)$", report.read_text(encoding="utf-8"), re.MULTILINE)
        named = re.findall(r"`([0-9a-f]{12})`", line)
        assert named and all(f"\n{commit}" in f"\n{history}" for commit in named), report.name


@by_report
def test_report_names_its_command_and_links_every_step(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert (
        f"python -m experiments.{report.stem} --prefix local_store\nmarin report {report.stem.partition('_')[0]}"
        in text
    )
    steps = _table(text, "## Steps")
    assert len(steps) > len(_table(text, "### Every run"))
    assert all(
        re.fullmatch(r"\[`([^`]+)`\]\(http://127\.0\.0\.1:8321/experiment\?path=.+\)", row["step"]) for row in steps
    )
    for image in re.findall(r"\((images/[^)]+\.svg)\)", text):
        assert (report.parent / image).stat().st_size < 60_000
