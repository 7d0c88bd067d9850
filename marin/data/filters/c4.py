"""The rules of C4 (Raffel et al. 2020, JMLR 21, section 2.2), in the order of its published code.

Lines go that end without a terminal punctuation mark, have fewer than 5 words or a very long one, or speak of
Javascript or of cookies and policies; citation marks of Wikipedia go from the lines that stay. Documents go that say
"lorem ipsum", hold a curly bracket, have fewer than 3 sentences after that, or hold a word of a list that is given.

The paper counts sentences with NLTK's Punkt model; here a sentence ends where ".", "!" or "?" is followed by white
space or the end. C4's three-sentence deduplication is in `marin.data.deduplication` (by paragraph), and its choice of
English needs a classifier (`filters.scores`).
"""

import re
from collections.abc import Sequence

from marin.data.filters.rules import Edit, Rule

_SOURCE = "Raffel et al. 2020, arXiv:1910.10683, section 2.2"
_END_MARKS = (".", "?", "!", '"', "”")
_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")


def line_rules(*, min_words: int = 5, max_word_chars: int = 1000) -> tuple[Edit, ...]:
    """What C4 does to lines.

    Args:
        min_words: a line with fewer words, split at white space, goes.
        max_word_chars: a line with a longer word goes.
    """
    settings = {"min_words": min_words, "max_word_chars": max_word_chars}
    return (Edit("C4 lines", keep_lines, settings, _SOURCE),)


def document_rules(
    *, min_sentences: int = 3, blocked_words: Sequence[str] = (), allow_curly_brackets: bool = False
) -> tuple[Rule, ...]:
    """What C4 drops documents for; used after `line_rules`.

    Args:
        min_sentences: a document with fewer sentences goes.
        blocked_words: a document with one of them goes, in any case; C4 used a public list of obscene words.
        allow_curly_brackets: leave out C4's rule against "{", which drops nearly all text about programming.
    """
    rules = [Rule("C4 lorem ipsum", lorem_ipsum, source=_SOURCE)]
    if not allow_curly_brackets:
        rules.append(Rule("C4 curly bracket", curly_bracket, source=_SOURCE))
    rules.append(Rule("C4 few sentences", few_sentences, {"min_sentences": min_sentences}, _SOURCE))
    if blocked_words:
        rules.append(Rule("C4 blocked word", blocked_word, {"blocked_words": sorted(blocked_words)}, _SOURCE))
    return tuple(rules)


def keep_lines(text: str, *, min_words: int, max_word_chars: int) -> str:
    """The lines that C4 keeps, without citation marks."""
    kept = []
    for line in text.split("\n"):
        line = _CITATION.sub("", line.strip()) if "[" in line else line.strip()
        if not line.endswith(_END_MARKS) or line.endswith("..."):
            continue
        words = line.split()
        lowered = line.lower()
        if (
            len(words) >= min_words
            and len(max(words, key=len)) <= max_word_chars
            and "javascript" not in lowered
            and not any(policy in lowered for policy in _POLICIES)
        ):
            kept.append(line)
    return "\n".join(kept)


def lorem_ipsum(text: str) -> str | None:
    return "lorem ipsum" if "lorem ipsum" in text.lower() else None


def curly_bracket(text: str) -> str | None:
    return "{" if "{" in text else None


def few_sentences(text: str, *, min_sentences: int) -> str | None:
    found = len(_SENTENCE_END.findall(text))
    return f"{found} sentences" if found < min_sentences else None


def blocked_word(text: str, *, blocked_words: Sequence[str]) -> str | None:
    lowered = text.lower()
    for word in blocked_words:
        if word.lower() in lowered and re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", lowered):
            return word
    return None
