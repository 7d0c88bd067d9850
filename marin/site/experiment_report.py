"""The report of an experiment as a page of the documentation: Markdown, and two pictures beside it.

The claim comes first, then what the rule says of it, then everything that it rests on: the arms with their seeds and
intervals, curves, cost, the commands, and each step with its address in the data browser. Nothing in it is written by hand.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from marin.errors import ConfigError
from marin.number_checks import is_finite
from marin.site import experiment_charts
from marin.site.experiment_results import Findings, StepCost
from marin.speedrun.statistics.means import spread_of
from marin.speedrun.statistics.preregistration import (
    NOT_DECIDED,
    REFUTED,
    SUPPORTED,
    Decision,
    Preregistration,
    Verdict,
    arm_text,
)
from marin.storage import files
from marin.web.markdown import markdown_cell

BROWSER = "http://127.0.0.1:8321"
_MARK = "<!-- made by `marin report`; do not edit -->"
_DONE = re.compile(r"\b(\d+) of \d+ runs are done\.")
_OUTCOMES = {
    SUPPORTED: "**The hypothesis is supported.**",
    REFUTED: "**The hypothesis is refuted.**",
    NOT_DECIDED: "**Nothing is decided.**",
}


@dataclasses.dataclass(frozen=True)
class Written:
    """The files of a report."""

    page: Path
    images: tuple[Path, ...]
    index: Path


def write_report(findings: Findings, folder: Path, script: str) -> Written:
    """Writes `{name}.md`, its pictures below `images`, and the list of all reports, `index.md`.

    Args:
        folder: `docs/reports` of the checkout.
        script: the experiment's file below the checkout, for the link to it.
    Raises:
        ConfigError: a page of this name is there that this command did not make, or one that reports more runs.
    """
    name = findings.results.preregistration.name
    page = folder / f"{name}.md"
    earlier = files.read_bytes(str(page)).decode(errors="replace") if files.exists(str(page)) else _MARK
    if _MARK not in earlier:
        raise ConfigError(
            f"{page} was not made by `marin report`: move it away, or choose another folder with --output"
        )
    reported, done = _DONE.search(earlier), findings.results.num_done
    if reported is not None and int(reported[1]) > done:
        raise ConfigError(
            f"{page} reports {reported[1]} runs, and {done} of {len(findings.results.rows)} are done under {findings.prefix}:"
            " name the prefix where they lie with --prefix, or remove the page to write it anew"
        )
    metric = findings.results.preregistration.metric.name
    drawn = {
        "curves": experiment_charts.curves_svg(findings.curves, metric),
        "arms": experiment_charts.arms_svg(arms_of(findings), metric),
    }
    images = []
    for kind, svg in drawn.items():
        path = folder / "images" / f"{name}-{kind}.svg"
        if svg is not None:
            files.write_bytes(str(path), svg.encode())
            images.append(path)
        else:
            files.remove_file(str(path))
    text = report_text(findings, script, [path.name for path in images])
    files.write_bytes(str(page), text.encode())
    index = folder / "index.md"
    files.write_bytes(str(index), index_text(folder).encode())
    return Written(page, tuple(images), index)


def arms_of(findings: Findings) -> dict[str, list[float]]:
    """The deciding metric of the finished runs, by arm, in the order of the sweep."""
    metric = findings.results.preregistration.metric.name
    arms: dict[str, list[float]] = {}
    for row in findings.results.rows:
        value = row.metrics.get(metric)
        found = arms.setdefault(arm_text(row.parameters), [])
        if is_finite(value):
            found.append(float(value))
    return arms


def report_text(findings: Findings, script: str, images: Sequence[str]) -> str:
    """The page as Markdown."""
    plan, verdict = findings.results.preregistration, findings.results.verdict
    parts = [
        _MARK,
        f"# {_plain(plan.question)}",
        _claim(plan, verdict, findings.results.num_done, len(findings.results.rows)),
        *([f"> **No clean preregistration.** {_plain(plan.looked_before)}"] if plan.looked_before else []),
        *([f"> {_plain(plan.note)}"] if plan.note else []),
        *edge_notes(findings),
        "## What was written down before",
        _list(
            ("question", _plain(plan.question)),
            ("hypothesis", _plain(plan.hypothesis)),
            ("metric", f"{plan.metric.name}, {'lower' if plan.metric.lower_is_better else 'higher'} is better"),
            ("rule", rule_text(plan.decision)),
            ("stopping rule", _plain(plan.stopping_rule)),
            ("code", f"[`{script}`](../../{script})"),
        ),
        "## Results",
        _table(*_arms_table(findings)),
        *[f"![{_alternative(name, findings)}](images/{name})" for name in images],
        _caption(images),
        "### Every run",
        _table(*_runs_table(findings)),
        "## Cost",
        _cost(findings),
        "## How it was made",
        _commands(plan),
        "## Steps",
        f"Each leads to the step in the data browser: start it with `marin browse --prefix {_PREFIX}` first.",
        _table(*_steps_table(findings)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def edge_notes(findings: Findings) -> list[str]:
    """What is to be said where the chosen value of an open parameter is the least or the greatest that was tried."""
    decision, verdict, notes = findings.results.preregistration.decision, findings.results.verdict, []
    for fixed, arm in ((decision.candidate, verdict.candidate), (decision.baseline, verdict.baseline)):
        for name, chosen in ({} if arm is None else arm.parameters).items():
            rows = [row.parameters for row in findings.results.rows]
            mine = [row for row in rows if all(row[key] == str(value) for key, value in fixed.items())]
            tried = {value for row in mine if (value := _number(row[name])) is not None}
            if name not in fixed and len(tried) > 1 and _number(chosen) in (min(tried), max(tried)):
                which = "least" if _number(chosen) == min(tried) else "greatest"
                notes.append(
                    f"> For {arm_text(fixed)} the {name} {chosen} was chosen, the {which} of the sweep: a better one may lie beyond it, "
                    "and the comparison is with the best that was tried."
                )
    return notes


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def rule_text(decision: Decision) -> str:
    """The rule in words."""
    pair = f"{arm_text(decision.candidate)} against {arm_text(decision.baseline)}"
    if decision.claim == "better":
        what = f"{pair}, seed by seed: supported if the whole {100 * decision.level:g} % interval of the gain is above {decision.effect:g}, refuted if it is at or below"
    else:
        what = f"{pair}, seed by seed: supported if the whole {100 * decision.level:g} % interval of the difference is within {decision.effect:g} of zero, refuted if it is outside"
    if decision.choose_with:
        what += (
            f"; open parameters are chosen by seed {', '.join(map(str, decision.choose_with))}, which does not compare"
        )
    return what


def index_text(folder: Path) -> str:
    """The list of the reports in a folder, newest number first, with the verdict of each."""
    rows = []
    for path in sorted(folder.glob("exp*_*.md"), key=_number_of, reverse=True):
        text = path.read_text(encoding="utf-8")
        title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), path.stem)
        outcome = next((word for word, mark in _OUTCOMES.items() if mark in text), "")
        rows.append([f"exp{_number_of(path)}", f"[{_title(title)}]({path.name})", outcome])
    table = _table(["experiment", "question", "hypothesis"], rows) if rows else "There are none yet."
    return (
        "# Reports\n\n"
        "What came of the experiments, made by `marin report` from their runs. How one is begun:"
        " [experiments](../explanations/experiments.md).\n\n"
        f"{table}\n"
    )


def _title(heading: str) -> str:
    return heading.replace("|", "\\|")


def _number_of(path: Path) -> int:
    digits = path.stem.removeprefix("exp").partition("_")[0]
    return int(digits) if digits.isdigit() else 0


def _caption(images: Sequence[str]) -> str:
    if not images:
        return "No run is done, so there is nothing to draw."
    curves = "A line is the mean over the seeds, its band reaches from the least to the greatest. "
    return (
        curves if len(images) > 1 else ""
    ) + "A bar is the 95 % interval of the mean of the runs, which are the points."


def _claim(plan: Preregistration, verdict: Verdict, done: int, planned: int) -> str:
    lines = [_plain(plan.hypothesis), "", f"{_OUTCOMES[verdict.outcome]} {_sentence(verdict.reason)}"]
    if verdict.effect is not None and verdict.candidate and verdict.baseline:
        interval = (
            ""
            if verdict.low is None or verdict.high is None
            else f", {100 * plan.decision.level:g} % interval {_figure(verdict.low)} to {_figure(verdict.high)}"
        )
        lines += [
            "",
            f"Candidate: {verdict.candidate.name}. Baseline: {verdict.baseline.name}. The candidate's advantage is "
            f"{_figure(verdict.effect)} {plan.metric.name}{interval}, over {len(verdict.seeds)} seeds"
            f" ({', '.join(map(str, verdict.seeds))}). {done} of {planned} runs are done.",
        ]
    else:
        lines += ["", f"{done} of {planned} runs are done."]
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _arms_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    plan = findings.results.preregistration
    rows = []
    for arm, values in arms_of(findings).items():
        if not values:
            rows.append([markdown_cell(arm), "0", "", "", ""])
            continue
        found = spread_of(values, noise=None)
        ends = [_figure(end) for end in (found.low, found.high) if end is not None]
        deviation = "" if found.sd is None else _figure(found.sd)
        rows.append([markdown_cell(arm), str(found.n), _figure(found.mean), deviation, " to ".join(ends)])
    return ["arm", "runs", markdown_cell(plan.metric.name), "standard deviation", "95 % interval of the mean"], rows


def _runs_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    rows = findings.results.rows
    parameters, metrics = list(rows[0].parameters), list(rows[0].metrics)
    table = [
        [
            *(markdown_cell(str(value)) for value in row.parameters.values()),
            markdown_cell(row.status),
            *("" if row.metrics.get(name) is None else markdown_cell(_shown(row.metrics[name])) for name in metrics),
        ]
        for row in rows
    ]
    return list(map(markdown_cell, [*parameters, "status", *metrics])), table


def _cost(findings: Findings) -> str:
    steps = [step for step in findings.steps if step.seconds is not None]
    trained = [step for step in steps if step.flops is not None]
    flops = math.fsum(step.flops or 0.0 for step in trained)
    seconds = math.fsum(step.seconds or 0.0 for step in steps)
    whole = _duration(seconds)
    if not trained:
        return _list(("wall time of all steps", whole), ("code", _commits(steps)))
    training = _duration(math.fsum(step.seconds or 0.0 for step in trained))
    return _list(
        ("wall time of all steps", f"{whole}, of which training {training}"),
        ("training", f"{len(trained)} runs, {flops:.3g} model FLOPs (three forward passes a token)"),
        ("code", _commits(steps)),
    )


def _commits(steps: Sequence[StepCost]) -> str:
    """The commits that the outputs were made from."""
    found = dict.fromkeys((step.git_commit, step.git_dirty) for step in steps if step.git_commit)
    named = [
        f"`{commit[:12]}`{' with uncommitted changes, kept beside each step' if dirty else ''}"
        for commit, dirty in found
        if commit
    ]
    return f"commit {', '.join(named)}" if named else "no commit is recorded: the run was outside of git"


def _commands(plan: Preregistration) -> str:
    run = plan.command or f"python -m experiments.{plan.name} --prefix {_PREFIX}"
    return f"```sh\n{run}\nmarin report exp{plan.number} --prefix {_PREFIX}\n```"


_PREFIX = "local_store"


def _steps_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    rows = []
    for step in findings.steps:
        path = step.output_path.removeprefix(findings.prefix.rstrip("/") + "/")
        link = f"[`{path}`]({BROWSER}/experiment?path={quote(path, safe='/=')})"
        rows.append(
            [_title(_plain(link)), markdown_cell(step.status), "" if step.seconds is None else _duration(step.seconds)]
        )
    return ["step", "status", "wall time"], rows


def _alternative(image: str, findings: Findings) -> str:
    """The picture in words."""
    metric = findings.results.preregistration.metric.name
    if image.endswith("-curves.svg"):
        return f"{metric} on the way, a curve for each arm"
    means = [f"{arm} {_figure(math.fsum(v) / len(v))}" for arm, v in arms_of(findings).items() if v]
    return markdown_cell(f"{metric} at the end, means: {'; '.join(means)}".replace("]", ")").replace("[", "("))


def _list(*items: tuple[str, str]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in items)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown."""
    shown = [f"| {' | '.join(line)} |" for line in (columns, *rows)]
    return "\n".join([shown[0], "|" + "---|" * len(columns), *shown[1:]])


def _plain(text: str) -> str:
    """One line of text in which nothing begins a tag."""
    return " ".join(text.split()).replace("<", "&lt;")


def _shown(value: Any) -> str:
    return _figure(value) if isinstance(value, float) else str(value)


def _figure(value: float) -> str:
    """With four decimals where those say what it is, else with four digits."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
