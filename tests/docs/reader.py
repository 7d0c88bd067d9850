"""A reader of the documents: a copy of the repository, a shell in it, and commands typed one after the other.

The copy is a git clone with the working tree's files over it, in which `Table.small` makes runs short; that is committed, since
results name their commit. `marin` and `python` are those of the environment that runs the tests, and import the copy.
"""

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path

from documented_commands import ROOT, Edit, Session, Step, Table, python_block

# The machine may be busy with other tests: a command that hangs is ended at last, one that is slow is not.
_PATIENCE = 3600.0
HELLO = "python -m experiments.speedrun.hello_world.main --force_run_failed true --prefix local_store"


def edited(text: str, edit: Edit) -> str:
    """The file's text after the edit, whose old text must stand there once."""
    assert text.count(edit.old) == 1, (
        f"tests/docs/commands.toml: {edit.file} has {edit.old!r} {text.count(edit.old)} times"
    )
    return text.replace(edit.old, edit.new)


def _make_small(edits: Iterable[Edit], folder: Path) -> None:
    """Makes the edits and commits them: runs by files that are not as in their commit would be held for a person."""
    for edit in edits:
        path = folder / edit.file
        path.write_text(edited(path.read_text(encoding="utf-8"), edit), encoding="utf-8")
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--allow-empty", "-m", "Runs of seconds")


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Ada Lovelace", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def copy_repository(folder: Path, table: Table) -> None:
    """Makes the copy, with the edits that all sessions share."""
    _git(ROOT, "clone", "--quiet", "--local", str(ROOT), str(folder))
    here = set(_git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")) - {""}
    for name in here:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    _make_small(table.small, folder)


@dataclasses.dataclass
class Reader:
    """Somebody at a terminal in `folder`, a copy of the repository."""

    folder: Path
    environment: dict[str, str]
    typed: list[str] = dataclasses.field(default_factory=list)

    @staticmethod
    def create(folder: Path, environment: dict[str, str], session: Session, template: Path) -> "Reader":
        """A reader with a clone of `template` in `folder`, with its outputs where the session begins with them."""
        _git(folder.parent, "clone", "--quiet", "--local", str(template), str(folder))
        if session.store:
            shutil.copytree(template / "local_store", folder / "local_store", symlinks=True)
        _make_small(session.edits, folder)
        for path, number in session.blocks.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if "/" in path:
                (folder / path).parent.joinpath("__init__.py").touch()
            (folder / path).write_text(python_block(session.documents[0], number), encoding="utf-8")
        return Reader.at(folder, environment | dict(session.environment))

    @staticmethod
    def at(folder: Path, environment: dict[str, str]) -> "Reader":
        home = folder.parent / f"{folder.name}_home"
        home.mkdir()
        (home / ".gitconfig").write_text("[user]\n\tname = Ada Lovelace\n\temail = 7+ada@users.noreply.github.com\n")
        if Path(sys.prefix, "bin", "activate").is_file():
            (folder / ".venv").symlink_to(sys.prefix)
        else:  # the tests run in an environment that needs no activation
            (folder / ".venv" / "bin").mkdir(parents=True)
            (folder / ".venv" / "bin" / "activate").touch()
        path = f"{Path(sys.executable).parent}:{environment['PATH']}"
        return Reader(folder, environment | {"HOME": str(home), "PATH": path, "PYTHONPATH": str(folder)})

    def type(self, step: Step) -> None:
        """Types a command of the documents, after what was done by hand before it, and looks at what came of it."""
        for line in step.by_hand:
            self._run(line, 0)
        line = self._filled(step)
        if step.serves:
            said = self._serve(line, step)
        else:
            said = self._run(line, step.status)
        assert re.search(step.prints, said, re.MULTILINE), (
            f"`{line}` did not print {step.prints!r}, but\n{said[-3000:]}"
        )
        assert not step.makes or list(self.folder.glob(step.makes)), (
            f"`{line}` did not make {step.makes}; it printed\n{said[-3000:]}"
        )

    def _filled(self, step: Step) -> str:
        line = step.run
        for old, new in step.replace.items():
            if "*" in new:
                found = sorted(self.folder.glob(new))
                assert len(found) == 1, f"{len(found)} paths are at {new}, not one: {found}"
                new = str(found[0].relative_to(self.folder))
            assert old in line, f"tests/docs/commands.toml: `{line}` has no {old!r}"
            line = line.replace(old, new)
        return line

    def _start(self, line: str, output: Path) -> subprocess.Popen[bytes]:
        script = "\n".join(["set -e -o pipefail", *self.typed, line])
        with output.open("wb") as stream:
            return subprocess.Popen(
                ["bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _run(self, line: str, status: int) -> str:
        output = self.folder.parent / f"{self.folder.name}.out"
        process = self._start(line, output)
        try:
            process.wait(_PATIENCE)
        finally:
            _end(process)
        said = output.read_text(encoding="utf-8", errors="replace")
        assert process.returncode == status, (
            f"`{line}` ended with status {process.returncode}, not {status}:\n{said[-3000:]}"
        )
        assert "Traceback (most recent call last)" not in said, f"`{line}` printed\n{said[-3000:]}"
        if line.startswith(("export ", ". ")):
            self.typed.append(line)
        return said

    def _serve(self, line: str, step: Step) -> str:
        """Starts the server, reads the page at the address that it prints, and ends it as Ctrl-C does."""
        output = self.folder.parent / f"{self.folder.name}.out"
        process = self._start(line, output)
        try:
            address = self._address(process, output)
            # A key in the address becomes a cookie.
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address, timeout=_PATIENCE) as answer:
                page = answer.read().decode("utf-8")
            assert re.search(step.serves, page), f"the page of `{line}` has no {step.serves!r}:\n{page[:2000]}"
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_PATIENCE)
        finally:
            _end(process)
        said = output.read_text(encoding="utf-8", errors="replace")
        assert process.returncode == step.status and "Traceback" not in said, (
            f"`{line}` ended with {process.returncode} after Ctrl-C, not {step.status}:\n{said[-3000:]}"
        )
        return said

    def _address(self, process: subprocess.Popen[bytes], output: Path) -> str:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            found = re.search(r"open (http://\S+)", said := output.read_text(encoding="utf-8", errors="replace"))
            if found:
                return found[1]
            assert process.poll() is None, f"the server ended:\n{said[-3000:]}"
            time.sleep(0.2)
        raise AssertionError(f"the server printed no address:\n{said[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leaves no process of the command behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def check_all(reader: Reader, steps: Sequence[Step]) -> None:
    """Types all commands of a session; the first that does not do what its step says fails the test with its output."""
    for step in steps:
        started = time.monotonic()
        reader.type(step)
        print(f"{time.monotonic() - started:6.1f} s  {step.run}")
