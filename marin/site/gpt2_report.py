"""The report of a Time-to-GPT-2 pipeline as one page that opens from disk: verdict, curves, figures, samples."""

from pathlib import Path
from typing import Any

from marin.gpt2.places import Places
from marin.gpt2.report import Report, closing, environment_figures, limit_of_core, verdict
from marin.gpt2.sections import shown
from marin.site import pages
from marin.site.leaderboard.curves import Curve, draw_curve, figure_of, read_curves
from marin.storage import files
from marin.tracking.run_record import RunRecord

PAGE_FILE = "report.html"
# (event of the log, its field, the picture's title), beside what the steps of every run have.
_MEASURED = (
    ("evaluation", "val_bpb", "Validation, bits per byte"),
    ("evaluation", "pass@1", "Held-out questions answered right"),
    ("step", "reward", "Mean reward"),
)


def write_page(places: Places, report: Report) -> Path:
    """Writes `report/report.html`, and returns its path."""
    page = pages.static_page(
        "gpt2_report.html.j2",
        style="gpt2_report.css",
        title="Time-to-GPT-2 report",
        stats=_stats(report),
        verdict=verdict(report.record) if report.record else "",
        conditions=report.record,
        curves=[(title, _curves(path, _at_end(report, path))) for title, path in report.logs.items() if path.is_file()],
        sections=_sections(report),
    )
    path = places.report / PAGE_FILE
    files.write_bytes(str(path), page.encode())
    return path


def _at_end(report: Report, log: Path) -> dict[str, dict[int, float]]:
    """What the base model was measured to be when its training had ended, after the last line of its log, by figure and step."""
    for section in report.sections:
        steps, bits = section.figures.get("steps"), section.figures.get("val_bpb")
        is_of_this = section.slug == "base-model-training" and section.figures.get("model") == log.parent.name
        if is_of_this and log == report.logs.get("Base model") and isinstance(steps, int) and isinstance(bits, float):
            return {"val_bpb": {steps: bits}}
    return {}


def _curves(log: Path, at_end: dict[str, dict[int, float]]) -> list[Curve]:
    """What was measured on the way, and what each step measured; of a step that was done again, what it was the last time."""
    record = RunRecord.open(log.parent)
    drawn = []
    for event, key, title in _MEASURED:
        last = {entry["step"]: figure_of(entry.get(key)) for entry in record.of(event) if key in entry}
        last |= {step: figure_of(value) for step, value in at_end.get(key, {}).items()}
        series = sorted((step, value) for step, value in last.items() if value is not None)
        if len({value for _, value in series}) > 1:
            drawn.append(draw_curve(title, series))
    return drawn + read_curves(log)


def _stats(report: Report) -> list[tuple[str, str]]:
    """The figures that stand first."""
    by_slug = {section.slug: section.figures for section in report.sections}
    training, evaluation = by_slug.get("base-model-training", {}), by_slug.get("base-model-evaluation", {})
    seconds, core = training.get("total_training_time"), evaluation.get("core_metric")
    # The evaluation may be of another run than the one that was trained last.
    is_of_this = str(evaluation.get("model")).startswith(f"{training.get('model')}_")
    named = [
        (
            "Training time",
            None if seconds is None else f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:.0f} s",
        ),
        ("Parameters", _whole(training.get("parameters"))),
        ("Tokens", _whole(training.get("tokens"))),
        ("Validation, bits per byte", _fixed(training.get("val_bpb"))),
        (f"CORE{limit_of_core(evaluation)}", _fixed(core) if isinstance(core, float) and is_of_this else None),
        ("Wall time", f"{report.wall_time / 60:.0f} min"),
        ("Cost", None if report.cost is None else f"{report.cost:.2f}"),
    ]
    return [(name, value) for name, value in named if value is not None]


def _whole(value: object) -> str | None:
    return f"{value:,}" if isinstance(value, int) else None


def _fixed(value: object) -> str | None:
    return f"{value:.4f}" if isinstance(value, float) else None


def _sections(report: Report) -> list[dict[str, Any]]:
    """Each section's heading, plain figures, tables and text, all as strings."""
    listed = [("Environment", environment_figures(report.header), "")]
    listed += [(section.name, section.figures, section.text) for section in report.sections]
    listed += [(name, figures, "") for name, figures in closing(report)]
    return [
        {
            "name": name,
            "figures": [(key, shown(value)) for key, value in figures.items() if not isinstance(value, dict)],
            "tables": [_table(key, value) for key, value in figures.items() if isinstance(value, dict) and value],
            "text": _plain(text),
        }
        for name, figures, text in listed
    ]


def _plain(text: str) -> str:
    """A section's Markdown without the marks of its headings and the indentation of its blocks: what a `pre` shows."""
    lines = text.strip("\n").splitlines()
    return "\n".join(line[4:] if line.startswith("    ") else line.lstrip("# ") for line in lines)


def _table(name: str, rows: dict[str, Any]) -> dict[str, Any]:
    if all(isinstance(row, dict) for row in rows.values()):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [
            (key, [shown(row[column]) if column in row else "" for column in columns]) for key, row in rows.items()
        ]
    else:
        columns, cells = ["value"], [(key, [shown(value)]) for key, value in rows.items()]
    return {"name": name, "columns": columns, "rows": cells}
