"""The table of a track as files: CSV, Parquet, an Atom feed and BibTeX.

A text that a spreadsheet would take for a formula gets an apostrophe before it in CSV. Feeds and BibTeX hold names of strangers, so
both are written through an escaping of their own.
"""

import csv
import io
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard.summary import EntrySummary

FEED_LENGTH = 50
_FIGURES = (
    "bits_per_byte",
    "core",
    "loss",
    "training_hardware_flops",
    "model_flops",
    "mfu",
    "training_time",
    "total_tokens",
)
_TEXTS = (
    "author", "affiliation", "author_url", "date", "family", "optimizer", "hardware", "state", "rung", "description", "key",
)  # fmt: skip
_Read = Callable[[Sequence[EntrySummary]], list[Any]]  # a column's values, one for each entry
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "|", "%", "＝", "＋", "－", "＠")


def _same(name: str) -> _Read:
    return lambda entries: list(map(operator.itemgetter(name), entries))


def _figure(name: str) -> _Read:
    return lambda entries: [entry["values"].get(name) for entry in entries]


def _spread(name: str) -> _Read:
    return lambda entries: [None if (found := entry["spread"]) is None else found[name] for entry in entries]  # type: ignore[literal-required]


def _all_of(name: str, between: str) -> _Read:
    return lambda entries: [between.join(entry[name]) or None for entry in entries]  # type: ignore[literal-required]


def _first_of(name: str) -> _Read:
    return lambda entries: [next(iter(entry[name]), None) for entry in entries]  # type: ignore[literal-required]


COLUMNS: dict[str, tuple[str, _Read]] = {
    "track": ("text", _same("track")),
    "rank": ("whole", _same("rank")),
    "on_frontier": ("truth", _same("on_frontier")),
    "is_record": ("truth", _same("is_record")),
    "name": ("text", _same("name")),
    **{name: ("number", _figure(name)) for name in _FIGURES},
    "model_size": ("whole", _same("model_size")),
    "runs": ("whole", _spread("n")),
    "low_95": ("number", _spread("low")),
    "high_95": ("number", _spread("high")),
    **{name: ("text", _same(name)) for name in _TEXTS},
    "open_rungs": ("text", _all_of("open_rungs", " ")),
    "reasons": ("text", _all_of("reasons", "; ")),
    "run_link": ("text", _first_of("run_links")),
    "git_commit": ("text", _first_of("git_commits")),
}
"""Name of a column -> its type and where its values come from."""


Table = dict[str, list[Any]]


def table_of(entries: Sequence[EntrySummary]) -> Table:
    """The values of every column, by its name."""
    return {name: read(entries) for name, (_, read) in COLUMNS.items()}


def table_csv(table: Table) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    # Column by column, since a column's type says what must be done to its values: nothing to most.
    columns = [_cells(COLUMNS[name][0], values) for name, values in table.items()]
    writer.writerows(zip(*columns, strict=True))
    return stream.getvalue()


def _cells(kind: str, values: list[Any]) -> list[Any]:
    if kind in ("number", "whole"):
        return values
    made = {value: cell(value) for value in set(values)}  # many say the same
    return [made[value] for value in values]


def cell(value: object) -> object:
    """A value as a spreadsheet may be given it: text stays text, on one line."""
    if isinstance(value, str):
        value = " ".join(value.split())
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def table_parquet(table: Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}
    columns = {}
    for name, values in table.items():
        kind = COLUMNS[name][0]
        if kind in ("text", "whole"):
            made = {value: _storable(kind, value) for value in set(values)}
            values = [made[value] for value in values]
        columns[name] = pa.array(values, types[kind])
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns), stream, compression="zstd", store_schema=False)
    return stream.getvalue()


def _storable(kind: str, value: Any) -> Any:
    if kind == "text" and isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode()  # lone surrogates have no UTF-8 form
    if kind == "whole" and isinstance(value, int) and abs(value) >= 1 << 63:
        return None
    return value


def newest(entries: Sequence[EntrySummary]) -> list[EntrySummary]:
    """What a feed lists: dated entries, newest first, copies of one entry on several tracks once."""
    once = {entry["key"]: entry for entry in reversed(entries) if entry["date"] is not None}
    return sorted(once.values(), key=lambda entry: (entry["date"] or "", entry["key"]), reverse=True)[:FEED_LENGTH]


def bibtex(entries: Sequence[EntrySummary], title: str) -> str:
    """One `@misc` an entry. The address is left to who publishes the site: BibTeX names the page's path."""
    return "\n".join(_reference(cited(entry), title) for entry in entries)


_CITED = ("name", "author", "date", "run_links", "key", "git_commits")


def cited(entry: EntrySummary) -> dict[str, Any]:
    """All that an entry's reference is made from, which its figures and its rank are no part of."""
    return {name: entry[name] for name in _CITED}  # type: ignore[literal-required]


def _reference(entry: Mapping[str, Any], title: str) -> str:
    fields = {
        "title": "{" + _tex(f"{entry['name']} (Marin speedrun, {title})") + "}",
        "author": "{" + _tex(entry["author"] or "unknown") + "}",  # double braces keep a name whole
        "year": (entry["date"] or "")[:4],
        "howpublished": _tex(next(iter(entry["run_links"]), "")) if entry["run_links"] else "",
        "note": f"entry {entry['key']}"
        + (f", commit {_tex(entry['git_commits'][0][:40])}" if entry["git_commits"] else ""),
    }
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@misc{{{entry['key']},\n{lines}}}\n"


_TEX_WORDS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "@": r"{@}", '"': r"{''}",
}  # fmt: skip


_TEX_SPECIAL = re.compile(r'[\\{}$&%#_~^@"]')


def _tex(text: str) -> str:
    return _TEX_SPECIAL.sub(lambda found: _TEX_WORDS[found[0]], wording.clean(text, 300))
