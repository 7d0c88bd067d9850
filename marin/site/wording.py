"""How figures, names and links are written on pages.

Text and links may come from strangers' files. Escaping is the template engine's; here invisible and direction-changing
characters are made visible, lengths are capped, and a link that is not plain http(s) is dropped.
"""

import functools
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import markupsafe

_HOST = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}(:\d{1,5})?(?=[/?#]|$)")
# A link of this form is safe as it stands; parsing it as well would take a seventh of building a large site again.
_PLAIN_URL = re.compile(r"https?://[a-z0-9-]+(\.[a-z0-9-]+)+(/[A-Za-z0-9._~/-]*)?")
_LONGEST_URL = 2000
_LONG_PART = 10
_MOST_MARKS = 4  # more than any script in use puts on one letter
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MINUTE, _HOUR = 60, 3600


def clean(text: str, limit: int = 300) -> str:
    """`text` on one line, without control and bidirectional characters and piles of marks, at most `limit` characters long."""
    text = " ".join(text[: 4 * limit].split())
    if text.isascii() and text.isprintable():
        return text if len(text) <= limit else text[: limit - 1] + "…"
    # Cc, Cf: controls, zero-width and direction marks that make one name look like another. Co, Cs, Cn: no glyph.
    # Mn, Me: marks on a letter; a pile of them covers the lines above and below, which are other people's.
    kept, num_marks = [], 0
    for character in text:
        category = unicodedata.category(character)
        num_marks = num_marks + 1 if category in ("Mn", "Me") else 0
        is_shown = category not in ("Cc", "Cf", "Co", "Cs", "Cn") and num_marks <= _MOST_MARKS
        kept.append(character if is_shown else "\N{REPLACEMENT CHARACTER}")
    text = "".join(kept)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short_name(name: str, limit: int) -> str:
    """The last parts of a run's name, as many as fit: the last one is often no more than a size."""
    parts = clean(name, 200).split("/")
    for keep in range(len(parts), 1, -1):
        text = "/".join(parts[-keep:])
        if len(text) <= limit:
            return text if keep == len(parts) else f"…/{text}"
    text = "/".join(parts[-2:]) if len(parts) > 1 else parts[0]
    return text if len(text) <= limit else f"…{text[-(limit - 1) :]}"


@functools.lru_cache(maxsize=4096)
def breakable(text: str, limit: int = 160) -> markupsafe.Markup:
    """A name, escaped, that may break after a slash, and in long parts after a dash or underscore; the last part stands out."""
    group, slash, leaf = clean(text, limit).rpartition("/")

    def parts(name: str) -> markupsafe.Markup:
        whole = (str(markupsafe.escape(part)) for part in name.split("/"))
        broken = (re.sub(r"([_-])(?=.)", r"\1<wbr>", part) if len(part) > _LONG_PART else part for part in whole)
        return markupsafe.Markup("/<wbr>".join(broken))

    shown = markupsafe.Markup('<span class="leaf">{}</span>').format(parts(leaf))
    return (
        markupsafe.Markup('<span class="group">{}</span>').format(parts(group + slash))
        + markupsafe.Markup("<wbr>")
        + shown
        if slash
        else shown
    )


def safe_url(url: str | None) -> str | None:
    """An http(s) link, or None. A link without a scheme that begins like a host gets https."""
    url = (url or "").strip()
    if _PLAIN_URL.fullmatch(url) and len(url) <= _LONGEST_URL:
        return url
    if not url or len(url) > _LONGEST_URL or not url.isprintable() or re.search(r"[\s\\<>\"'`{}|^]", url):
        return None
    if url.startswith("//"):
        url = f"https:{url}"
    elif _HOST.match(url):
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or not port_is_valid:
        return None
    return None if "@" in parts.netloc else url  # a user name before the host hides where the link leads


def count(value: float | None) -> str | None:
    """Such as "154 M" or "1.43 B"."""
    if value is None:
        return None
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= 0.9995 * limit:
            return f"{_three_digits(value / limit)} {unit}"
    return f"{value:g}"


def text_size(size: int) -> str:
    """Such as "1,234.5 MB", "51.2 kB" or "7 B"."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e6:,.1f} MB" if size >= 999_950 else f"{size / 1e3:.1f} kB"


def flops(value: float | None) -> str | None:
    """Such as "8.26×10¹⁸"."""
    if value is None or value == 0 or not math.isfinite(value):
        return None if value is None else f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def power_of_ten(exponent: int, mantissa: float = 1) -> str:
    """Such as "10¹⁸" or "5×10¹⁸"."""
    return f"{f'{mantissa:g}×' if mantissa != 1 else ''}10{str(exponent).translate(_SUPERSCRIPTS)}"


def duration(seconds: float | None) -> str | None:
    """Such as "31 s", "18.7 min" or "15.1 h"."""
    if seconds is None:
        return None
    if abs(seconds) < 2 * _MINUTE:
        return f"{_three_digits(seconds)} s"
    if abs(seconds) < 2 * _HOUR:
        return f"{_three_digits(seconds / _MINUTE)} min"
    return f"{_three_digits(seconds / _HOUR)} h"


def hours(seconds: float | None) -> str | None:
    """Such as "1.65 h", for times that stand below each other."""
    return None if seconds is None else f"{seconds / _HOUR:.2f} h"


def percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}".replace("%", " %")


def bits(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def score(value: float) -> str:
    """With four digits, or as many as it takes not to be taken for a whole number: 0.999999 is not 1, which nothing may reach."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if value == round(value) or float(text) != round(value))


def margin(value: float) -> str:
    """Half of an interval: one digit, or two where the first is 1, after which a second one is up to half as much again."""
    return f"{value:.{2 if f'{value:.1e}'[0] == '1' else 1}g}"


def tick_texts(values: Sequence[float], write: Callable[[float, int], str]) -> list[str]:
    """What stands at an axis's ticks: `write` of each with four digits, or as many as tell them apart."""
    texts: list[str] = []
    for digits in range(4, 16):
        texts = [write(value, digits) for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"
