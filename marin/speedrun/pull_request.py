"""The title and body of a pull request that submits a run: approach, `print_run_info`, metrics, commands, verdicts.

All of it comes from the results file, which is data: the experiment is not run for it. Text of the author's stands in fenced
blocks or is escaped, so that it is shown and never obeyed.
"""

import re
from collections.abc import Sequence

from marin.speedrun.board.entries import Entry
from marin.speedrun.board.gain import gain_of, gain_text, rivals_of
from marin.speedrun.results import RunInfo
from marin.speedrun.run_info_text import run_info_text
from marin.speedrun.submitting import Placed
from marin.speedrun.tracks import METRICS, Track
from marin.speedrun.verdict import Verdict

_LONGEST_TITLE = 100
# GitHub takes bodies of 65,536 characters; escaping at most doubles the first.
_LONGEST_APPROACH, _LONGEST_RUN_INFO, _LONGEST_VERDICTS, _MOST_RUNS = 8_000, 16_000, 10_000, 80


def title(name: str, info: RunInfo) -> str:
    """One line."""
    text = f"speedrun: {name}: {one_line(info.description)}"
    return text if len(text) <= _LONGEST_TITLE else text[: _LONGEST_TITLE - 1].rstrip() + "…"


def body(
    name: str,
    runs: Sequence[tuple[RunInfo, Verdict]],
    placed: Sequence[Placed],
    command: str,
    approach: str | None,
) -> str:
    """GitHub Markdown."""
    info = runs[0][0]
    parts = [
        "## Approach",
        markdown_text(_cut(approach or info.description, _LONGEST_APPROACH)),
        "## Metrics",
        _metrics(runs),
        *(part for item in placed for part in (f"### {item.board.track.title}", neighbours_table(item))),
        "## How to run it",
        fenced(command),
        f"Commit `{one_line(info.git_commit or 'unknown')}`{', with uncommitted changes' if info.git_dirty else ''}.",
        "## print_run_info",
        f"<details><summary>configuration and cost</summary>\n\n{fenced(_cut(run_info(info), _LONGEST_RUN_INFO))}\n\n</details>",
        "## Verification",
        _verdicts(runs),
        f"`marin verify experiments/speedrun/{name}` says the same.",
    ]
    return "\n\n".join(parts) + "\n"


def run_info(info: RunInfo) -> str:
    """What `print_run_info` prints, from the results: in the order of the dry run."""
    config = {
        "author": info.author.model_dump(),
        "description": info.description,
        "model_config": info.model,
        "train_config": info.train_config,
        "tokenized_dataset": info.tokenized_dataset,
        "resources": info.resources,
    }
    return run_info_text(
        config,
        model_flops=info.model_flops,
        model_size=info.model_size,
        num_devices=info.num_devices,
        num_chips=info.num_chips,
        device_flops=info.device_flops,
    )


def neighbours_table(item: Placed) -> str:
    """The entry's row in bold, with those around it."""
    track = item.board.track
    lines = [f"| rank | run | {track.metric} | {track.cost} | frontier |", "|---|---|---|---|---|"]
    for entry in item.neighbours:
        cells = entry_cells(item, entry)
        cells[1] = markdown_text(cells[1])
        if entry is item.entry:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        lines.append("| " + " | ".join(cells) + " |")
    reason = why_unranked(item)
    refusal = f"\n\nWithout a rank: {markdown_text(reason)}." if reason else ""
    gain = gain_in(item)
    gained = "" if gain is None else f"\n\n{markdown_text(gain)}"
    said = "".join(f"\n- {markdown_text(line)}" for line in statistics_of(item))
    return "\n".join(lines) + gained + refusal + (f"\n\nStatistics:\n{said}" if said else "")


def statistics_of(item: Placed) -> list[str]:
    """What the track's test says of the entry's runs, beside the others on the board."""
    return [one_line(finding.message) for finding in item.entry.verdict["statistics"].findings]


