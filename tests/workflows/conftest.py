"""A repository on this machine to which pull requests are made."""

import pathlib
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.workflows.runner import ROOT, Done, load, run_job

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")


def git(directory: pathlib.Path, *arguments: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Origin:
    """The base branch as it stands in this working tree, and pull requests made from it."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path, self.count = folder, folder / "origin", 0
        ignore = shutil.ignore_patterns("__pycache__")
        for name in ("marin", "experiments", "scripts"):
            shutil.copytree(ROOT / name, self.path / name, ignore=ignore)
        for name in ("pyproject.toml", ".gitignore", "requirements.lock"):
            shutil.copy(ROOT / name, self.path)
        git(self.path, "init", "--quiet", "--initial-branch=main")
        git(self.path, "add", ".")
        git(self.path, "commit", "--quiet", "-m", "base")
        self.base = git(self.path, "rev-parse", "HEAD")

    def pull_request(self, change: Callable[[pathlib.Path], None]) -> dict[str, str]:
        """Commits what `change` does to a checkout, as a pull request; returns the event's context."""
        self.count += 1
        head = self.folder / f"fork-{self.count}"
        git(self.folder, "clone", "--quiet", str(self.path), str(head))
        change(head)
        git(head, "add", "--all", "--force")
        git(head, "commit", "--quiet", "-m", "my run")
        git(head, "push", "--quiet", "origin", f"HEAD:refs/pull/{self.count}/head")
        return {
            "github.event.pull_request.number": str(self.count),
            "github.event.pull_request.base.sha": self.base,
            "github.event.pull_request.head.sha": git(head, "rev-parse", "HEAD"),
        }

    def validate(self, change: Callable[[pathlib.Path], None]) -> Done:
        """Runs the validating job on such a pull request."""
        context = self.pull_request(change)
        job = load("validate-speedrun.yml")["jobs"]["validate"]
        return run_job(job, context, self.path, self.folder / f"runner-{self.count}")


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(tmp_path_factory.mktemp("origin"))
