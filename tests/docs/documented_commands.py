"""The command lines that README.md and the pages under docs show, word for word, and the table that says what runs each.

A command is a line of a shell block, a line of any other block that begins with the name of a program, and inline code that does.
`commands.toml` is the table: the sessions that `test_commands_run.py` runs, what another test drives, and what cannot be run here.
docs/LOG.md is left out: it says what was run on a day.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("commands.toml")
DOCUMENTS = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "LOG.md"})]

_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n)+")
_COMMENT = re.compile(r"""((?:[^\s'"#]|(?<=\S)\#|\s(?!\#)|'[^']*'|"[^"]*")*)(?:\s\#.*)?""")
_PROGRAM = re.compile(
    r"(?:[A-Z_]+=(?:\"[^\"]*\"|[^\s\"]+)\s+)*(?:(?:marin|make) [a-zA-Z]|(?:python[\d.]*|bash|uvx?|pip|git|gh|curl|srun|sbatch|screen|torchrun|ssh|pytest) )"
)
_NAME_ALONE = re.compile(r"(?:python -m )?marin(?: [a-z]+)?")
_PLACEHOLDER = re.compile(r"[A-Z]+N?|exp[A-Z]|[A-Z]+/[A-Z]+")
_TESTS = re.compile(r"(?:make test PYTEST_ARGS=|pytest )(.+)")


def shown_in_blocks(document: Path) -> list[str]:
    """The command lines of a document's blocks, in its order, without comments; a continued line is one."""
    text = document.read_text(encoding="utf-8")
    blocks = [(m.start(), m[3], m[2].strip() in ("sh", "bash", "shell")) for m in _FENCE.finditer(text) if m[2].strip() in ("", "sh", "bash", "shell")]  # fmt: skip
    text = _FENCE.sub(lambda match: " " * len(match[0]), text)
    blocks += [(m.start(), m[0], False) for m in _INDENTED.finditer(text)]
    shown = []
    for _, body, is_shell in sorted(blocks):
        for line in body.replace("\\\n", " ").splitlines():
            if line.strip().startswith("#"):
                continue
            whole = _COMMENT.match(line)
            command = (whole[1] if whole else line).strip()
            if command and (is_shell or _PROGRAM.match(command)):
                shown.append(command)
    return shown


def shown_inline(document: Path) -> list[str]:
    """Inline code that is a command with something behind the name of its program; `a|b` says two."""
    text = _INDENTED.sub("", _FENCE.sub("", document.read_text(encoding="utf-8")))
    shown = []
    for code in re.findall(r"`([^`]+)`", text):
        code = " ".join(code.replace("\\|", "|").split())
        if _PROGRAM.match(code) and not _NAME_ALONE.fullmatch(code) and "..." not in code:
            several = re.search(r"\S+\|\S+", code)
            shown += [code.replace(several[0], one) for one in several[0].split("|")] if several else [code]
    return shown


def paths_of_tests(command: str) -> list[str] | None:
    """What a command that runs tests names of them; None for any other command."""
    found = _TESTS.fullmatch(command)
    return [word for word in found[1].split() if "/" in word] if found else None


def stands_for(shown: str, command: str) -> bool:
    """Whether inline code names this command: its words are there in their order, with anything for those in capitals.

    >>> stands_for("marin verify DIR", "marin verify experiments/speedrun/my_run --json")
    True
    """
    wanted, given = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", shown).split(), iter(command.split())
    return all(any(mine == theirs or _PLACEHOLDER.fullmatch(mine) for theirs in given) for mine in wanted)


@dataclasses.dataclass(frozen=True)
class Step:
    """A command of a session, and what shows that it worked.

    Args:
        run: the command, as the document has it.
        by_hand: shell lines that the reader's own hands, or an earlier page, have done before it.
        replace: what stands for a placeholder of the document; a value with a star is the one path that matches.
        status: the exit status.
        prints: a regular expression that is found in what it prints.
        makes: a path or pattern of what is there afterwards.
        serves: it is a server: a regular expression that is found in the page at the address that it prints. Ctrl-C ends it.
    """

    run: str
    by_hand: tuple[str, ...] = ()
    replace: Mapping[str, str] = dataclasses.field(default_factory=dict)
    status: int = 0
    prints: str = ""
    makes: str = ""
    serves: str = ""


@dataclasses.dataclass(frozen=True)
class Edit:
    """A text of a file that is another one in the reader's copy, so that a run takes seconds."""

    file: str
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Session:
    """Commands of one or more pages that are typed in one copy of the repository, one after the other.

    Args:
        name: of the test.
        documents: whose commands they are.
        store: whether the hello run has been made there before.
        environment: variables of the reader's shell.
        blocks: files that hold the n-th Python block of the first document.
        edits: of this session alone.
        grader: whether a server that grades documents stands in for a language model; its address is $GRADER.
    """

    name: str
    documents: tuple[str, ...]
    steps: tuple[Step, ...]
    store: bool = False
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    blocks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    grader: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """`commands.toml`.

    Args:
        small: edits of every copy.
        sessions: what is run.
        driven: commands by the test that drives them.
        cannot: commands by the reason why they cannot be run here.
    """

    small: tuple[Edit, ...]
    sessions: tuple[Session, ...]
    driven: Mapping[str, list[str]]
    cannot: Mapping[str, list[str]]

    @staticmethod
    def load() -> "Table":
        found: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        sessions = []
        for name, session in found["session"].items():
            steps = tuple(Step(**{**step, "by_hand": tuple(step.get("by_hand", ()))}) for step in session.pop("steps"))
            edits = tuple(Edit(**edit) for edit in session.pop("edits", ()))
            sessions.append(Session(name, tuple(session.pop("documents")), steps, edits=edits, **session))
        small = tuple(Edit(**edit) for edit in found["small"])
        return Table(small, tuple(sessions), found["driven"], found["cannot"])

    def entries(self) -> Iterator[tuple[str, str]]:
        """Each command with the place in the table where it stands."""
        for session in self.sessions:
            yield from ((step.run, f"session.{session.name}") for step in session.steps)
        for kind, groups in (("driven", self.driven), ("cannot", self.cannot)):
            for key, commands in groups.items():
                yield from ((command, f"{kind}.{key!r}") for command in commands)


def python_block(document: str, number: int) -> str:
    """The code of a document's Python block; the first is 0."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [m[3] for m in _FENCE.finditer(text) if m[2].strip() == "python"][number]
