"""Every command line that the documents show is one that its program accepts: names, flags and the number of arguments."""

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin.cli.main import COMMANDS, _command_parser
from marin.errors import MarinError
from marin.execution.flags import parse_flags

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^(?:    .*\n)+", re.MULTILINE)


def _command_lines(document: Path) -> Iterator[list[str]]:
    """The words of each line of a shell block, without comments and redirections; continued lines are one."""
    text = document.read_text(encoding="utf-8")
    blocks = [body for _, language, body in _FENCE.findall(text) if language in ("", "sh", "bash", "shell")]
    for block in [*blocks, *_INDENTED.findall(_FENCE.sub("", text))]:
        for line in block.replace("\\\n", " ").splitlines():
            with contextlib.suppress(ValueError):  # prose with an apostrophe
                words = shlex.split(line.strip(), comments=True)
                stop = next(
                    (n for n, word in enumerate(words) if word in ("|", ">", "&&", ";", "2>&1", "&")), len(words)
                )
                words = [word for word in words[:stop] if word != "..."]
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                yield words


COMMAND_LINES = [(path.relative_to(ROOT).as_posix(), words) for path in DOCUMENTS for words in _command_lines(path)]
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
