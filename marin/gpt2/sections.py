"""Sections of the report: what a stage measured, as JSON for machines and the page, and as Markdown for people."""

import contextlib
import datetime
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marin.errors import StorageError
from marin.gpt2.places import Places
from marin.storage import files
from marin.web.markdown import markdown_cell

Figure = str | int | float | bool | None
Figures = Mapping[str, "Figure | Mapping[str, Figure | Mapping[str, Figure]]"]

TIMES_FILE = "times.json"


def report_section(places: Places, name: str, figures: Figures, text: str = "") -> Path:
    """Writes the section of a stage, `report/{slug}.json` and `.md`, in place of an earlier one; returns the latter.

    A stage that ran again and found the same keeps the section of the first time: when that was, and with which flags.

    Args:
        name: the heading, such as "Base model training".
        figures: by name; a mapping becomes a table with two columns, one of mappings a table with a column a key.
        text: Markdown that follows the figures, such as samples.
    """
    slug = slug_of(name)
    written = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    content = json.loads(json.dumps({"name": name, "written": written, "figures": figures, "text": text}))
    before = read_section(places, name)
    if before is not None and _what_was_found(before) == _what_was_found(content):
        content = before
    else:
        files.write_json(str(places.report / f"{slug}.json"), content)
    path = places.report / f"{slug}.md"
    files.write_bytes(str(path), section_markdown(name, content["figures"], text).encode())
    return path


def read_section(places: Places, name: str) -> dict[str, Any] | None:
    """What a stage wrote of itself before; None where it did not, or where the file is damaged."""
    try:
        content = files.read_json(str(places.report / f"{slug_of(name)}.json"))
    except StorageError:
        return None
    is_whole = isinstance(content, dict) and "written" in content and isinstance(content.get("figures"), dict)
    return content if is_whole else None


def _what_was_found(content: Mapping[str, Any]) -> Any:
    """A section without what says only when and how it was asked for."""
    figures = {key: value for key, value in content["figures"].items() if key != "flags"}
    return {**content, "written": None, "figures": figures}


def slug_of(name: str) -> str:
    """A file's name for a heading: "Base model training" gives "base-model-training"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def section_markdown(name: str, figures: Figures, text: str = "") -> str:
    """A section as Markdown, with the heading at the second level."""
    plain = {key: value for key, value in figures.items() if not isinstance(value, Mapping)}
    lines = [f"## {name}", *([""] if plain else [])]
    lines += [f"- {markdown_cell(key)}: {markdown_cell(shown(value))}" for key, value in plain.items()]
    for key, value in figures.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"### {markdown_cell(key)}", "", *_table(value)]
    if text:
        lines += ["", text.strip("\n")]
    return "\n".join(lines) + "\n\n"


def _table(rows: Mapping[str, Any]) -> list[str]:
    if all(isinstance(row, Mapping) for row in rows.values()):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = [[name, *(shown(row.get(column)) for column in columns)] for name, row in rows.items()]
        header = ["", *columns]
    else:
        cells = [[name, shown(value)] for name, value in rows.items()]
        header = ["", "value"]
    rule = "|" + "---|" * len(header)
    return [_row(header), rule, *map(_row, cells)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(map(markdown_cell, cells)) + " |"


def shown(value: object) -> str:
    """A figure for people: thousands separated, floats to 6 digits."""
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value == 0 or 1e-3 <= abs(value) < 1e6:
            return f"{value:,.6g}" if abs(value) < 1e5 else f"{value:,.0f}"
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def limit_words(limit: int | None, asked: str = "questions") -> str:
    """What a figure of some items of each task is marked with; nothing where all were asked."""
    return "" if limit in (None, -1) else f", at most {limit} {asked} a task"


def pass_words(num_samples: int | None) -> str:
    """What a figure of several answers to a question is marked with; nothing where there was one."""
    return "" if num_samples in (None, 1) else f", pass@{num_samples}"


def note_time(places: Places, stage: str, seconds: float) -> None:
    """Adds wall time to what a stage has taken; attempts that were killed are not in it."""
    path = str(places.report / TIMES_FILE)
    times = read_times(places)
    times[stage] = times.get(stage, 0.0) + seconds
    files.write_json(path, times)


@contextlib.contextmanager
def timed(places: Places, stage: str) -> Iterator[None]:
    """Adds the wall time of what is done inside of this, once it is done, to what a stage has taken."""
    started = time.monotonic()
    yield
    note_time(places, stage, time.monotonic() - started)


def read_times(places: Places) -> dict[str, float]:
    """Seconds by stage, in the order in which they first ran."""
    path = places.report / TIMES_FILE
    return files.read_json(str(path)) if path.is_file() else {}
