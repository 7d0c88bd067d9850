"""The report of a datashop run, its last step: a page with pictures, the same in Markdown, and all figures as JSON.

    index.html    opens from disk; `pictures/` has its charts in both colour schemes
    report.md     the figures and pictures for a pull request or an issue
    report.json   everything that both show

Every figure comes from a file that a stage wrote; the counts of the stages are checked to add up before anything is shown.
`datashop_main(config)` ends an experiment file.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from marin.datashop.ablation import ABLATION_FILE
from marin.datashop.agreement import AGREEMENT
from marin.datashop.card import CARD
from marin.datashop.config import DatashopRunnerConfig
from marin.datashop.pipeline import datashop_steps
from marin.datashop.quality import estimate_text
from marin.datashop.selection import NEAR, RANDOM, SAMPLES, SELECTION
from marin.errors import DataError
from marin.execution.attempts import usual_path
from marin.execution.executor import executor_main
from marin.execution.step import ExecutorStep, Input, this_output_path
from marin.site import datashop_charts, pages, wording
from marin.site.datashop_charts import Picture
from marin.storage import files
from marin.web.markdown import markdown_cell

PAGE_FILE, MARKDOWN_FILE, JSON_FILE, PICTURES = "index.html", "report.md", "report.json", "pictures"
_SHOWN_SAMPLES = 40
_SHOWN_CHARS = 600
_ARMS = {"filtered": "filtered", "control": "unfiltered"}
_ESTIMATES = {
    "auc": "AUC",
    "average_precision": "Average precision",
    "f1": "F1 at the threshold",
    "macro_f1": "Macro F1 of rounded labels",
    "spearman": "Spearman with the labels",
}

_AGREEMENTS = {
    "exact": "Equal labels",
    "kappa": "Kappa",
    "weighted_kappa": "Weighted kappa",
    "spearman": "Spearman of the annotators",
}


@dataclasses.dataclass(frozen=True)
class DatashopReportConfig:
    """Args:
    card: the folder that `write_card` made.
    selection: the folder that `look_at_selection` made.
    ablation: the folder with `ablation.json`; None if no models were trained.
    agreement: the folder with `agreement.json`; None if there is one annotator.
    """

    title: str
    card: Input
    selection: Input
    ablation: Input | None = None
    agreement: Input | None = None
    output_path: str = this_output_path()


def datashop_report_step(config: DatashopRunnerConfig, steps: Mapping[str, ExecutorStep]) -> ExecutorStep:
    """The step that reports on the steps of a run."""
    report = DatashopReportConfig(
        f"Datashop: {config.experiment_name}",
        steps["card"],
        steps["selection"],
        steps.get("ablation"),
        steps.get("agreement"),
    )
    return ExecutorStep(
        name=f"datashop/{config.experiment_name}/report",
        fn=write_report,
        config=report,
        description="what was asked, found, kept and dropped, and how sure that is",
    )


def run_steps(config: DatashopRunnerConfig) -> dict[str, ExecutorStep]:
    """All steps of a run by name, the report last."""
    steps = datashop_steps(config)
    return steps | {"report": datashop_report_step(config, steps)}


def datashop_main(config: DatashopRunnerConfig) -> None:
    """Runs, or with `--dry_run` describes, all of it, as the command line says."""
    executor_main(steps=list(run_steps(config).values()), description=f"Datashop: {config.experiment_name}")


def write_report(config: DatashopReportConfig) -> None:
    """Writes the page, the Markdown and the JSON, and prints the main figures.

    Raises:
        DataError: a file of a stage is missing or damaged.
    """
    card, selection = (files.read_json(files.join(str(folder), name)) for folder, name in (
        (config.card, CARD), (config.selection, SELECTION)))  # fmt: skip
    ablation = files.read_json(files.join(str(config.ablation), ABLATION_FILE)) if config.ablation else None
    agreement = files.read_json(files.join(str(config.agreement), AGREEMENT)) if config.agreement else None
    samples = _read_samples(files.join(str(config.selection), SAMPLES))
    found = {"title": config.title, "card": card, "selection": selection, "ablation": ablation, "agreement": agreement}
    pictures = _pictures(card, selection, ablation)
    for picture in pictures:
        for variant, svg in picture.drawn.items():
            files.write_bytes(files.join(config.output_path, PICTURES, f"{picture.name}-{variant}.svg"), svg.encode())
    files.write_json(files.join(config.output_path, JSON_FILE), found)
    files.write_bytes(files.join(config.output_path, MARKDOWN_FILE), _markdown(found, pictures, samples).encode())
    page = files.join(config.output_path, PAGE_FILE)
    files.write_bytes(page, _page(found, pictures, samples).encode("utf-8", "xmlcharrefreplace"))
    for name, value in _stats(found):
        print(f"  {name:<34} {value}")
    print(f"  {'dataset':<34} {usual_path(str(config.card))}   (data/*.parquet, with its card in README.md)")
    print(f"  {'report':<34} {usual_path(page)}   (open it in a browser)")


# --- figures ------------------------------------------------------------------------------------------------------------


def _stats(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures that stand first."""
    card, selection, ablation = found["card"], found["selection"], found["ablation"]
    planted, labels, last = selection["planted"], card["labels"], card["stages"][-1]
    quality = card["quality"]
    shown = [
        ("Documents in the pool", f"{selection['num_documents']:,}"),
        ("Kept by score", f"{selection['num_kept']:,} ({selection['kept_fraction']:.2%})"),
        ("In the dataset", f"{last['documents_kept']:,}"),
        ("Tokens", f"{card['cache']['tokens']:,}" if card["cache"] else "-"),
        ("AUC on held-out labels", estimate_text(quality["auc"])),
        ("Average precision", f"{estimate_text(quality['average_precision'])}, prior {quality['prior']:.4f}"),
    ]
    if planted:
        shown += [
            ("AUC on planted documents", estimate_text(planted["quality"]["auc"])),
            (
                "Average precision on planted",
                f"{estimate_text(planted['quality']['average_precision'])}, prior {planted['quality']['prior']:.4f}",
            ),
            ("Planted documents kept", f"{planted['num_kept']:,} of {planted['num_planted']:,}"),
            ("Kept documents that were planted", wording.percent(planted["precision_of_kept"]) or "-"),
        ]
    costs = (found["agreement"] or {}).get("cost_dollars", [labels.get("cost_dollars")])  # of each annotator
    if spent := [cost for cost in costs if cost is not None]:
        shown.append(("Spent on labels", f"{sum(spent):.2f} dollars"))
    if ablation:
        shown.append(("Filtered minus unfiltered, bits per byte", _difference(ablation)))
    return shown


