"""How the repository is set up: project metadata, lock files, make targets, and the tutorial's manual set-up."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

OFFLINE = re.compile(r"(?i)error sending request|dns error|failed to fetch|network|connection|offline|timed out")
EXTRAS = {"cuda12", "cuda13", "tpu", "ray", "wandb", "tensorboard", "gcs", "s3", "eval", "dev", "corpus", "docs"}
TARGETS = ["hello", "test", "torture", "lint", "types", "layers", "lock", "venv", "venv-dev"]


@pytest.fixture(scope="module")
def project(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


def _requirement_name(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _locked(path: Path) -> dict[str, list[str]]:
    """The hashes of each `name==version` in a lock file; every other line must be a comment or a hash."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in path.read_text().splitlines():
        pinned = re.fullmatch(r"([a-z0-9.-]+)==(\S+)( ; .+)? \\", line)
        digest = re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line)
        if pinned:
            name = f"{pinned.group(1)}=={pinned.group(2)}{pinned.group(3) or ''}"
            assert name not in found, line
            found[name] = []
        elif digest:
            found[name].append(digest.group(1))
        else:
            assert line.lstrip().startswith("#"), f"{path.name}: {line!r} is no pinned requirement, hash or comment"
    return found


def test_project_supports_python_3_11_and_later_with_every_extra(project: dict) -> None:
    assert project["requires-python"] == ">=3.11"
    assert "jax>=0.10.2" in project["dependencies"]
    assert set(project["optional-dependencies"]) == EXTRAS
    assert project["license"] == "Apache-2.0"
    assert project["scripts"] == {"marin": "marin.cli.main:main"}


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_lock_file_has_a_hash_for_every_package_and_names_no_host(lock: str, repository: Path) -> None:
    locked = _locked(repository / lock)
    assert len(locked) > 30
    assert [name for name, hashes in locked.items() if not hashes] == []
    assert (
        re.findall(r"\S+://\S+|--(?:extra-)?index-url|--find-links|--trusted-host", (repository / lock).read_text())
        == []
    )


def test_lock_file_holds_what_the_project_needs(project: dict, repository: Path) -> None:
    pinned = {_requirement_name(name) for name in _locked(repository / "requirements.lock")}
    wanted = {_requirement_name(r) for r in project["dependencies"] + project["optional-dependencies"]["corpus"]}
    assert wanted - pinned == set()
    assert set(project["optional-dependencies"]["corpus"]) <= {
        name.partition(" ;")[0] for name in _locked(repository / "requirements.lock")
    }
    pinned_dev = {_requirement_name(name) for name in _locked(repository / "requirements-dev.lock")}
    assert {_requirement_name(r) for r in project["optional-dependencies"]["dev"]} - pinned_dev == set()


def test_lock_files_agree_on_versions_where_they_meet(repository: Path) -> None:
    def versions(lock: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for requirement in _locked(repository / lock):
            name, _, rest = requirement.partition("==")
            found.setdefault(name, set()).add(rest.partition(" ;")[0])
        return found

    run, dev = versions("requirements.lock"), versions("requirements-dev.lock")
    assert {name: (run[name], dev[name]) for name in run.keys() & dev.keys() if run[name] != dev[name]} == {}


def test_uv_lock_is_ignored_by_git(repository: Path) -> None:
    if not (repository / ".git").exists():
        pytest.skip("this is no git checkout")
    ignored = subprocess.run(["git", "check-ignore", "--quiet", "uv.lock"], cwd=repository, check=False)
    assert ignored.returncode == 0
    tracked = subprocess.run(["git", "ls-files", "uv.lock"], cwd=repository, capture_output=True, check=True)
    assert tracked.stdout == b""


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_creates_the_environment_that_it_needs(target: str, repository: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    done = subprocess.run(
        ["make", "--dry-run", target, f"VENV={environment}"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands = done.stdout.splitlines()
    created = next(i for i, command in enumerate(commands) if command.endswith(f"-m venv {environment}"))
    tools = [i for i, command in enumerate(commands) if re.search(rf"(^|[ =]){environment}/bin/|(^| )uv ", command)]
    assert tools
    assert created < min(tools)
    if target != "lock":
        assert "--require-hashes -r requirements.lock" in done.stdout
    assert not environment.exists()


def test_make_hello_and_test_run_what_they_promise(repository: Path) -> None:
    def last_command(target: str) -> str:
        # This may itself run below `make test`, whose flags would come along.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", target],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()[-1]

    assert re.search(
        r"python -m experiments\.speedrun\.hello_world\.main --force_run_failed true", last_command("hello")
    )
    assert re.search(r'python -m pytest -m "not slow and not torture"', last_command("test"))
    assert re.search(r"python -m pytest -m torture", last_command("torture"))


def test_ci_runs_lint_types_layers_and_all_tests(repository: Path) -> None:
    script = repository / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    targets = {word for line in re.findall(r"^make (.+)$", text, re.MULTILINE) for word in line.split()}
    assert targets == {"lint", "types", "layers", "test"}


def test_manual_set_up_of_the_tutorial_resolves(repository: Path, tmp_path: Path) -> None:
    uv = shutil.which("uv", path=os.pathsep.join([str(repository / ".venv" / "bin"), os.environ["PATH"]]))
    if uv is None:
        pytest.skip("there is no uv here")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, tmp_path)
    for package in ("marin", "experiments"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    for arguments in (["venv", "--python", "3.11"], ["sync", "--all-packages", "--extra=cuda12", "--dry-run"]):
        done = subprocess.run(
            [uv, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        if done.returncode and arguments[0] == "venv" and "No interpreter found" in done.stderr:
            pytest.skip("there is no Python 3.11 here")
        if done.returncode and OFFLINE.search(done.stderr):
            pytest.skip(f"uv cannot reach a package index: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    assert re.search(r"^ \+ jax==", done.stderr, re.MULTILINE)
    assert re.search(r"^ \+ jax-cuda12-plugin==", done.stderr, re.MULTILINE)


def test_store_of_a_run_from_any_directory_is_not_committed_with_it(repository: Path, tmp_path: Path) -> None:
    shutil.copy(repository / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    stores = ["local_store/x", "experiments/speedrun/my_idea/local_store/checkpoints/x"]
    done = subprocess.run(["git", "check-ignore", *stores], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == stores
