"""The page of a Time-to-GPT-2 report in a browser: as people see it on a phone and a screen, in both colour schemes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from marin.gpt2.places import Places
from marin.gpt2.report import collect
from marin.gpt2.results import Condition
from marin.gpt2.sections import note_time, report_section
from marin.site.gpt2_report import write_page

_HEADERS_OFF_THEIR_COLUMNS = """[...document.querySelectorAll('table')].flatMap(table =>
  [...table.tHead.rows[0].cells].filter((head, i) =>
    getComputedStyle(head).paddingLeft !== getComputedStyle(table.tBodies[0].rows[0].cells[i]).paddingLeft
  ).map(head => head.innerText))"""
_FIGURES_OUT_OF_THEIR_LINE = """[...document.querySelectorAll('.figures div')].filter(line =>
  line.scrollWidth > line.clientWidth).map(line => line.innerText)"""

_NUM_LINES = "element => { const text = document.createRange(); text.selectNodeContents(element); return text.getClientRects().length }"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    places = Places(str(tmp_path_factory.mktemp("report")))
    run = places.checkpoints("base", "d4")
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    events: list[dict[str, Any]] = [
        {"event": "step", "step": i, "loss": 8 - i / 10, "learning_rate": 0.1, "grad_norm": 1.0} for i in range(20)
    ]
    events += [{"event": "evaluation", "step": step, "val_bpb": 3 - step / 20} for step in (5, 10, 15)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    tuned = places.checkpoints("rl", "d4")
    (tuned / "checkpoints" / "step-00000020").mkdir(parents=True)
    (tuned / "run.json").write_text("{}")
    rewards: list[dict[str, Any]] = [{"event": "step", "step": i, "reward": i / 20} for i in range(20)]
    # Of a run that went back to step 5, what was measured the last time counts.
    asked = [{"event": "evaluation", "step": step, "pass@1": step / 40} for step in (0, 5, 10, 5, 10)]
    (tuned / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in rewards + asked))
    flags = {f"--flag-{i}": i for i in range(20)}
    report_section(
        places,
        "Base model training",
        {
            "parameters": 4_915_306,
            "total_training_time": 93.4,
            "val_bpb": 1.9,
            "partial CORE (18 of 22 tasks), at most 12 items a task": -0.00059042,
            "total_training_time_after_10_steps": 80.4321,
            "packages": ", ".join(["jax 0.10.2"] * 9),
            "flags": flags,
        },
        "    The capital of France is " + "x" * 300,
    )
    report_section(
        places,
        "Chat evaluation sft",
        {"tasks": {"Spelling": {"accuracy": 0.5, "low": 0.4, "baseline": 0.01}}},
        "### Replies\n\n    Spelling: right\n    ### in a reply",
    )
    note_time(places, "gpt2/base_train", 93.0)
    return write_page(places, collect(places, 24.0))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 360)])
def test_report_page_shows_curves_and_figures_fits_and_has_no_axe_violation(
    page_path: Path, browser: Any, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(page_path.as_uri())
    assert page.locator("figure figcaption").all_inner_texts()[:2] == ["Validation, bits per byte", "Training loss"]
    assert page.locator("dl.stats").inner_text().split("\n")[:2] == ["Training time", "93 s"]
    assert not page.get_by_text("--flag-7", exact=True).is_visible()
    page.get_by_text("flags: 20 rows").click()
    assert page.get_by_text("--flag-7", exact=True).is_visible()
    assert page.get_by_role("row", name="Spelling, SFT").locator("td").all_inner_texts() == [
        "0.5",
        "0.4",
        "0.01",
        "yes",
    ]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    found = axe.Axe().run(page).response["violations"]
    assert [violation["id"] for violation in found] == [] and complaints == []
    context.close()


@pytest.mark.parametrize("width", [360, 1440])
def test_report_page_shows_what_rl_reached_and_figures_that_can_be_read(
    page_path: Path, browser: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(page_path.as_uri())
    captions = page.locator("figure figcaption").all_inner_texts()
    assert captions[-2:] == ["Held-out questions answered right", "Mean reward"]
    steps = [float(point.split(",")[0]) for point in page.locator("polyline").nth(-2).get_attribute("points").split()]
    assert len(steps) == 3 and steps == sorted(steps)
    # Pictures of a section with few of them are as large as those of one with many.
    assert len({round(box["width"]) for box in map(lambda f: f.bounding_box(), page.locator("figure").all())}) == 1
    replies = page.get_by_role("region", name="Chat evaluation sft: samples and notes").inner_text()
    assert replies == "Replies\n\nSpelling: right\n### in a reply"
    assert page.get_by_role("heading", name="tasks", exact=True).is_visible()
    assert page.evaluate(_HEADERS_OFF_THEIR_COLUMNS) == []
    assert page.evaluate(_FIGURES_OUT_OF_THEIR_LINE) == []
    assert page.get_by_text("-0.0005904", exact=True).evaluate(_NUM_LINES) == 1
    assert page.get_by_text("packages", exact=True).evaluate(_NUM_LINES) == 1
    page.close()


def test_report_page_of_a_run_that_diverged_draws_what_was_finite(tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    run = places.checkpoints("base", "d4")
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    # As the engine writes them: what is no number stands as a text.
    measured = {5: 3.0, 10: 2.5, 15: "nan", 20: "inf"}
    events: list[dict[str, Any]] = [{"event": "evaluation", "step": step, "val_bpb": v} for step, v in measured.items()]
    events += [{"event": "step", "step": i, "loss": 8 - i / 10 if i < 15 else "nan"} for i in range(20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    report_section(places, "Base model training", {"val_bpb": 2.5})
    page = write_page(places, collect(places, None)).read_text()
    assert "Validation, bits per byte over 2 steps: from 3 at step 5 to 2.5 at step 10" in page


def test_curve_of_validation_ends_with_what_was_measured_after_the_last_step(tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    run = places.checkpoints("base", "d4")
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "metrics.jsonl").write_text(json.dumps({"event": "evaluation", "step": 10, "val_bpb": 2.5}) + "\n")
    report_section(places, "Base model training", {"model": "d4", "steps": 20, "val_bpb": 1.9})
    page = write_page(places, collect(places)).read_text()
    assert "from 2.5 at step 10 to 1.9 at step 20" in page


def test_what_a_record_needs_fits_on_a_phone(browser: Any, tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    report_section(places, "Tokenizer training", {"vocabulary": 300})
    record = (
        Condition("training time below the record's 1.65 h", True, "0.05 h"),
        Condition("a clean commit", True, "1f" * 20),
    )
    path = write_page(places, dataclasses.replace(collect(places), record=record))
    page = browser.new_page(viewport={"width": 375, "height": 700})
    page.goto(path.as_uri())
    assert page.get_by_label("What the track asks for").evaluate("box => box.scrollWidth <= box.clientWidth")
    page.close()