def _quality_rows(quality: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, estimate_text(quality[key])) for key, name in _ESTIMATES.items()]


def _agreement_rows(agreement: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """How far two annotators agree, if there are two."""
    if agreement is None:
        return []
    counted = f"{agreement['num_documents']:,} ({agreement['num_one_sided']:,} more by one of them only)"
    return [
        ("Documents labelled by both annotators", counted),
        *((name, estimate_text(agreement[key])) for key, name in _AGREEMENTS.items()),
    ]


def _ablation_rows(ablation: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the two arms of the ablation were, and what came of each evaluation set."""
    if ablation is None:
        return []
    rows = [
        ("Tokens of each arm", f"{ablation['tokens']:,}"),
        ("Parameters", f"{ablation['parameters']:,}"),
        ("Seeds", ", ".join(map(str, ablation["seeds"]))),
    ]
    for name, found in ablation.get("eval_sets", {}).items():
        rows.append((f"Filtered minus unfiltered on {name}, bits per byte", _difference(found)))
    return rows


def _difference(found: Mapping[str, Any]) -> str:
    interval = found.get("interval")
    spread = f" ({interval[0]:+.4f} to {interval[1]:+.4f})" if interval else ""
    return f"{found['difference']:+.4f}{spread}"


def _warnings(card: Mapping[str, Any]) -> list[str]:
    """What a reader must know before believing the figures."""
    labels, quality, classifier = card["labels"], card["quality"], card["classifier"]
    said = [
        labels.get("lopsided"),
        quality["lopsided"] and f"held out: {quality['lopsided']}",
        classifier.get("note"),
    ]
    if labels["num_unparsed"]:
        said.append(
            f"{labels['num_unparsed']:,} of {labels['num_documents']:,} documents gave no label and were left out"
        )
    if labels.get("annotator") == "examples" and labels.get("by_role", {}).get("pool"):
        said.append(
            "documents drawn from the pool stand in for what is not wanted; some of them may be wanted, so the figures on "
            "labels understate the classifier"
        )
    return [text for text in said if text]


def _pictures(card: Mapping[str, Any], selection: Mapping[str, Any], ablation: Any) -> list[Picture]:
    quality, planted = card["quality"], selection["planted"]
    lines = {"held-out labels": quality} | ({"planted documents": planted["quality"]} if planted else {})
    drawn = [
        datashop_charts.label_histogram(card["labels"]["histogram"], quality["threshold"]),
        datashop_charts.calibration(quality["calibration"], quality["scale"]),
        datashop_charts.score_distribution(selection),
        datashop_charts.curves(
            "roc",
            "ROC",
            ("false positive rate", "true positive rate"),
            {name: found["roc"] for name, found in lines.items()},
        ),
        datashop_charts.curves(
            "precision",
            "Precision and recall",
            ("recall", "precision"),
            {name: found["pr"] for name, found in lines.items()},
        ),
    ]
    return [*drawn, datashop_charts.ablation(ablation["arms"], _ARMS)] if ablation else drawn


def _read_samples(path: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in files.read_bytes(path).splitlines()]
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): run the step that writes it again") from None


def _shown_samples(samples: Sequence[Mapping[str, Any]], drawn: str, is_kept: bool) -> list[Mapping[str, Any]]:
    """Samples of one side: those near the limit nearest first, others by falling score, as they stand in the file."""
    chosen = [sample for sample in samples if sample["drawn"] == drawn and sample["kept"] == is_kept]
    if drawn == NEAR and is_kept:
        chosen.reverse()
    return chosen[:_SHOWN_SAMPLES]


# --- the page -----------------------------------------------------------------------------------------------------------


def _page(found: Mapping[str, Any], pictures: Sequence[Picture], samples: Sequence[Mapping[str, Any]]) -> str:
    card, selection, ablation = found["card"], found["selection"], found["ablation"]
    quality = card["quality"]
    classes = list(quality["histogram"])
    most = max((max(row) for row in quality["confusion"]), default=0) or 1
    return pages.static_page(
        "datashop_report.html.j2",
        style="datashop_report.css",
        title=found["title"],
        stats=_stats(found),
        warnings=_warnings(card),
        wish=[(name, _as_text(value)) for name, value in card["wish"].items()],
        stages=card["stages"],
        pictures=pictures,
        quality=_quality_rows(quality),
        planted=_quality_rows(selection["planted"]["quality"])[:2] if selection["planted"] else [],
        agreement=_agreement_rows(found["agreement"]),
        ablation=_ablation_rows(ablation),
        num_held_out=quality["num_documents"],
        classes=classes,
        confusion=[
            (name, [(count, round(count / most, 3)) for count in row])
            for name, row in zip(classes, quality["confusion"], strict=True)
        ],
        contamination=card["contamination"],
        samples=[
            (
                drawn,
                [
                    (side, _shown_samples(samples, drawn, is_kept))
                    for side, is_kept in (("dropped", False), ("kept", True))
                ],
            )
            for drawn in (NEAR, RANDOM)
        ],
        shown_chars=_SHOWN_CHARS,
        classifier=[(name, _as_text(value)) for name, value in card["classifier"].items()],
        provenance=card["provenance"],
    )


def _as_text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- Markdown -----------------------------------------------------------------------------------------------------------


def _markdown(found: Mapping[str, Any], pictures: Sequence[Picture], samples: Sequence[Mapping[str, Any]]) -> str:
    card = found["card"]
    lines = [f"# {_cell(found['title'])}", "", "| figure | value |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _stats(found)]
    lines += [f"\nNote: {_cell(text)}." for text in _warnings(card)]
    lines += ["", "## Stages", "", "| stage | in | kept | dropped |", "|---|---:|---:|---:|"]
    for stage in card["stages"]:
        dropped = stage["documents_in"] - stage["documents_kept"]
        lines.append(
            f"| {_cell(stage['name'])} | {stage['documents_in']:,} | {stage['documents_kept']:,} | {dropped:,} |"
        )
    lines += ["", "## The classifier on held-out labels", "", "| figure | value (95 % interval) |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _quality_rows(card["quality"])]
    for title, rows in (
        ("Two annotators", _agreement_rows(found["agreement"])),
        ("Ablation", _ablation_rows(found["ablation"])),
    ):
        if rows:
            lines += ["", f"## {title}", "", "| figure | value |", "|---|---|"]
            lines += [f"| {_cell(name)} | {value} |" for name, value in rows]
    for picture in pictures:
        lines += ["", f"## {picture.title}", "", f"![{picture.text}]({PICTURES}/{picture.name}-wide-light.svg)"]
    lines += ["", "## Samples nearest to the limit", "", "| kept | score | source | text |", "|---|---:|---|---|"]
    for sample in [*_shown_samples(samples, NEAR, True)[4::-1], *_shown_samples(samples, NEAR, False)[:5]]:
        text = wording.clean(sample["text"], 160)
        row = ("yes" if sample["kept"] else "no", wording.score(sample["score"]), _cell(sample["source"]), _cell(text))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", f"All {len(samples)} samples: `{SAMPLES}` of the selection.", ""])


def _cell(text: str) -> str:
    return markdown_cell(wording.clean(text, 400))
