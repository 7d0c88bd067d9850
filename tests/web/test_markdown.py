"""Texts of strangers in a table's cell are text, whatever they hold."""

import re

import pytest

from marin.web.markdown import markdown_cell

HOSTILE = [
    "[the card](https://evil.example)",
    "![](https://evil.example/pixel.png)",
    "[the card][1]",
    "\\[the card\\](https://evil.example) \\",
    "<img src=x onerror=alert(1)> <https://evil.example>",
    "`code` | next | cell \\| and ``more``",
    "two\nlines\r\n# heading",
    "write to a@b.example",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_one_cell_of_text(text: str) -> None:
    markdown_it = pytest.importorskip("markdown_it", reason="the Python package markdown-it-py is not installed")
    table = f"| a | b |\n|---|---|\n| {markdown_cell(text)} | end |\n"
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(table)
    cells = [token for token in tokens if token.type == "inline"][2:]
    assert len(cells) == 2 and cells[1].content == "end"
    assert {child.type for child in cells[0].children} <= {"text"}
    shown = "".join(child.content for child in cells[0].children).replace("\u200b", "")
    assert shown == " ".join(text.split())


def test_no_person_is_mentioned_and_no_plain_address_becomes_a_link() -> None:
    cell = markdown_cell("@octocat see HTTPS://evil.example or WWW.evil.example, a@b.example")
    assert not re.search(r"@\w|:(//)|www\.", cell, re.IGNORECASE)


@pytest.mark.parametrize("plain", ["learning_rate=0.005", "3.2 +- 0.1 (n = 4)", "a*b, c/d: 5 %", "grün"])
def test_plain_words_and_figures_stand_as_they_are(plain: str) -> None:
    assert markdown_cell(plain) == plain
