"""How far a run is: its stages with their states, what each found, and what it printed last.

Everything is read from the outputs: the executor's record of the run says which steps there are and where, their status files
how they stand, and the files that each stage writes what came of it. A file that is missing, damaged or half there is left
out, as the run may be writing it at this moment.
"""

import dataclasses
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from marin.data.shards import MANIFEST
from marin.datashop.annotate_progress import PROGRESS
from marin.datashop.card import CARD
from marin.datashop.classifier import QUALITY
from marin.datashop.labels import SUMMARY
from marin.datashop.quality import estimate_text
from marin.datashop.scoring import SCORES
from marin.datashop.selection import SELECTION
from marin.errors import ConfigError, DataError, StorageError
from marin.execution.status import ERROR_NAME, INFO_NAME, LOG_NAME
from marin.site import wording
from marin.site.browser import shown, text
from marin.site.browser.records import Records, State
from marin.site.datashop.runs import OUTPUT, RECORDS, Run, read_json

_TAIL_BYTES = 24_000
_TAIL_LINES = 200
TITLES = {
    "pool": "Pool",
    "annotator_data": "Documents to grade",
    "prompt": "Prompt",
    "sample": "Sample",
    "labels": "Labels",
    "classifier": "Classifier",
    "scores": "Scores",
    "filtered": "Filter",
    "selection": "Samples to look at",
    "deduplicated": "Repeated documents",
    "decontaminated": "Evaluation sets",
    "tokenizer": "Tokenizer",
    "tokenized": "Token cache",
    "card": "Dataset card",
    "ablation": "Ablation",
    "report": "Report",
}
WORDS = {
    "draft": "not started",
    "starting": "starting",
    "running": "at work",
    "stopping": "stopping",
    "finished": "finished",
    "failed": "a stage failed",
    "stopped": "stopped",
    "interrupted": "its process ended before the work did",
}
_CSS = {
    "finished": "success",
    "starting": "running",
    "stopping": "interrupted",
    "stopped": "interrupted",
    "draft": "not-run",
}


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of a run; `output` is its directory, `facts` are what it found, `done` the part that is done, if it says so."""

    key: str
    title: str
    about: str
    output: pathlib.Path
    state: State
    seconds: float | None
    facts: tuple[tuple[str, str], ...]
    done: float | None = None
    warning: str = ""


@dataclasses.dataclass(frozen=True)
class Summary:
    """A run in a list of runs: `states` are those of its stages."""

    word: str
    states: tuple[State, ...]

    @property
    def state(self) -> State:
        return State(_CSS.get(self.word, self.word))

    @property
    def num_done(self) -> int:
        return sum(state.word == "success" for state in self.states)


@dataclasses.dataclass(frozen=True)
class Progress(Summary):
    """A run as a whole."""

    stages: tuple[Stage, ...]
    log: str
    error: str

    @property
    def is_live(self) -> bool:
        return self.word in ("starting", "running", "stopping")

    def stage(self, key: str) -> Stage | None:
        """The stage, if its output is complete."""
        return next((item for item in self.stages if item.key == key and item.state.word == "success"), None)


def summary_of(run: Run, records: Records) -> Summary:
    """How far the run is, without what its stages found and printed: a list of many runs reads none of that."""
    states = tuple(step.state for step in _steps(run, records))
    return Summary(_word(run, states), states)


def output_of(run: Run, records: Records, key: str) -> pathlib.Path | None:
    """Where the output of a stage lies; None if it is not complete."""
    steps = (step for step in _steps(run, records) if step.key == key and step.state.word == "success")
    return next((step.output for step in steps), None)


def progress_of(run: Run, records: Records) -> Progress:
    """How far the run is at this moment, with all that is known of it."""
    stages = tuple(map(_stage, _steps(run, records)))
    states = tuple(stage.state for stage in stages)
    word = _word(run, states)
    current = next((stage for stage in stages if stage.state.word in ("running", "failed", "interrupted")), None)
    log = _tail(current.output / LOG_NAME) if current is not None else ""
    error = _last_words(run.folder / OUTPUT) if word in ("failed", "interrupted") else ""
    return Progress(word, states, stages, log, error)


def _word(run: Run, states: tuple[State, ...]) -> str:
    if run.is_draft:
        return "draft"
    if run.is_alive:
        return "stopping" if run.asked_to_stop else "running" if states else "starting"
    if states and all(state.word == "success" for state in states):
        return "finished"
    if run.asked_to_stop:
        return "stopped"
    has_failed = any(state.word == "failed" for state in states) or not states
    return "failed" if has_failed else "interrupted"


@dataclasses.dataclass(frozen=True)
class _Step:
    """A stage as the executor's record and its status file tell it."""

    key: str
    about: str
    output: pathlib.Path
    state: State


def _steps(run: Run, records: Records) -> Iterator[_Step]:
    record = None if run.is_draft else _newest_record(run)
    for info in record.get("steps", []) if isinstance(record, dict) else []:
        output = info.get("output_path") if isinstance(info, dict) else None
        parts = records.relative(output)
        if parts is None:
            continue
        name = str(info.get("name") or parts[-1])
        key = name.removeprefix(f"datashop/{run.wish.name}/")
        path = pathlib.Path(records.root.path, *parts)
        yield _Step(key, str(info.get("description") or ""), path, records.state(parts))


def _stage(step: _Step) -> Stage:
    """The stage with what it found."""
    word = step.state.word
    found = _found(step.key, step.output) if word in ("success", "running") else Found()
    return Stage(
        key=step.key,
        title=TITLES.get(step.key, step.key),
        about=step.about,
        output=step.output,
        state=step.state,
        seconds=_seconds(step.output, step.state),
        facts=tuple(found.facts),
        done=found.done if word == "running" else None,
        warning=_reason(step.output) if word == "failed" else found.warning,
    )


