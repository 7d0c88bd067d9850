"""The report of a whole pipeline: `reset` notes the machine and the time, `generate` puts all sections together.

    report/header.json      the machine, the code and the moment at which the pipeline began
    report/{slug}.json      a section for each stage, written by the stage (see `marin.gpt2.sections`)
    report/report.md        everything, in the order of the pipeline

A section is as old as its stage; what was not run has none.
"""

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin import hardware
from marin.errors import DataError
from marin.execution.provenance import code_directory
from marin.git import git
from marin.gpt2.places import Places, Source
from marin.gpt2.results import Condition, CoreFigures, record_conditions, write_run_results
from marin.gpt2.sections import TIMES_FILE, limit_words, pass_words, read_times, section_markdown
from marin.storage import files
from marin.tracking.environment import capture_environment
from marin.tracking.run_record import RunRecord

HEADER_FILE = "header.json"
REPORT_FILE = "report.md"
# Sections in the order of the pipeline; others follow by name.
ORDER = (
    "tokenizer-training",
    "tokenizer-evaluation",
    "base-model-training",
    "base-model-evaluation",
    "chat-evaluation-base",
    "sft",
    "chat-sft",
    "chat-evaluation-sft",
    "rl",
    "chat-rl",
    "chat-evaluation-rl",
)
# Finetuning's `val_bpb` is of other text than the base model's, so the two have rows of their own.
_BITS_OF_ANSWERS = "val_bpb of answers in held-out conversations"
_COLUMNS = {
    "base-model-evaluation": "BASE",
    "chat-evaluation-base": "BASE, chat",
    "chat-evaluation-sft": "SFT",
    "chat-evaluation-rl": "RL",
}

_TITLES: dict[Source, str] = {"base": "Base model", "sft": "SFT", "rl": "RL"}
_TRAINED: dict[Source, str] = {"base": "base-model-training", "sft": "chat-sft", "rl": "chat-rl"}  # by section


@dataclasses.dataclass(frozen=True)
class Section:
    """What a stage has written of itself."""

    slug: str
    name: str
    written: datetime.datetime
    figures: dict[str, Any]
    text: str


@dataclasses.dataclass(frozen=True)
class Report:
    """A whole report, ready to be written as Markdown or as a page.

    Args:
        times: seconds of wall time by stage.
        wall_time: seconds from the beginning until the last stage was done.
        record: what the track asks for; empty where no base model was trained.
        logs: `metrics.jsonl` of the runs by name, for curves.
    """

    header: dict[str, Any]
    sections: tuple[Section, ...]
    times: dict[str, float]
    wall_time: float
    price_per_hour: float | None
    record: tuple[Condition, ...]
    logs: dict[str, Path]

    @property
    def cost(self) -> float | None:
        """Of the whole machine for the wall time; None where no price is stated."""
        return None if self.price_per_hour is None else self.price_per_hour * self.wall_time / 3600


def reset(places: Places) -> None:
    """Removes earlier sections, and notes the machine, the code and the time."""
    for path in places.report.glob("*"):
        if path.suffix in (".md", ".json", ".html"):
            path.unlink()
    environment, _ = capture_environment()
    environment["git"] |= {
        "branch": git(code_directory(), "rev-parse", "--abbrev-ref", "HEAD"),
        "message": git(code_directory(), "log", "-1", "--format=%s"),
    }
    header = {"started": _now().isoformat(timespec="seconds"), **environment, "code": _size_of_code()}
    files.write_json(str(places.report / HEADER_FILE), header)


def collect(places: Places, price_per_hour: float | None = None) -> Report:
    """Reads what the stages have left.

    Raises:
        DataError: no stage has written a section, or a file among them is none.
        StorageError: a section cannot be read.
    """
    sections = {path.stem: path for path in places.report.glob("*.json") if path.name not in (HEADER_FILE, TIMES_FILE)}
    if not sections:
        raise DataError(f"{places.report} has no sections: run a stage first, such as `python -m scripts.tok_train`")
    header_path = places.report / HEADER_FILE
    header = files.read_json(str(header_path)) if header_path.is_file() else {}
    times = read_times(places)
    started = header.get("started")
    found = tuple(_section(sections[slug]) for slug in sorted(sections, key=_place))
    # Until the last stage was done, not until somebody asks for the report.
    last = max(section.written for section in found)
    wall = (last - datetime.datetime.fromisoformat(started)).total_seconds() if started else sum(times.values())
    told = {section.slug: section.figures.get("model") for section in found}
    logs, record = _runs(places, {source: told.get(slug) for source, slug in _TRAINED.items()})
    return Report(
        header,
        found,
        times,
        wall,
        price_per_hour,
        record,
        logs,
    )


