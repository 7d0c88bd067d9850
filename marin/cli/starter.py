"""Filling in the starter template: placeholders in Python source become the user's text, and never become code.

Text is escaped for the string literals that hold the placeholders; then the result is parsed and must equal the
template's own syntax tree with only those strings changed. What cannot meet that is refused.
"""

import ast
import re

from marin.errors import ConfigError

AUTHOR_NAME = "__SUBMISSION_AUTHOR_NAME__"
AFFILIATION = "__SUBMISSION_AUTHOR_AFFILIATION__"
URL = "__SUBMISSION_AUTHOR_URL__"
DESCRIPTION = "__SUBMISSION_DESCRIPTION__"
BRANCH = "__SUBMISSION_BRANCH__"
IMPORT_PATH = "__SUBMISSION_IMPORT_PATH__"

_PLACEHOLDER = re.compile(r"__SUBMISSION_[A-Z]+(?:_[A-Z]+)*__")


def _escape(text: str, quotes: str) -> str:
    """`text` as the inside of a string literal, an f-string's included (hence the braces)."""
    escaped = []
    for character in text:
        code = ord(character)
        if character in quotes or character == "\\":
            escaped.append("\\" + character)
        elif character in "{}" or not character.isprintable():
            escaped.append(
                f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
            )
        else:
            escaped.append(character)
    return "".join(escaped)


class _Fill(ast.NodeTransformer):
    """The template's syntax tree as it has to come out."""

    def __init__(self, values: dict[str, str | None]) -> None:
        self.values = values

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:  # the name that ast calls
        if not isinstance(node.value, str):
            return node
        if node.value in self.values and self.values[node.value] is None:
            return ast.Constant(None)

        def text_of(match: re.Match[str]) -> str:
            value = self.values.get(match[0])
            return match[0] if value is None else value

        return ast.Constant(_PLACEHOLDER.sub(text_of, node.value))


def _fill_text(source: str, values: dict[str, str | None], quotes: str) -> str:
    for placeholder, value in values.items():
        if value is None:
            source = re.sub(rf"([\"']){placeholder}\1", "None", source)

    def text_of(match: re.Match[str]) -> str:
        value = values.get(match[0])
        return match[0] if value is None else _escape(value, quotes)

    return _PLACEHOLDER.sub(text_of, source)  # one pass, so that a value is never searched for placeholders


def fill_template(source: str, values: dict[str, str | None], origin: str) -> str:
    """`source` with each placeholder replaced by its text; None turns a whole `"placeholder"` literal into `None`.

    Args:
        origin: names the template in messages.
    Raises:
        ConfigError: if the template is not Python, or holds a placeholder where no text can be put safely.
    """
    try:
        expected = ast.dump(_Fill(values).visit(ast.parse(source)))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"template {origin} is not valid Python ({error}): restore it, or pass --template") from None
    for quotes in ('"', "\"'"):  # apostrophes stay readable wherever they may
        filled = _fill_text(source, values, quotes)
        try:
            if ast.dump(ast.parse(filled)) == expected:
                return filled
        except (SyntaxError, ValueError):
            continue
    raise ConfigError(
        f"template {origin} has a placeholder outside a plain string, where text cannot be put safely: "
        f"write each __SUBMISSION_...__ as an ordinary string, or pass --template"
    )


def remaining_placeholders(source: str) -> list[tuple[str, int]]:
    """(placeholder, line number) of all that is left for the user to fill, in the order of the file."""
    return [
        (match[0], number)
        for number, line in enumerate(source.splitlines(), start=1)
        for match in _PLACEHOLDER.finditer(line)
    ]