def gain_in(item: Placed) -> str | None:
    """How much cheaper the entry is than what else is as good; None where that cannot be said."""
    track, entries = item.board.track, item.board.entries
    gain = gain_of(track, rivals_of(track, entries), item.entry)
    return None if gain is None else one_line(gain_text(track, item.entry, gain))


def why_unranked(item: Placed) -> str | None:
    """Why the entry gets no rank on a track; None where it gets one."""
    entry = item.entry
    if entry.rank is not None:
        return None
    if entry.verdict.withdrawn is not None:
        return one_line(f"withdrawn: {entry.verdict.withdrawn}")
    unknown = f"{METRICS[item.board.track.metric].name} is not stated"
    refused = unknown if entry.verdict.counts else "its verdict does not allow one"
    return one_line("; ".join(entry.not_ranked) or refused)


def entry_cells(item: Placed, entry: Entry) -> list[str]:
    """Rank, name, quality, cost and frontier of an entry, each a line of plain text."""
    track = item.board.track
    quality, cost = entry.values[track.metric], entry.values[track.cost]
    return [
        "" if entry.rank is None else str(entry.rank),
        one_line(entry.name),
        "unknown" if quality is None else f"{quality:.4f}",
        cost_text(track, cost),
        "yes" if entry.on_frontier else "",
    ]


def cost_text(track: Track, cost: float | None) -> str:
    """Seconds where a track's cost is time, else FLOPs."""
    if cost is None:
        return "unknown"
    return f"{cost:,.1f} s" if track.cost == "training_time" else f"{cost:.3e}"


def _metrics(runs: Sequence[tuple[RunInfo, Verdict]]) -> str:
    with_core = any(info.core_metric is not None for info, _ in runs)
    columns = ["run", "seed", "bits per byte", *(["CORE"] if with_core else [])]
    columns += ["training time (s)", "hardware FLOPs", "model FLOPs", "parameters", "tokens"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for number, (info, _) in enumerate(runs[:_MOST_RUNS]):
        figures = (
            (info.quality, ".4f"), *([(info.core_metric, ".4f")] if with_core else []), (info.training_time, ",.1f"), (info.training_hardware_flops, ".3e"), (info.model_flops, ".3e"),
            (info.model_size, ",d"), (info.total_tokens, ",d"),
        )  # fmt: skip
        cells = ["unknown" if value is None else format(value, form) for value, form in figures]
        seed = "unknown" if info.seed is None else str(info.seed)
        lines.append(f"| {number} | {seed} | " + " | ".join(cells) + " |")
    if len(runs) > _MOST_RUNS:
        lines.append(f"\nand {len(runs) - _MOST_RUNS:,} more, which stand in the results")
    evaluation = runs[0][0].evaluation
    scored = "" if evaluation is None else f"\n\nScored on {markdown_text(one_line(evaluation.name))}."
    return "\n".join(lines) + scored


def _verdicts(runs: Sequence[tuple[RunInfo, Verdict]]) -> str:
    lines = []
    for number, (_, verdict) in enumerate(runs):
        reached = verdict.level or "no rung"
        rungs = ", ".join(f"{rung.rung} {rung.word}" for rung in verdict.rungs)
        lines.append(f"- run {number}: reached {reached} ({rungs})")
        for rung in verdict.rungs:
            for finding in rung.findings:
                if finding.severity in ("error", "warning"):
                    lines.append(f"  - {finding.severity}: {markdown_text(one_line(finding.message))}")
    return _cut("\n".join(lines), _LONGEST_VERDICTS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip(chr(92))}… (cut)"


def one_line(text: str) -> str:
    """The text without line breaks and characters that a terminal or page would obey."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def markdown_text(text: str) -> str:
    """Plain text as Markdown that shows it: no markup, no mentions, no references to issues."""
    escaped = re.sub(r"([\\`*_{}\[\]<>()#+!|~&-])", r"\\\1", text)
    return re.sub(r"(?<!\w)@(?=\w)", "@\N{ZERO WIDTH SPACE}", escaped)


def fenced(text: str) -> str:
    """A code block that the text cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
