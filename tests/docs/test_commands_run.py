"""Every command that the documents show is run, or driven by another test, or named with the reason why it cannot be run here.

`commands.toml` is the table. A command in a document that is not in it fails the quick test below; `make docs-commands` runs the
sessions as a reader would type them.
"""

import contextlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from documented_commands import (
    DOCUMENTS,
    ROOT,
    Session,
    Table,
    paths_of_tests,
    python_block,
    shown_in_blocks,
    shown_inline,
    stands_for,
)
from reader import HELLO, Reader, check_all, copy_repository, edited
from scripted_endpoint import Received, Reply, serving

TABLE = Table.load()
WHERE = {command: place for command, place in TABLE.entries()}
BLOCKS = [(path.relative_to(ROOT).as_posix(), command) for path in DOCUMENTS for command in shown_in_blocks(path)]
INLINE = [(path.relative_to(ROOT).as_posix(), command) for path in DOCUMENTS for command in shown_inline(path)]

# --- what counts as a command -------------------------------------------------------------------------------------

PAGE = """
Type `marin verify DIR`, `marin cache info\\|head DIR` or `marin`, not `local_store`.

```sh
marin power --sd 1 \\
  --effect 2   # runs
# a comment
echo '# no comment' "a # b"
```

```
output of a command
make docs    # in a block of any language
```

    python rates.py
    pythons are snakes
"""


def test_commands_of_a_page_are_found_without_comments_and_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    expected = [
        "marin power --sd 1    --effect 2",
        """echo '# no comment' "a # b\"""",
        "make docs",
        "python rates.py",
    ]
    assert shown_in_blocks(page) == expected
    assert shown_inline(page) == ["marin verify DIR", "marin cache info DIR", "marin cache head DIR"]


@pytest.mark.parametrize(
    ("shown", "command", "expected"),
    [
        ("marin verify DIR", "marin verify experiments/speedrun/my_run", True),
        ("marin verify --evaluate", "marin verify NAME --evaluate RUN_DIR --trust-code", True),
        ("marin verify DIR --rerun N", "marin verify NAME --evaluate RUN_DIR", False),
        ("marin cache head DIR", "marin cache info local_store/x", False),
        ("SR_SIZES=cpu python -m x", "python -m x --dry_run true", True),
        ("python -m x", "python -m y", False),
    ],
)
def test_inline_code_stands_for_a_command_of_its_words(shown: str, command: str, expected: bool) -> None:
    assert stands_for(shown, command) is expected


# --- the table ----------------------------------------------------------------------------------------------------


def _in_table(command: str) -> bool:
    return command in WHERE or paths_of_tests(command) is not None


def test_every_command_of_a_document_is_in_the_table() -> None:
    missing = [(document, command) for document, command in BLOCKS if not _in_table(command)]
    missing += [
        (document, command)
        for document, command in INLINE
        if not _in_table(command) and not any(stands_for(command, other) for other in WHERE)
    ]
    assert not missing, (
        "tests/docs/commands.toml has no entry for\n"
        + "".join(f"  {document}: {command}\n" for document, command in missing)
        + "add each to a [session] that runs it, to [driven] under the test that does, or to [cannot] with the reason"
    )


def test_table_has_no_command_that_no_document_shows() -> None:
    shown = {command for _, command in BLOCKS + INLINE}
    assert [f"{place}: {command}" for command, place in WHERE.items() if command not in shown] == []


def test_command_has_one_place_in_the_table() -> None:
    places = Counter(command for command, place in TABLE.entries() if not place.startswith("session."))
    assert [command for command, count in places.items() if count > 1] == []
    both = [command for command, place in TABLE.entries() if place.startswith("session.") and command in places]
    assert both == []


@pytest.mark.parametrize("session", TABLE.sessions, ids=lambda session: session.name)
def test_session_runs_what_its_documents_show_and_looks_at_what_comes_of_it(session: Session) -> None:
    shown = {command for document, command in BLOCKS + INLINE if document in session.documents}
    assert [step.run for step in session.steps if step.run not in shown] == []
    silent = [step.run for step in session.steps if not (step.prints or step.makes or step.serves)]
    assert [run for run in silent if not run.startswith(("export ", ". ", "MARIN_PROCESS_ID=1 "))] == []


