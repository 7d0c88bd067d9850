"""What a report says beside the verdict: where the sweep ends, and that texts of an experiment stay texts."""

import dataclasses
import re
from pathlib import Path

import pytest

from marin.errors import ConfigError
from marin.execution.sweep import Row
from marin.site.experiment_charts import arms_svg
from marin.site.experiment_report import edge_notes, report_text, write_report
from marin.site.experiment_results import Findings, StepCost
from marin.speedrun.experiment import results_of
from marin.speedrun.statistics.preregistration import Decision, Metric, Preregistration

PLAN = Preregistration(
    7, "rates", "Which | is <b>better</b>?", "The second.", Metric("loss", "r.json:loss"), "Three seeds.",
    Decision({"arm": "b"}, {"arm": "a"}, choose_with=(0,)),
)  # fmt: skip


def _findings(best: dict[str, str]) -> Findings:
    """Three rates and three seeds an arm; in each arm the rate of `best` has the least loss."""
    rows = [
        Row({"arm": arm, "rate": rate, "seed": str(seed)}, "SUCCESS", "/store/x", {"loss": 1 + (rate != best[arm]) + 0.1 * seed**2 * (arm == "a")})
        for arm in ("a", "b")
        for rate in ("0.1", "0.2", "0.3")
        for seed in range(3)
    ]  # fmt: skip
    steps = (StepCost("x", "/store/x|<i>-1", "SUCCESS", 3.0, 1e9, "0" * 40, True, None),)
    return Findings(results_of(PLAN, rows), (), steps, "/store")


@pytest.mark.parametrize(
    ("best", "said"),
    [
        ({"a": "0.2", "b": "0.2"}, []),
        ({"a": "0.1", "b": "0.2"}, ["For arm a the rate 0.1 was chosen, the least"]),
        ({"a": "0.3", "b": "0.1"}, ["For arm b the rate 0.1 was chosen, the least", "For arm a the rate 0.3 was chosen, the greatest"]),
    ],
)  # fmt: skip
def test_choice_at_the_edge_of_the_sweep_is_said(best: dict[str, str], said: list[str]) -> None:
    notes = edge_notes(_findings(best))
    assert [note.partition(" of the sweep")[0].removeprefix("> ") for note in notes] == said


def test_texts_of_an_experiment_end_no_cell_and_begin_no_tag() -> None:
    found = _findings({"a": "0.2", "b": "0.2"})
    text = report_text(found, "experiments/exp7_rates.py", [])
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) == 1 and "<i>" not in rows[0] and rows[0].count(" | ") == 2
    assert "with uncommitted changes" in text and "3 s" in text
    assert "# Which | is &lt;b>better&lt;/b>?" in text


@pytest.mark.parametrize(("scale", "figures"), [(1.0, "1.0000 "), (1e-5, "1e-05 "), (1e9, "1e+09 ")])
def test_figures_of_a_report_are_told_apart_however_small_or_large(scale: float, figures: str) -> None:
    found = _findings({"a": "0.2", "b": "0.2"})
    rows = [
        dataclasses.replace(row, metrics={"loss": scale * float(str(row.metrics["loss"]))})
        for row in found.results.rows
    ]
    text = report_text(dataclasses.replace(found, results=results_of(PLAN, rows)), "x.py", ["exp7_rates-arms.svg"])
    claim = next(line for line in text.splitlines() if line.startswith("Candidate:"))
    gain, *interval = (float(each) for each in re.findall(r"(?:is|interval|to) ([-+0-9.e]+)", claim))
    assert gain == pytest.approx(0.25 * scale, rel=1e-3)
    assert len(interval) == 2 and interval[0] < gain < interval[1]
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| b | 0.2 |")]
    assert [float(line[-1].rstrip(" |")) for line in cells] == pytest.approx([scale] * 3)
    assert figures in f"{cells[0][-1]} "


def test_report_of_a_failed_run_has_an_empty_cell_and_no_verdict() -> None:
    found = _findings({"a": "0.2", "b": "0.2"})
    rows = [
        dataclasses.replace(found.results.rows[0], status="FAILED", metrics={"loss": None}),
        *found.results.rows[1:],
    ]
    text = report_text(dataclasses.replace(found, results=results_of(PLAN, rows)), "x.py", [])
    assert "**Nothing is decided.**" in text and "| a | 0.1 | 0 | FAILED |  |" in text


def test_report_of_fewer_runs_overwrites_none_of_more(tmp_path: Path) -> None:
    found = _findings({"a": "0.2", "b": "0.2"})
    rows = [dataclasses.replace(row, status="never ran", metrics={}) for row in found.results.rows]
    nothing = dataclasses.replace(found, results=results_of(PLAN, rows))
    write_report(nothing, tmp_path, "experiments/exp7_rates.py")
    written = write_report(found, tmp_path, "experiments/exp7_rates.py")
    before = {path: path.read_bytes() for path in (written.page, *written.images, written.index)}
    with pytest.raises(ConfigError, match="reports 18 runs, and 0 of 18 are done under /store.*--prefix"):
        write_report(nothing, tmp_path, "experiments/exp7_rates.py")
    assert {path: path.read_bytes() for path in before} == before


def test_arms_of_a_report_have_room_for_the_widest_usual_font() -> None:
    name = "learning_rate 0.003"
    drawn = arms_svg({name: [3.64, 3.77], "b": [3.7, 3.8]}, "bits per byte")
    assert drawn is not None
    (left,) = re.findall(r'transform="translate\((\d+),\d+\)"', drawn)[:1]
    assert int(left) > 7.5 * len(name)  # in DejaVu Sans it is 6.2 a letter, as it was measured 5.5


def test_pictures_of_the_documents_reports_have_that_room_too(repository: Path) -> None:
    pictures = sorted((repository / "docs" / "reports" / "images").glob("*-arms.svg"))
    assert pictures
    for picture in pictures:
        drawn = picture.read_text()
        left = int(re.findall(r'transform="translate\((\d+),\d+\)"', drawn)[0])
        longest = max(map(len, re.findall(r'<text text-anchor="end"[^>]*>([^<]*)</text>', drawn)))
        assert left >= min(280, 7.5 * longest), picture.name
