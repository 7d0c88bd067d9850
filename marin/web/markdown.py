"""Texts of strangers in the Markdown that we write: a cell of a table, in which nothing is anything but text.

A document's text or a source's name can hold Markdown of its own: a link that looks like ours, an image that is fetched from
elsewhere as soon as the report is opened, the name of a person whom a code host then notifies. Escaped are the characters that
begin any of these or end the cell, and no other, so that figures and plain words stand as they are.
"""

import re

_BREAK = "&#8203;"  # no width: what it stands in is neither an address nor a name, and looks the same
_ESCAPES = {
    "\\": "\\\\",
    "|": "\\|",
    "`": "\\`",
    "[": "\\[",
    "]": "\\]",
    "!": "\\!",
    "<": "&lt;",
    "@": f"@{_BREAK}",
    "://": f":{_BREAK}//",
}
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)) + r"|\bwww(?=\.)", re.IGNORECASE)


def markdown_cell(text: str) -> str:
    """`text` as one line of Markdown without links, images, code, tags, mentions and ends of cells."""
    return _SPECIAL.sub(lambda found: _ESCAPES.get(found[0], found[0] + _BREAK), " ".join(text.split()))
