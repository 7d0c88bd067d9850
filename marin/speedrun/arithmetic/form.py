"""What a results file says in words: its author, its description, and when the run was completed."""

import datetime
import re

from marin.speedrun.results import TIMESTAMP, RunInfo
from marin.speedrun.verdict import Finding

_PLACEHOLDERS = ("your name", "your affiliation", "(none given)")
_FLAGS = {
    "author.name": "--author", "author.affiliation": "--author and --affiliation", "author.url": "--author and --url",
    "description": "--description",
}  # fmt: skip
_USUAL_TIMESTAMP = re.compile(r"[0-9]{4}(-[0-9]{2}){2} ([01][0-9]|2[0-3])(:[0-9]{2}){2} UTC")


def check(info: RunInfo) -> list[Finding]:
    """Findings about the submission's form: nothing is left to fill in, and the time is one."""
    found: list[Finding] = []
    texts = {
        "author.name": info.author.name, "author.affiliation": info.author.affiliation, "author.url": info.author.url or "-",
        "description": info.description,
    }  # fmt: skip
    for field, text in texts.items():
        if is_placeholder(text):
            found.append(
                Finding(
                    "submission",
                    "error",
                    field,
                    f"{field} is still the placeholder {text[:80]!r}: {_to_do(field)}",
                )
            )
        elif not text.strip() and field != "author.affiliation":
            found.append(Finding("submission", "error", field, f"{field} is empty: {_to_do(field)}"))
    stamp = info.run_completion_timestamp
    if stamp is None:
        found.append(
            Finding("submission", "warning", "run_completion_timestamp", "the time of completion is not stated")
        )
    elif parse_timestamp(stamp) is None:
        message = f"{stamp[:40]!r} is not a time: expected such as '2025-06-28 17:29:21 UTC'"
        found.append(Finding("submission", "error", "run_completion_timestamp", message))
    return found


def _to_do(field: str) -> str:
    """What mends it: results keep what the experiment's file said when they were written."""
    return (
        "fill it in in the experiment's file and run that again, which trains nothing if only this changed, or give marin submit"
        f" {_FLAGS[field]}"
    )


def is_placeholder(text: str) -> bool:
    """Whether a text is one that a template or a pipeline leaves for its user to fill in."""
    plain = text.strip()
    return (
        re.search(r"__[A-Z][A-Z_]*__", plain) is not None or plain.lower() in _PLACEHOLDERS or plain.startswith("TODO")
    )


def parse_timestamp(text: str | None) -> datetime.datetime | None:
    """A completion time of the schema's form, or None if it has another."""
    try:
        if text is not None and _USUAL_TIMESTAMP.fullmatch(text):  # `strptime` takes ten times as long
            return datetime.datetime.fromisoformat(text.removesuffix(" UTC")).replace(tzinfo=datetime.UTC)
        return datetime.datetime.strptime(text or "", TIMESTAMP).replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
