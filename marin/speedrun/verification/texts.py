"""The texts of a submission: names that pass for others, and texts that are programs to something that shows them.

Pages escape every text, so nothing here is a defence: it tells a person what was tried. A name that mixes scripts within a word
or hides characters cannot be read as what it is, so the file is not taken. Markup, formulas and template code in a text
hold a submission until its author writes plain words.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from marin.speedrun import web_address
from marin.speedrun.results import RunInfo, plain_name
from marin.speedrun.verdict import Finding, Severity

_MOST_FOUND = 8
_NON_JOINER = "\N{ZERO WIDTH NON-JOINER}"
_JOINERS = (_NON_JOINER, "\N{ZERO WIDTH JOINER}")
_VIRAMA = 9  # the combining class
_MAX_NAME = 200
_SCRIPTS = (
    "LATIN",
    "CYRILLIC",
    "GREEK",
    "ARMENIAN",
    "CHEROKEE",
    "COPTIC",
    "GEORGIAN",
    "HEBREW",
    "ARABIC",
    "LISU",
    "MATHEMATICAL",
    "FULLWIDTH",
)
# Of which a letter that is not listed below may look like a Latin one all the same.
_LIKE_LATIN = ("LATIN", "CHEROKEE", "COPTIC", "LISU", "MATHEMATICAL", "FULLWIDTH")
_NO_LATIN = re.compile(r"[^a-z0-9]+")
# Letters and digits that look like a Latin letter in common fonts: the part of Unicode's confusables that names use.
_LOOKS_LIKE = {
    **dict(zip("аесорхуіјѕһԁԛԝвкмнтгпьӏ", "aecopxyijshdqwbkmhtrnbl", strict=True)),
    **dict(zip("αορνυκιηχτγωερμβ", "aopvukinxtywepub", strict=True)),
    **dict(zip("օոսեցհ", "onuegh", strict=True)),
    **dict(zip("01|!5$ıƖɑɡℓ", "olllssilagl", strict=True)),
    "ё": "e", "ѐ": "e", "ø": "o", "ł": "l", "đ": "d",
}  # fmt: skip
_MARKUP = re.compile(
    r"</?(script|svg|img|iframe|object|embed|link|meta|style|base|form|input|math|body|html|video|audio|details|a|b|i|div|p)\b"
    r"|<!--|<!\[CDATA\[|<\?xml|\bon[a-z]{4,20}\s*=\s*['\"\w(]|javascript\s*:|vbscript\s*:|data\s*:\s*text/html|&#x?[0-9a-f]+;|&lt;script",
    re.IGNORECASE,
)
_FORMULA = re.compile(
    r"^\s*(=|@[A-Za-z]+\(|[+\-]\s*[A-Za-z]+\w*[!(|]|[+\-]\d+[+\-*/]\d|[\t\r])|\bcmd\s*\|", re.IGNORECASE
)
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\$\{.*?\}|<%.*?%>|#\{.*?\}|\{#.*?#\}", re.DOTALL)
_PATH = re.compile(r"(^|[/\\])\.\.([/\\]|$)|^file:|\x00")


def skeleton(name: str) -> str:
    """What a name looks like: equal for names that a reader takes for one another."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    seen = "".join(
        _LOOKS_LIKE.get(c, c)
        for c in plain
        if not unicodedata.combining(c) and unicodedata.category(c) not in ("Cf", "Cc")
    )
    latin = _NO_LATIN.sub(
        lambda found: "".join(filter(_looks_like_no_latin, found[0])), seen.replace("rn", "m").replace("vv", "w")
    )
    return latin or "".join(seen.split())


def _looks_like_no_latin(character: str) -> bool:
    """Whether a character is a letter that tells two names apart, as Chinese ones do beside a Latin word."""
    if unicodedata.category(character) not in ("Lu", "Ll", "Lo"):
        return False
    return _script(character) not in _LIKE_LATIN and "FILLER" not in unicodedata.name(character, "")