def test_edits_and_code_blocks_of_the_table_are_there() -> None:
    texts: dict[str, str] = {}
    for edit in TABLE.small:
        texts[edit.file] = edited(texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8"), edit)
    for session in TABLE.sessions:
        of_session = dict(texts)
        for edit in session.edits:
            text = of_session.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
            of_session[edit.file] = edited(text, edit)
        assert all(python_block(session.documents[0], number) for number in session.blocks.values())


def _subject(command: str) -> str:
    """What a command runs: the stem of a script, the last part of a module, a target of make, a command of `marin`."""
    if script := re.search(r"([\w-]+)\.(?:py|sh)\b", command):
        return script[1]
    if module := re.search(r"-m ([\w.]+)", command):
        return module[1].removesuffix(".main").split(".")[-1]
    named = re.match(r"(?:marin|make(?: [A-Z]+=\S+)?|uv) ([\w-]+)", command)
    return named[1] if named else ""


def test_file_that_drives_a_command_is_there_and_names_it() -> None:
    for path, commands in TABLE.driven.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not path.endswith(".py") or re.search(r"^def test_", text, re.MULTILINE), path
        assert [command for command in commands if _subject(command) not in text] == [], path
        assert all(_subject(command) or command.startswith("export ") for command in commands)


def test_flags_of_benchmarks_that_a_document_shows_are_in_their_files() -> None:
    shown = {command for _, command in BLOCKS + INLINE if command.startswith("python -m benchmarks.")}
    wrong = []
    for command in shown:
        text = (ROOT / "benchmarks" / f"{_subject(command)}.py").read_text(encoding="utf-8")
        for name in re.findall(r"parser = (\w+)\.parser_of", text):  # a benchmark may take another one's flags
            text += (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
        wrong += [(command, flag) for flag in re.findall(r" (--[\w-]+)", command) if f'"{flag}"' not in text]
    assert shown and wrong == []


def test_tests_that_a_document_runs_are_there() -> None:
    named = {(document, path) for document, command in BLOCKS + INLINE for path in paths_of_tests(command) or ()}
    assert len(named) > 20
    assert [(document, path) for document, path in named if not (ROOT / path).exists()] == []


# --- the sessions -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shell(plain_environment: dict[str, str]) -> dict[str, str]:
    """The variables of a reader's shell; compiled programs are kept from one run of the tests to the next."""
    return plain_environment | {"MARIN_COMPILE_CACHE": os.environ["MARIN_COMPILE_CACHE"]}


@pytest.fixture(scope="module")
def template(shell: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository after its hello run."""
    try:
        subprocess.run(["git", "rev-parse", "--verify", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git repository, so there is nothing to clone")
    folder = tmp_path_factory.mktemp("documents") / "template"
    copy_repository(folder, TABLE)
    Reader.at(folder, shell)._run(HELLO, 0)
    return folder


def grade(received: Received) -> Reply:
    """Longer pages are better; the same for every prompt, so that two of them agree."""
    return Reply(f"Because. Final Score: {min(len(received.message) // 1000, 5)}")


@contextlib.contextmanager
def grader(wanted: bool) -> Iterator[dict[str, str]]:
    """$GRADER: the address of a server in the place of a language model."""
    if not wanted:
        yield {}
        return
    with serving(grade) as endpoint:
        yield {"GRADER": endpoint.url}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("session", TABLE.sessions, ids=lambda session: session.name)
def test_commands_of_the_documents_do_what_they_say(
    session: Session, template: Path, shell: dict[str, str], tmp_path: Path
) -> None:
    with grader(session.grader) as variables:
        reader = Reader.create(tmp_path / "marin", shell | variables, session, template)
        check_all(reader, session.steps)