def _place(slug: str) -> tuple[int, str]:
    return (ORDER.index(slug) if slug in ORDER else len(ORDER), slug)


def _section(path: Path) -> Section:
    content = files.read_json(str(path))
    try:
        written = datetime.datetime.fromisoformat(content["written"])
        return Section(path.stem, content["name"], written, content["figures"], content["text"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} is no section of a report: remove it, or run its stage again") from None


def _runs(places: Places, told: Mapping[Source, object]) -> tuple[dict[str, Path], tuple[Condition, ...]]:
    """The logs of a run of each kind, and what the base run is as a record. Each finished base run gets its results file.

    Args:
        told: the tags that the sections of training are of; where there is none it is the deepest run.
    """
    logs: dict[str, Path] = {}
    record: tuple[Condition, ...] = ()
    for source, title in _TITLES.items():
        named = [run for run in places.runs(source) if run.name == told.get(source)]
        try:
            run = named[0] if named else places.find_run(source)
        except DataError:
            continue
        logs[title] = run / "metrics.jsonl"
        for other in places.runs("base") if source == "base" else ():
            if (opened := RunRecord.open(other)).is_complete:
                core = CoreFigures.of_run(places.base_eval, opened)
                found = write_run_results(other, core, f"Time-to-GPT-2 pipeline, {other.name}")
                record = tuple(record_conditions(found)) if other == run else record
    return logs, record


# ---- Markdown --------------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The whole report as one Markdown document."""
    parts = ["# Time-to-GPT-2 report\n\n", section_markdown("Environment", environment_figures(report.header))]
    parts += [section_markdown(section.name, section.figures, section.text) for section in report.sections]
    parts += [section_markdown(name, figures) for name, figures in closing(report)]
    if report.record:
        text = f"**{verdict(report.record)}**"
        asked = {condition.asked: condition.as_json() for condition in report.record}
        parts.append(section_markdown("Would the record stand?", {"Time-to-GPT-2 track": asked}, text))
    return "".join(parts)


def environment_figures(header: dict[str, Any]) -> dict[str, Any]:
    """The header as figures for people."""
    if not header:
        return {"state": "not noted: `python -m scripts.report reset` notes it before the first stage"}
    host, git = header["host"], header["git"]
    gpus = [f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in host["gpus"]]
    return {
        "started": header["started"],
        "commit": f"{(git['commit'] or 'no git')[:12]}{' with changes' if git['dirty'] else ''}",
        "branch": git.get("branch"),
        "message": git.get("message"),
        "platform": f"{host['platform']}, kernel {host['kernel']}",
        "processor": f"{host['cpu_model']}, {host['cores_usable']:g} cores usable",
        "memory": f"{host['memory_bytes'] / 2**30:.1f} GiB",
        "GPUs": ", ".join(gpus) or "none",
        "python": header["python"],
        "packages": ", ".join(f"{name} {version}" for name, version in header["packages"].items()),
        "code": header["code"],
    }


def final_metrics(report: Report) -> dict[str, dict[str, Any]]:
    """The figures that stages state of their models, by metric, with a column a model: CORE and the accuracy on chat tasks."""
    found: dict[str, dict[str, Any]] = {}
    for section in report.sections:
        if section.slug == "chat-sft" and isinstance(section.figures.get("val_bpb"), float):
            found.setdefault(_BITS_OF_ANSWERS, {})["SFT"] = section.figures["val_bpb"]
        column = _COLUMNS.get(section.slug)
        if column is None:
            continue
        partial = [name for name in section.figures if name.startswith("partial CORE")]  # says itself of how many items
        for name in ("core_metric", *partial, "val_bpb"):
            if isinstance(section.figures.get(name), float):
                label = name + (limit_of_core(section.figures) if name == "core_metric" else "")
                found.setdefault(label, {})[column] = section.figures[name]
        if isinstance(section.figures.get("chatcore_metric"), float):
            figures = section.figures
            label = f"ChatCORE{limit_words(figures.get('max_problems'))}{pass_words(figures.get('num_samples'))}"
            found.setdefault(label, {})[column] = section.figures["chatcore_metric"]
        tasks = section.figures.get("tasks")
        for name, row in tasks.items() if column != "BASE" and isinstance(tasks, dict) else ():
            if isinstance(row, dict) and "accuracy" in row:
                found.setdefault(name, {})[column] = row["accuracy"]
    return found


def limit_of_core(figures: dict[str, Any]) -> str:
    """What a CORE of some items of each task is marked with; nothing where all were asked."""
    return limit_words(figures.get("max_per_task"), "items")


def comparisons(report: Report) -> dict[str, dict[str, Any]]:
    """For each chat task and model, whether its answers are better than always the most common one, at 95 %.

    One right answer of several that were given is not held against a guess that was made once.
    """
    found = {}
    for section in report.sections:
        tasks = section.figures.get("tasks")
        if not section.slug.startswith("chat-evaluation-") or not isinstance(tasks, dict):
            continue
        for name, row in tasks.items():
            if isinstance(row, dict) and {"accuracy", "low", "baseline"} <= row.keys() and ", pass@" not in name:
                found[f"{name}, {_COLUMNS.get(section.slug, section.name)}"] = {
                    "accuracy": row["accuracy"],
                    "95 % lower bound": row["low"],
                    "most common answer, or guessing": row["baseline"],
                    "better": row["low"] > row["baseline"],
                }
    return found


def closing(report: Report) -> list[tuple[str, dict[str, Any]]]:
    """What follows from several sections: headings and figures."""
    metrics, compared = final_metrics(report), comparisons(report)
    found = [("Metrics by stage", {"metrics": {"model": _models(report), **metrics}})] if metrics else []
    found += [("Better than the most common answer?", {"held-out questions": compared})] if compared else []
    return [*found, ("Time and cost", time_figures(report))]


def _models(report: Report) -> dict[str, str]:
    """Which model each column of the metrics is of: stages may have been run with several."""
    found: dict[str, str] = {}
    for section in report.sections:
        column = "SFT" if section.slug == "chat-sft" else _COLUMNS.get(section.slug)
        model = section.figures.get("model")
        if column is None or not isinstance(model, str):
            continue
        before = found.get(column)
        # An evaluation names the step too: "d4, step 100" of the run "d4".
        is_same = before is None or model.split(",")[0] == before.split(",")[0]
        found[column] = model if is_same else f"{before}; {model}"
    return found


def time_figures(report: Report) -> dict[str, Any]:
    """Where the time went, and what it cost."""
    table = {name.removeprefix("gpt2/"): {"minutes": round(seconds / 60, 2)} for name, seconds in report.times.items()}
    cost = "not stated: --price-per-hour of the machine gives it" if report.cost is None else f"{report.cost:.2f}"
    return {"wall time, hours": report.wall_time / 3600, "cost": cost, "wall time by stage": table}


def verdict(conditions: tuple[Condition, ...]) -> str:
    """One sentence: whether this run alone would be a record."""
    missing = [condition.asked for condition in conditions if not condition.met]
    if not missing:
        return "This run would stand as a record of the track."
    return f"This run would not stand as a record: {'; '.join(missing)}."


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _size_of_code() -> str:
    """Files, lines and characters of the package and its scripts, as a measure of bloat."""
    root = Path(hardware.__file__).parent
    texts = [path.read_text(errors="replace") for path in (*root.rglob("*.py"), *root.parent.glob("scripts/*.py"))]
    lines, characters = sum(text.count("\n") for text in texts), sum(map(len, texts))
    return f"{len(texts):,} files, {lines:,} lines, {characters:,} characters"