def printable(text: str) -> str:
    """A text that a terminal and a log show as it is: control characters and lone surrogates are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def same_name(one: str, other: str) -> bool:
    """Whether two spellings are one name but for case, spaces and the composition of accents."""
    return plain_name(one) == plain_name(other)


def check_texts(info: RunInfo, known_authors: frozenset[str] = frozenset()) -> list[Finding]:
    """Args:
    known_authors: names that stand on the board already.
    """
    return [*_check_name(info, known_authors), *_check_links(info), *_check_all(info)][: 3 * _MOST_FOUND]


def _check_name(info: RunInfo, known_authors: frozenset[str]) -> Iterator[Finding]:
    for field, text in (("author.name", info.author.name), ("author.affiliation", info.author.affiliation)):
        if len(text) > _MAX_NAME:
            yield _found("error", field, f"{field} has {len(text):,} characters, at most {_MAX_NAME} are shown")
            continue
        hidden = next((text[place] for place in range(len(text)) if _hides(text, place)), None)
        if hidden is not None:
            yield Finding(
                "parsed",
                "error",
                field,
                f"{field} {_escaped(text)} hides the character U+{ord(hidden):04X}: write it without",
            )
            continue
        if (mixed := mixed_scripts(text)) is not None:
            word, scripts = mixed
            yield Finding(
                "parsed", "error", field, f"{field}: {_escaped(word)} mixes {scripts} letters, so it looks like another name"
            )  # fmt: skip
    name = info.author.name
    for known in sorted(known_authors):
        if not same_name(name, known) and skeleton(name) == skeleton(known):
            yield Finding(
                "parsed",
                "error",
                "author.name",
                f"author.name {_escaped(name)} looks like the known author {_escaped(known)}, and is written otherwise",
            )
            break


def _hides(text: str, place: int) -> bool:
    """Whether a character cannot be seen; a joiner can where it shapes letters, after a virama or between Arabic ones (RFC 5892, A.1)."""
    character = text[place]
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return False
    before, after = text[max(0, place - 1) : place], text[place + 1 : place + 2]
    if character not in _JOINERS or not after.isalpha():
        return True
    is_arabic = all(unicodedata.name(c, "").startswith("ARABIC LETTER") for c in (before or " ", after))
    return not (unicodedata.combining(before or " ") == _VIRAMA or (character == _NON_JOINER and is_arabic))


def mixed_scripts(text: str) -> tuple[str, str] | None:
    """The first word of a text whose letters are of several scripts, and which these are; None where there is none."""
    for word in re.findall(r"\w+", text):
        scripts = sorted({s for c in word if c.isalpha() and (s := _script(c))})
        if len(scripts) > 1:
            return word, " and ".join(s.title() for s in scripts)
    return None


def _check_links(info: RunInfo) -> Iterator[Finding]:
    for field, link in (("author.url", info.author.url), ("wandb_run_link", info.wandb_run_link)):
        if not link:
            continue
        problem = web_address.problem_of(link)
        if problem is None and (mixed := mixed_scripts(web_address.host_of(link) or "")) is not None:
            problem = f"is no web address: its host mixes {mixed[1]} letters, so it looks like another. Give yours"
        if problem is not None:
            yield _found("error", field, f"{field} {_escaped(link)} {problem}, or null")


def _check_all(info: RunInfo) -> Iterator[Finding]:
    found = 0
    pending: list[tuple[str, Any]] = [("", info.to_json())]
    while pending and found < _MOST_FOUND:
        field, value = pending.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                pending.append((f"{field}.{key}".strip(".")[:80], inner))
                pending.append((f"{field} key"[:80], key))
        elif isinstance(value, list):
            pending.extend((field, inner) for inner in value)
        elif isinstance(value, str) and (what := _program_in(value)):
            found += 1
            severity: Severity = "warning" if field == "sample" else "error"  # a model may write anything
            yield _found(
                severity, field, f"{_escaped(field)} holds {what}, which is shown as plain text: write it in words"
            )


_ANY_SIGN = re.compile(r"[<&=@|{%$#\x00\t\r:]|\.\.|^\s*[+\-]")  # most texts have none, and need no closer look


def _program_in(text: str) -> str | None:
    head = text[:20_000]
    if not _ANY_SIGN.search(head):
        return None
    if _MARKUP.search(head):
        return "markup"
    if _TEMPLATE.search(head):
        return "template code"
    if _FORMULA.search(head):
        return "a spreadsheet formula"
    if _PATH.search(head):
        return "a path that leads elsewhere"
    return None


def _script(character: str) -> str | None:
    name = unicodedata.name(character, "")
    return next((script for script in _SCRIPTS if name.startswith(script)), None)


def _escaped(text: str) -> str:
    return (
        text[:80].encode("unicode_escape", "surrogatepass").decode()
        if not text.isascii() or not text.isprintable()
        else repr(text[:80])
    )


def _found(severity: Severity, field: str, message: str) -> Finding:
    return Finding("submission", severity, "".join(c if c.isprintable() else "?" for c in field), message)
