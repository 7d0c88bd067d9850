"""Runs the `run:` steps of a GitHub Actions job on this machine, as the runner would.

Checking out is done with git, Python is the one that runs the tests, and `python -m pip install` does nothing, since its packages
are installed; all else runs as it is written.
"""

import dataclasses
import pathlib
import re
import subprocess
import sys
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
# What a real runner's `bash` steps are run with.
_SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
_PYTHON = f"""#!/bin/sh
if [ "$1 $2 $3" = "-m pip install" ]; then exit 0; fi
exec {sys.executable} "$@"
"""


@dataclasses.dataclass(frozen=True)
class Done:
    """How far a job came: the failed step's name or None, and all that was printed."""

    failed: str | None
    out: str


def load(name: str) -> dict[Any, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text())


def run_job(job: dict[str, Any], context: dict[str, str], origin: pathlib.Path, folder: pathlib.Path) -> Done:
    """Args:
    context: what `${{ ... }}` stands for.
    origin: the repository that is checked out.
    folder: a new one, for the work tree and the runner's temporary files.
    """
    work, temporary, programs = folder / "work", folder / "temp", folder / "bin"
    for directory in (work, temporary, programs):
        directory.mkdir(parents=True)
    (programs / "python").write_text(_PYTHON)
    (programs / "python").chmod(0o755)
    out = ""
    for step in job["steps"]:
        if step.get("uses", "").startswith("actions/checkout@"):
            given = {key: fill(str(value), context) for key, value in step.get("with", {}).items()}
            assert given["persist-credentials"] == "False"
            subprocess.run(["git", "clone", "--quiet", str(origin), str(work)], check=True)
            if "ref" in given:
                subprocess.run(["git", "checkout", "--quiet", given["ref"]], cwd=work, check=True)
        if "run" not in step:
            continue
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "RUNNER_TEMP": str(temporary), "CI": "true",
            "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120",
        } | {key: fill(str(value), context) for key, value in step.get("env", {}).items()}  # fmt: skip
        done = subprocess.run(
            [*_SHELL, fill(step["run"], context)], cwd=work, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        out += done.stdout
        if done.returncode:
            return Done(step["name"], out)
    return Done(None, out)


def fill(text: str, context: dict[str, str]) -> str:
    return re.sub(r"\$\{\{\s*([\w.]+)\s*\}\}", lambda match: context[match[1]], text)
