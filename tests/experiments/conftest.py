"""Experiments as people run them: processes of their own, under a prefix of their own, with an environment of their own."""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

MINIATURE = Path(__file__).with_name("miniature.py")


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    status: int
    out: str
    err: str

    def steps(self) -> dict[str, tuple[str, str, Path]]:
        """What a dry run said of each step, by name: what it would do, why, and the output path."""
        found = re.findall(r"^(would(?: not)? \w+) +(\S+): (.+)\n +(/.+)$", self.out, re.MULTILINE)
        return {name: (action, reason, Path(path)) for action, name, reason, path in found}


@dataclass(frozen=True)
class Shell:
    """Runs Python as a person does from `directory`."""

    directory: Path
    environment: dict[str, str]

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.directory,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> Finished:
        return finish(self.start(*arguments, **variables))


def finish(process: subprocess.Popen[str]) -> Finished:
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return Finished(process.returncode, out, err)


@dataclass(frozen=True)
class Miniature:
    """The experiment of `miniature.py` in a git repository of its own, with its store beside it."""

    shell: Shell
    store: Path

    @staticmethod
    def create(directory: Path, environment: dict[str, str], **settings: str) -> "Miniature":
        miniature = Miniature(Shell(directory, environment), directory / "store").edited(**settings)
        (directory / ".gitignore").write_text("store/\n")
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
        for command in (("init", "--quiet"), ("add", "."), (*identity, "commit", "--quiet", "-m", "An experiment")):
            subprocess.run(["git", *command], cwd=directory, env=environment, check=True)
        return miniature

    def edited(self, **settings: str) -> "Miniature":
        """The same experiment in the same place, with lines such as `STEPS = 30` saying something else."""
        text = MINIATURE.read_text()
        for name, value in settings.items():
            text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
            assert count == 1, f"{MINIATURE} has no line `{name} = ...`"
        (self.shell.directory / "miniature.py").write_text(text)
        return self

    def copied(self, directory: Path, *, trained: bool) -> "Miniature":
        """A copy with its store; without `trained`, only the data steps are done there."""
        shutil.copytree(self.shell.directory, directory, dirs_exist_ok=True)
        copy = Miniature(replace(self.shell, directory=directory), directory / "store")
        if not trained:
            for name in ("checkpoints", "evaluation", "speedrun", "speedrun_results.json"):
                path = copy.store / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return copy

    def start(self, *flags: str, **variables: str) -> subprocess.Popen[str]:
        return self.shell.start("miniature.py", "--prefix", "store", *flags, **variables)

    def run(self, *flags: str, **variables: str) -> Finished:
        return finish(self.start(*flags, **variables))

    def run_until(self, condition: str, signal_number: int, *flags: str, **variables: str) -> Finished:
        """Starts, sends the signal once a file below the store matches `condition` (glob, then text in it), and waits."""
        process = self.start(*flags, **variables)
        pattern, _, text = condition.partition(" contains ")
        deadline = time.monotonic() + 120
        while not any(text.encode() in path.read_bytes() for path in self.store.glob(pattern)):
            assert process.poll() is None, f"ended before {condition!r}: {finish(process)}"
            assert time.monotonic() < deadline, f"no {condition!r} after two minutes"
            time.sleep(0.002)
        os.kill(process.pid, signal_number)
        return finish(process)

    @property
    def run_directory(self) -> Path:
        (directory,) = self.store.glob("checkpoints/speedrun/miniature-*/")
        return directory

    def results(self) -> dict[str, Any]:
        (run,) = json.loads((self.store / "speedrun_results.json").read_text())["runs"]
        return run["run_info"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in (self.run_directory / "metrics.jsonl").read_text().splitlines()]
        return [entry for entry in entries if entry["event"] == kind]

    def parameters(self) -> dict[str, str]:
        """SHA-256 of every array in the newest checkpoint, by name: weights and optimizer state."""
        return array_digests(max(self.run_directory.glob("checkpoints/step-*")))


def array_digests(checkpoint: Path) -> dict[str, str]:
    import numpy as np
    import orbax.checkpoint as ocp

    names = json.loads((checkpoint / "state" / "_METADATA").read_text())["tree_metadata"]
    as_numpy = {entry["key_metadata"][0]["key"]: ocp.RestoreArgs(restore_type=np.ndarray) for entry in names.values()}
    arrays = ocp.PyTreeCheckpointer().restore(checkpoint / "state", restore_args=as_numpy)
    return {
        name: hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()
        for name, array in arrays.items()
    }


@pytest.fixture(scope="session")
def user_environment(repository: Path, plain_environment: dict[str, str]) -> dict[str, str]:
    """A person's shell that finds this repository; compiled programs are kept from one run of the tests to the next."""
    return plain_environment | {"PYTHONPATH": str(repository), "MARIN_COMPILE_CACHE": os.environ["MARIN_COMPILE_CACHE"]}


@pytest.fixture(scope="session")
def shell(repository: Path, user_environment: dict[str, str]) -> Shell:
    """A shell at the repository's root."""
    return Shell(repository, user_environment)


@pytest.fixture
def create_miniature(user_environment: dict[str, str], tmp_path: Path) -> Callable[..., Miniature]:
    """`create_miniature(STEPS="30", ...)`: a miniature that has not run."""
    return functools.partial(Miniature.create, tmp_path, user_environment)


@dataclass(frozen=True)
class FinishedMiniature:
    """The miniature after its first run; look, do not touch."""

    miniature: Miniature
    first: Finished


@pytest.fixture(scope="session")
def finished(user_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> FinishedMiniature:
    miniature = Miniature.create(tmp_path_factory.mktemp("finished"), user_environment)
    return FinishedMiniature(miniature, miniature.run("--force_run_failed", "true"))