def _newest_record(run: Run) -> Any:
    try:
        found = [(path.stat().st_mtime, path) for path in (run.folder / RECORDS).glob("*.json")]
    except OSError:
        return None
    return read_json(max(found)[1]) if found else None


def _seconds(output: pathlib.Path, state: State) -> float | None:
    info = read_json(output / INFO_NAME)
    if not isinstance(info, dict):
        return None
    if state.word == "running":
        began = shown.timestamp(info.get("start_date"))
        return None if began is None else max(0.0, time.time() - began)
    seconds = info.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None


# --- what each stage found ----------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What the files of a stage say; see `Stage`."""

    facts: Sequence[tuple[str, str]] = ()
    done: float | None = None
    warning: str = ""


def _found(key: str, output: pathlib.Path) -> Found:
    try:
        return _READERS.get(key, _documents)(output)
    except (KeyError, TypeError, ValueError, AttributeError, StorageError, DataError, ConfigError):
        return Found()


def _documents(output: pathlib.Path) -> Found:
    manifest = read_json(output / MANIFEST)
    documents, size = manifest["documents"], manifest["bytes"]
    facts = [("documents", f"{documents['kept']:,}"), ("text", shown.size(size["kept"]))]
    for reason, count in list(manifest["dropped_by_reason"].items())[:3]:
        facts.append((f"dropped: {reason}", f"{count:,}"))
    return Found(facts)


def _labels(output: pathlib.Path) -> Found:
    summary = read_json(output / SUMMARY)
    if summary is None:
        return _labelling(read_json(output / PROGRESS))
    facts = [("labelled", f"{summary['num_labelled']:,}")]
    if summary["num_unparsed"]:
        facts.append(("without a label", f"{summary['num_unparsed']:,}"))
    facts.append(("histogram", ", ".join(f"{name}: {count:,}" for name, count in summary["histogram"].items())))
    if summary.get("cost_dollars") is not None:
        facts.append(("spent", f"${summary['cost_dollars']:,.2f}"))
    return Found(facts, warning=str(summary.get("lopsided") or ""))


def _labelling(progress: Any) -> Found:
    """How far an annotation is."""
    done, of = progress["num_done"], progress["num_documents"]
    tokens = progress["tokens_paid"]["input"] + progress["tokens_paid"]["output"]
    facts = [("asked", f"{done:,} of {of:,}"), ("tokens", f"{tokens:,}")]
    if progress["dollars_paid"] is not None:
        budget = progress["budget_dollars"]
        facts.append(("spent", f"${progress['dollars_paid']:,.4f}" + (f" of ${budget:,.2f}" if budget else "")))
    if progress["num_unparsed"]:
        facts.append(("without a label", f"{progress['num_unparsed']:,}"))
    if progress["seconds_left"]:
        facts.append(("left", str(wording.duration(progress["seconds_left"]))))
    why = progress.get("why_silent")
    return Found(facts, done / of if of else None, f"no answers: {why}" if why else "")


def _classifier(output: pathlib.Path) -> Found:
    quality = read_json(output / QUALITY)
    facts = [
        ("AUC", estimate_text(quality["auc"], 3)),
        ("average precision", f"{estimate_text(quality['average_precision'], 3)}; {quality['prior']:.3f} by chance"),
        ("held-out documents", f"{quality['num_documents']:,}"),
    ]
    return Found(facts, warning=str(quality.get("lopsided") or ""))


def _scores(output: pathlib.Path) -> Found:
    return Found([("documents", f"{read_json(output / SCORES)['num_documents']:,}")])


def _selection(output: pathlib.Path) -> Found:
    found = read_json(output / SELECTION)
    facts = [
        ("kept", f"{found['num_kept']:,} of {found['num_documents']:,} ({found['kept_fraction']:.1%})"),
        ("limit", wording.score(found["limit"])),
    ]
    return Found(facts)


def _card(output: pathlib.Path) -> Found:
    card = read_json(output / CARD)
    last = card["stages"][-1]
    facts = [("documents", f"{last['documents_kept']:,}"), ("text", shown.size(last["bytes_kept"]))]
    return Found(facts + ([("tokens", f"{card['cache']['tokens']:,}")] if card["cache"] else []))


def _nothing(output: pathlib.Path) -> Found:
    return Found()


_READERS: dict[str, Callable[[pathlib.Path], Found]] = {
    "labels": _labels,
    "classifier": _classifier,
    "scores": _scores,
    "selection": _selection,
    "card": _card,
    "report": _nothing,
    "tokenizer": _nothing,
    "tokenized": _nothing,
}


# --- files --------------------------------------------------------------------------------------------------------------


def _reason(output: pathlib.Path) -> str:
    """Why a stage failed: the last line of its error, which holds the message."""
    lines = [line for line in _tail(output / ERROR_NAME).splitlines() if line.strip()]
    return re.sub(r"^[\w.]*\b(\w+Error): ", r"\1: ", lines[-1]).rstrip(".") if lines else ""


def _last_words(path: pathlib.Path) -> str:
    """What a run printed at its end: from its error message on, if it ends with one."""
    lines = _tail(path).splitlines()
    first = max((number for number, line in enumerate(lines) if line.startswith("error: ")), default=len(lines) - 30)
    return "\n".join(lines[max(first, 0) :])


def _tail(path: pathlib.Path) -> str:
    """The last lines of a file; "" where there is none."""
    try:
        with open(path, "rb", buffering=0) as stream:
            lines = text.tail(stream, _TAIL_BYTES).splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])
