"""The page of a Time-to-GPT-2 report in a browser: as people see it on a phone and a screen, in both colour schemes."""

import json
from pathlib import Path
from typing import Any

import pytest

from marin.gpt2.places import Places
from marin.gpt2.report import collect
from marin.gpt2.sections import note_time, report_section
from marin.site.gpt2_report import write_page


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
    flags = {f"--flag-{i}": i for i in range(20)}
    report_section(
        places,
        "Base model training",
        {"parameters": 4_915_306, "total_training_time": 93.4, "val_bpb": 1.9, "flags": flags},
        "    The capital of France is " + "x" * 300,
    )
    report_section(
        places, "Chat evaluation sft", {"tasks": {"Spelling": {"accuracy": 0.5, "low": 0.4, "baseline": 0.01}}}
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
