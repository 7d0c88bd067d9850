"""The report of a datashop run: strangers' words stay words, every width fits, and what is missing is left out."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import yaml

from marin.datashop.agreement import measure_agreement
from marin.datashop.card import card_text
from marin.datashop.quality import measure_quality
from marin.errors import DataError
from marin.site.datashop_charts import curves, score_distribution
from marin.site.datashop_report import DatashopReportConfig, write_report
from marin.site.leaderboard.drawing import LIGHT

HOSTILE = "</pre><script>document.title='hit'</script> | --- \"}}{{7*7}} `x`\n# heading\n---\nlicense: stolen"


def made_card(hostile: str) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 6, 300).astype(np.float64)
    quality = measure_quality(
        np.clip(labels + generator.normal(0, 1, 300), 0, 5), labels, 3.0, scale=(0.0, 5.0), seed=0
    ).to_json()
    stage = {"stage": "x", "bytes_in": 5_000_000, "bytes_kept": 400_000, "digest": "0" * 64}
    return {
        "name": hostile,
        "made_with": "marin 0",
        "wish": {"prompt": hostile, "files": [hostile, "other.jsonl"]},
        "stages": [
            stage | {"name": "pool", "documents_in": 1000, "documents_kept": 1000, "dropped": {}},
            stage | {"name": hostile, "documents_in": 1000, "documents_kept": 100, "dropped": {hostile: 900}},
        ],
        "num_scores": 1000,
        "labels": {
            "annotator": hostile,
            "num_documents": 310,
            "num_labelled": 300,
            "num_unparsed": 10,
            "histogram": quality["histogram"],
            "lopsided": hostile,
            "cost_dollars": 1.25,
        },
        "classifier": {"kind": "ngram", "num_learned": 270, "note": hostile, "settings": {"a": [hostile]}},
        "quality": quality,
        "cache": {"documents": 100, "tokens": 12_345},
        "contamination": {
            "documents": {"in": 100, "overlapping": 3},
            "sets": {hostile: {"items": 20, "items_found": 2, "documents_overlapping": 3}},
        },
        "provenance": {"pool": "1" * 64},
        "files": [],
    }


def made_selection(hostile: str, planted: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    edges = np.linspace(0, 5, 51).tolist()
    counts = {"dropped": [18] * 50, "kept": [0] * 40 + [10] * 10}
    selection = {
        "num_documents": 1000,
        "num_kept": 100,
        "kept_fraction": 0.1,
        "limit": 4.0,
        "scale": [0.0, 5.0],
        "edges": edges,
        "planted": planted,
        **counts,
    }
    samples = [
        {
            "id": hostile,
            "source": hostile,
            "score": 5 - n / 40,
            "kept": n < 40,
            "drawn": drawn,
            "text": hostile + "x" * 900,
        }
        for n in range(80)
        for drawn in ("at random", "nearest to the limit")
    ]
    return selection, samples


def prepared(
    folder: pathlib.Path, *, hostile: str = HOSTILE, planted: Any = None, ablation: Any = None, agreement: Any = None
) -> DatashopReportConfig:
    """What the stages leave for the report."""
    selection, samples = made_selection(hostile, planted)
    for name, value in (
        ("card", made_card(hostile)),
        ("selection", selection),
        ("ablation", ablation),
        ("agreement", agreement),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.json").write_text(json.dumps(value))
    (folder / "selection" / "samples.jsonl").write_text(
        "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples), encoding="utf-8"
    )
    return DatashopReportConfig(
        f"Datashop: {hostile}",
        str(folder / "card"),
        str(folder / "selection"),
        str(folder / "ablation") if ablation else None,
        str(folder / "agreement") if agreement else None,
        str(folder / "report"),
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """With everything that a report can have."""
    planted = {
        "sources": ["rust"],
        "num_planted": 120,
        "num_kept": 90,
        "precision_of_kept": 0.9,
        "recall_of_kept": 0.75,
        "quality": made_card("x")["quality"],
    }
    ablation = {
        "arms": {"filtered": [1.9, 1.91, 1.88], "control": [2.0, 2.02, 2.01]},
        "difference": -0.11,
        "interval": [-0.15, -0.07],
        "eval_sets": {HOSTILE: {"difference": -0.11, "interval": None}},
        "tokens": 100_000,
        "parameters": 1_000_000,
        "confidence": 0.95,
        "seeds": [0, 1, 2],
    }
    folder = tmp_path_factory.mktemp("run")
    pairs = {str(number): float(number % 6) for number in range(60)}
    agreement = measure_agreement(pairs, pairs, scale=(0.0, 5.0)).to_json()
    write_report(prepared(folder, planted=planted, ablation=ablation, agreement=agreement))
    return folder / "report"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (375, "dark")])
def test_page_shows_all_fits_its_width_runs_nothing_and_has_no_axe_violation(
    report: pathlib.Path, browser: Any, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: None if request.url.startswith("file:") else problems.append(request.url))
    page.goto((report / "index.html").as_uri())
    assert page.title().startswith("Datashop: </pre><script>")
    shown = page.evaluate("[...document.images].map(image => [image.naturalWidth > 0, image.currentSrc, image.alt])")
    assert len(shown) == 6 and all(loaded and alt for loaded, _, alt in shown)
    assert all(f"{'wide' if width > 640 else 'narrow'}-{scheme}.svg" in source for _, source, _ in shown)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shares = page.locator(".confusion td").evaluate_all(
        "(cells) => cells.map((c) => c.querySelector('svg').clientWidth / c.clientWidth)"
    )
    assert min(shares) > 0.6  # a bar has room to say how much of its row it is
    names = (
        "[...document.querySelectorAll('.stages .name')].map(name => [name.innerText, name.getClientRects().length])"
    )
    # The table scrolls, so no word is broken for its sake.
    assert {lines for name, lines in page.evaluate(names) if " " not in name} == {1}
    words = page.locator("main").inner_text()
    assert "Tokens of each arm" in words and "Weighted kappa" in words
    assert "-0.1100 (-0.1500 to -0.0700)" in " ".join(words.split()) and "1.25 dollars" in words
    assert page.locator("article").count() == 160 and page.locator("script").count() == 0
    assert problems == []
    found = axe.Axe().run(page).response["violations"]
    assert [(violation["id"], violation["nodes"][0]["html"]) for violation in found] == []
    context.close()


def test_names_of_a_chart_s_lines_stand_apart(browser: Any) -> None:
    line = [[0.0, 0.0], [1.0, 1.0]]
    drawn = curves("roc", "ROC", ("false", "true"), {"held-out labels": line, "planted documents": line}).drawn
    page = browser.new_page()
    for name, svg in drawn.items():
        page.set_content(svg)
        boxes = "(parts) => parts.map((part) => part.getBoundingClientRect()).map((box) => [box.left, box.right])"
        texts = page.locator("[class*=role-legend-label] text").evaluate_all(boxes)
        symbols = page.locator("[class*=role-legend-symbol] path").evaluate_all(boxes)
        assert symbols[1][0] - texts[0][1] > 8, (name, texts, symbols)
    page.close()


def test_samples_nearest_to_the_limit_stand_first_on_both_sides(report: pathlib.Path) -> None:
    near, _ = (report / "index.html").read_text().split("At random")
    shown = {
        side: [float(text) for text in re.findall(rf'class="score {side}">([^<]+)<', near)]
        for side in ("kept", "dropped")
    }
    assert shown["kept"] == sorted(shown["kept"]) and shown["kept"][0] == 4.025
    assert shown["dropped"] == sorted(shown["dropped"], reverse=True) and shown["dropped"][0] == 4
    rows = re.findall(r"^\| (yes|no) \| ([\d.]+) ", (report / "report.md").read_text(), re.MULTILINE)
    assert rows[4:6] == [("yes", "4.025"), ("no", "4")]


def test_few_dropped_documents_among_many_kept_ones_of_like_score_are_seen() -> None:
    selection, _ = made_selection("", None)
    selection |= {"dropped": [0] * 49 + [3], "kept": [0] * 49 + [200]}
    drawn = score_distribution(selection).drawn["wide-light"]
    bars = drawn.split("mark-rect")[1].split("</g>")[0]
    assert re.findall(r'fill="([^"]+)"', bars) == [
        LIGHT.accent,
        LIGHT.point,
    ]  # the one that is drawn last covers the other
    assert {">0<", ">1<", ">10<", ">100<"} <= set(re.findall(">[0-9,]+<", drawn))


def test_markdown_keeps_strangers_words_in_their_cells(report: pathlib.Path) -> None:
    text = (report / "report.md").read_text()
    assert "<script" not in text and text.count("\n# ") == 0 and text.startswith("# Datashop: ")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "heading" in line]
    assert rows and all(line.replace("\\|", "").count("|") in (3, 5, 6) for line in rows)


def test_card_of_hostile_words_has_its_own_metadata_only() -> None:
    text = card_text(made_card(HOSTILE))
    _, metadata, body = text.split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["pretty_name"] == HOSTILE and "license" not in found
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert [line for line in headings if "heading" in line] == headings[:1]  # the title, on one line
    assert "<script" not in body.replace("    ", "\n").split("## How")[1]


def test_page_without_planted_documents_and_ablation_leaves_them_out(tmp_path: pathlib.Path) -> None:
    write_report(prepared(tmp_path, hostile="plain"))
    page = (tmp_path / "report" / "index.html").read_text()
    assert "planted" not in page and "Ablation" not in page and "annotators" not in page and "Average precision" in page


def test_costs_of_both_annotators_are_added(tmp_path: pathlib.Path) -> None:
    pairs = {str(number): float(number % 6) for number in range(60)}
    agreement = measure_agreement(pairs, pairs, scale=(0.0, 5.0)).to_json() | {"cost_dollars": [1.25, 2.5]}
    write_report(prepared(tmp_path, hostile="plain", agreement=agreement))
    assert "| Spent on labels | 3.75 dollars |" in (tmp_path / "report" / "report.md").read_text()


def test_unicode_line_ends_in_documents_end_no_sample(tmp_path: pathlib.Path) -> None:
    write_report(prepared(tmp_path, hostile="line\u2028separator\x85next line\x0b"))
    assert "next line" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_damaged_samples_are_named(tmp_path: pathlib.Path) -> None:
    config = prepared(tmp_path, hostile="plain")
    (tmp_path / "selection" / "samples.jsonl").write_text('{"id": ')
    with pytest.raises(DataError, match=r"samples\.jsonl is damaged"):
        write_report(config)
