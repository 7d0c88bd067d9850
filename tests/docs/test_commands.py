"""Every command line that the documents show is one that its program accepts: names, flags and the number of arguments."""

import contextlib
import importlib
import io
import re
import shlex

import pytest
from documented_commands import DOCUMENTS, ROOT, shown_in_blocks

from marin.cli.main import COMMANDS, _command_parser
from marin.errors import MarinError
from marin.execution.flags import parse_flags


def _words(command: str) -> list[str]:
    """The words of a command, up to where it is piped, redirected or followed by another, without variables that it is given."""
    words = shlex.split(command)
    stop = next((n for n, word in enumerate(words) if word in ("|", ">", "&&", ";", "2>&1", "&")), len(words))
    words = words[:stop]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words


COMMAND_LINES = [
    (path.relative_to(ROOT).as_posix(), _words(command)) for path in DOCUMENTS for command in shown_in_blocks(path)
]
MARIN = [
    (name, words) for name, words in COMMAND_LINES if words[:1] == ["marin"] and len(words) > 1 and words[1] in COMMANDS
]
RUNS = [
    (name, words)
    for name, words in COMMAND_LINES
    if words[:2] == ["python", "-m"]
    and words[2].startswith("experiments.")
    and "marin_" not in words[2]
    and "--prefix" in words
]


def test_documents_show_each_command_of_marin() -> None:
    inline = {name for path in DOCUMENTS for name in re.findall(r"`marin ([a-z]+)", path.read_text(encoding="utf-8"))}
    assert COMMANDS.keys() - {words[1] for _, words in MARIN} - inline == set()
    assert len(RUNS) > 8


@pytest.mark.parametrize("document", sorted({name for name, _ in MARIN}))
def test_commands_of_marin_that_a_document_shows_are_accepted(document: str) -> None:
    wrong = []
    for name, words in MARIN:
        if name != document:
            continue
        parser = _command_parser(words[1], importlib.import_module(f"marin.cli.{words[1].replace('-', '_')}"))
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(io.StringIO()):
                parser.parse_args(words[2:])
        except SystemExit as ended:
            if ended.code:
                wrong.append(f"{shlex.join(words)}: {complaint.getvalue().splitlines()[-1]}")
    assert wrong == []


@pytest.mark.parametrize("document", sorted({name for name, _ in RUNS}))
def test_flags_of_experiments_that_a_document_shows_are_accepted(document: str) -> None:
    wrong = []
    for name, words in RUNS:
        if name == document:
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    parse_flags(words[3:], None)
            except (SystemExit, MarinError) as error:
                wrong.append(f"{shlex.join(words)}: {error}")
    assert wrong == []
