"""How forgers work: results, logs and chains of a submission changed on the disk, carefully or not."""

import hashlib
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

from marin.errors import ResultsError
from marin.speedrun.evaluation_record import EvaluationRecord
from marin.speedrun.results import dump_results, load_results
from marin.speedrun.run_results import digests_of_log, figures_of_log
from marin.tracking import RunRecord
from marin.tracking.log_chain import LogChain, head_of

Event = dict[str, Any]


def results_of(directory: pathlib.Path) -> dict[str, Any]:
    return json.loads((directory / "speedrun_results.json").read_text())


def write_results(directory: pathlib.Path, value: Any) -> None:
    (directory / "speedrun_results.json").write_text(json.dumps(value, indent=2, sort_keys=True))


def edit_run(directory: pathlib.Path, change: Callable[[dict[str, Any]], object], run: int = 0) -> None:
    """Changes one run's figures in the results file."""
    value = results_of(directory)
    change(value["runs"][run]["run_info"])
    write_results(directory, value)


def set_figure(directory: pathlib.Path, field: str, value: Any, run: int = 0) -> None:
    """Sets a figure by its dotted path."""

    def change(info: dict[str, Any]) -> None:
        *parents, last = field.split("/") if field.startswith("eval/") else field.split(".")
        if field.startswith("eval/"):
            info[field] = value
            return
        for parent in parents:
            info = info[parent]
        info[last] = value

    edit_run(directory, change, run)


def replace_text(directory: pathlib.Path, old: str, new: str) -> None:
    path = directory / "speedrun_results.json"
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new, 1))


def log_events(directory: pathlib.Path, run: int = 0) -> list[Event]:
    path = directory / "logs" / str(run) / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_log(directory: pathlib.Path, events: list[Event], run: int = 0, *, chained: bool) -> None:
    """Writes the lines with the links they carry, or, `chained`, with a chain made again."""
    folder = directory / "logs" / str(run)
    chain = LogChain((folder / "run.json").read_bytes())
    lines = []
    for event in events:
        if chained:
            event = {**event, "chain": chain.link}
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        chain.add(line)
        lines.append(line)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines))


def bind(directory: pathlib.Path, run: int = 0) -> None:
    """Names the log and the evaluation as they are in the results."""
    folder = directory / "logs" / str(run)
    started, lines = (folder / "run.json").read_bytes(), (folder / "metrics.jsonl").read_bytes()
    digests = digests_of_log(RunRecord.open(folder), started, lines, head_of(started, lines))
    edit_run(directory, lambda entry: entry["digests"].update(digests), run)
    try:
        link = EvaluationRecord.of(load_results(directory / "speedrun_results.json")[run]).link(
            str(digests["log_head"])
        )
    except ResultsError:
        return
    edit_run(directory, lambda entry: entry["digests"].update(evaluation_link=link), run)


def edit_evaluation(
    directory: pathlib.Path, change: Callable[[dict[str, Any]], object], *, in_file: bool = True, run: int = 0
) -> None:
    """Changes what results state of the evaluation, and the evaluation's own file alike; nothing that binds them."""
    path = directory / "logs" / str(run) / "evaluation.json"
    content = json.loads(path.read_text())
    change(content)
    if in_file:
        path.write_text(json.dumps(content))
    else:
        path.unlink()
    edit_run(
        directory,
        lambda info: info.update(
            {key: info[key] | content[key] if isinstance(content[key], dict) else content[key] for key in content}
        ),
        run,
    )


def edit_log(
    directory: pathlib.Path, change: Callable[[list[Event]], list[Event]], run: int = 0, *, careful: bool = False
) -> None:
    """Changes the lines of a log; `careful` makes the chain again, binds the results to it and states what now follows from it."""
    write_log(directory, change(log_events(directory, run)), run, chained=careful)
    if careful:
        bind(directory, run)
        restate(directory, run)


def restate(directory: pathlib.Path, run: int = 0) -> None:
    """States every figure that follows from the log; what no longer can be made stays as it was."""
    path = directory / "speedrun_results.json"
    infos = load_results(path)
    record = RunRecord.open(directory / "logs" / str(run))
    try:
        figures = figures_of_log(record, infos[run].model_flops_per_token or math.nan)
    except (KeyError, IndexError, ZeroDivisionError):
        return
    infos[run] = infos[run].model_copy(update=figures)
    path.write_bytes(dump_results(infos))


def edit_run_json(
    directory: pathlib.Path, change: Callable[[dict[str, Any]], object], run: int = 0, *, careful: bool = False
) -> None:
    path = directory / "logs" / str(run) / "run.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    if careful:
        edit_log(directory, lambda events: events, run, careful=True)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
