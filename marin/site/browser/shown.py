"""How sizes, times and names are written.

Names and texts are strangers'. Escaping is the template engine's; here characters that are invisible or change the
direction of what follows are written out, as `\\u202e`, so that two different names never look the same.
"""

import datetime
import math
import re
import time
import unicodedata

import markupsafe

_HIDDEN = frozenset(
    chr(code) for code in (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
)
_RARE = re.compile("[^\\x20-\\x7e\u00a1-\u00ac\u00ae-\u02ff\u0370-\u1fff\u3000-\ud7ff]")


def name(text: str, limit: int = 300) -> str:
    """A name on one line, every character of it visible."""
    written = _RARE.sub(lambda match: _visible(match[0], keep=""), text[: limit + 1])
    return written if len(text) <= limit else written[:limit] + "…"


def path(text: str, limit: int = 300) -> markupsafe.Markup:
    """A name, escaped, that may break after a slash, a dash, a dot or an underscore."""
    return markupsafe.Markup(re.sub(r"([/_.-])(?=.)", r"\1<wbr>", str(markupsafe.escape(name(text, limit)))))


def line(text: str, limit: int = 300) -> str:
    """The beginning of a text on one line, white space as one space."""
    return name(" ".join(text[: 4 * limit].split()), limit)


def content(text: str) -> str:
    """A text of many lines: tabs and line ends stay, other controls and direction marks are written out."""
    return _RARE.sub(lambda match: _visible(match[0], keep="\n\t"), text.replace("\r\n", "\n"))


def size(count: float | None) -> str:
    """Such as "544 B", "5.4 kB" or "36.9 MB"."""
    if count is None:
        return "—"
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * limit:
            value = count / limit
            return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"
    return f"{count:.0f} B"


def clock(seconds: float | None) -> str:
    """A time as "2026-11-21 16:42:07" in UTC."""
    if seconds is None:
        return "—"
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return "—"


def ago(seconds: float | None, now: float | None = None) -> str:
    """How long ago that was, such as "3 min ago"."""
    if seconds is None:
        return "—"
    passed = (time.time() if now is None else now) - seconds
    if passed < 0:
        return "in the future" if passed < -60 else "just now"
    for limit, length, unit in (
        (5, 0, ""),
        (90, 1, "s"),
        (5400, 60, "min"),
        (129600, 3600, "h"),
        (math.inf, 86400, "days"),
    ):
        if passed < limit:
            return f"{passed / length:.0f} {unit} ago" if length else "just now"
    raise AssertionError


def timestamp(value: object) -> float | None:
    """Seconds since 1970 of an ISO date in a record; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.datetime.fromisoformat(value)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def number(value: float) -> str:
    """A figure for people: up to five digits, with thousands apart."""
    if value != value or value in (math.inf, -math.inf):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.4g}"
    return f"{value:.5g}" if abs(value) >= 1e-3 else f"{value:.3g}"


def _visible(character: str, keep: str) -> str:
    if character in keep:
        return character
    code = ord(character)
    if character not in _HIDDEN and unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"):
        return character
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
