"""`marin doctor` on machines of many kinds, made from small stand-ins for JAX, nvidia-smi and gh."""

import json
import os
import pathlib
import stat
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Marin = Callable[..., subprocess.CompletedProcess[str]]
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

Checks = dict[str, dict[str, Any]]


@pytest.fixture
def programs(tmp_path: pathlib.Path, environment: dict[str, str]) -> pathlib.Path:
    """A directory that comes first on PATH; and a `jax` that starts at once, for the runs that do not look at JAX."""
    stand_in = tmp_path / "stand_in"
    (stand_in / "jax").mkdir(parents=True)
    (stand_in / "jax" / "__init__.py").write_text(
        "import collections\n__version__ = '0.0'\n"
        "def devices():\n    return [collections.namedtuple('D', 'platform device_kind')('cpu', 'cpu')]\n"
    )
    directory = tmp_path / "bin"
    directory.mkdir()
    environment["PYTHONPATH"] = f"{stand_in}{os.pathsep}{REPOSITORY}"
    environment["PATH"] = f"{directory}{os.pathsep}{environment['PATH']}"
    return directory


def _program(directory: pathlib.Path, name: str, script: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(stat.S_IRWXU)


def _checks(done: subprocess.CompletedProcess[str]) -> Checks:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_doctor_with_the_real_jax_is_ready_and_changes_nothing(marin: Marin, clone: pathlib.Path) -> None:
    before = sorted(clone.rglob("*"))
    done = marin("doctor", "--json")
    assert done.returncode == 0, done.stdout
    checks = _checks(done)
    assert {"Python", "processor", "memory", "GPUs", "JAX", "required", "prefix", "disk", "git"} <= set(checks)
    assert "sees" in checks["JAX"]["detail"] and checks["JAX"]["state"] == "ok"
    assert checks["git"]["detail"] == "Ada Lovelace <7+ada@users.noreply.github.com>"
    assert sorted(clone.rglob("*")) == before
    assert json.loads(done.stdout)["host"]["cores_usable"] > 0


@pytest.mark.usefixtures("programs")
def test_doctor_into_a_file_leaves_paths_whole(marin: Marin, environment: dict[str, str]) -> None:
    environment.pop("COLUMNS", None)
    prefix = environment["MARIN_PREFIX"] = f"{environment['HOME']}/{'long' * 20}"
    assert f"{prefix} can be written" in marin("doctor").stdout


@pytest.mark.usefixtures("programs")
def test_doctor_in_a_terminal_of_80_columns_stays_within_it(marin: Marin, environment: dict[str, str]) -> None:
    environment["COLUMNS"] = "80"
    done = marin("doctor")
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("ready")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.usefixtures("programs")
def test_doctor_for_a_user_without_a_home_directory_is_ready(
    marin: Marin, environment: dict[str, str], tmp_path: pathlib.Path
) -> None:
    """As in a container that is started with a user number that its /etc/passwd has not."""
    del environment["HOME"]
    (tmp_path / "stand_in" / "sitecustomize.py").write_text(
        "import pwd\ndef getpwuid(number):\n    raise KeyError(number)\npwd.getpwuid = getpwuid\n"
    )
    done = marin("doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert {"Weights & Biases", "Hugging Face", "Chromium"} <= set(_checks(done))


@pytest.mark.usefixtures("programs")
def test_doctor_finds_keys_wherever_they_are_and_never_prints_them(
    marin: Marin, clone: pathlib.Path, environment: dict[str, str]
) -> None:
    absent = _checks(marin("doctor", "--json"))
    assert all(absent[name]["detail"].startswith("absent (optional") for name in ("Weights & Biases", "Hugging Face"))

    kept = clone / ".env"
    kept.write_text("export WANDB_API_KEY='s3cret'\nHF_TOKEN=s3cret\n")
    kept.chmod(0o644)
    done = marin("doctor", "--json")
    checks = _checks(done)
    assert [checks[name]["fix"] for name in ("Weights & Biases", "Hugging Face")] == [". ./.env"] * 2
    assert checks[".env"]["state"] == "warn" and "s3cret" not in done.stdout

    home = pathlib.Path(environment["HOME"])
    (home / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password s3cret\n")
    (home / ".netrc").chmod(0o600)
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text("s3cret\n")
    done = marin("doctor", "--json")
    assert {_checks(done)[name]["detail"] for name in ("Weights & Biases", "Hugging Face")} == {"stored login"}

    done = marin("doctor", "--json", WANDB_API_KEY="s3cret", HF_TOKEN="s3cret")
    assert {_checks(done)[name]["detail"] for name in ("Weights & Biases", "Hugging Face")} == {"set (environment)"}
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.usefixtures("programs")
def test_doctor_with_a_prefix_that_cannot_be_written_is_a_problem(marin: Marin, clone: pathlib.Path) -> None:
    done = marin("doctor", "--json", MARIN_PREFIX=str(clone / "pyproject.toml" / "store"))
    assert done.returncode == 1 and _checks(done)["prefix"]["state"] == "problem"
    shown = marin("doctor", MARIN_PREFIX=str(clone / "pyproject.toml" / "store"))
    assert shown.returncode == 1 and "1 problem(s)" in shown.stdout and "Traceback" not in shown.stderr


@pytest.mark.usefixtures("programs")
def test_doctor_names_packages_that_are_missing_too_old_or_not_as_locked(marin: Marin, clone: pathlib.Path) -> None:
    (clone / "pyproject.toml").write_text(
        '[project]\nname = "marin"\ndependencies = ["numpy>=99", "no-such-package-here>=1", "gone; python_version < \'3\'"]\n'
    )
    (clone / "requirements.lock").write_text(
        "numpy==0.0.1 ; python_version < '3' \\\n    --hash=sha256:00\nnumpy==1.2.3 \\\n    --hash=sha256:00\n"
    )
    done = marin("doctor", "--json")
    checks = _checks(done)
    assert done.returncode == 1 and checks["required"]["state"] == "problem"
    assert (
        "2 of 2" in checks["required"]["detail"] and "no-such-package-here>=1 (missing)" in checks["required"]["detail"]
    )
    assert checks["locked"]["state"] == "warn" and "locked 1.2.3" in checks["locked"]["detail"]


@pytest.mark.parametrize(("driver", "extra"), [("580.65.06", "cuda13"), ("550.90", "cuda12")])
def test_doctor_with_a_gpu_that_jax_does_not_see_says_which_extra(
    driver: str, extra: str, marin: Marin, programs: pathlib.Path, environment: dict[str, str]
) -> None:
    _program(programs, "nvidia-smi", f'case "$1" in *driver*) echo {driver};; *) echo "NVIDIA H200, 143771";; esac')
    del environment["JAX_PLATFORMS"]
    checks = _checks(marin("doctor", "--json"))
    assert checks["JAX"]["state"] == "warn" and checks["JAX"]["fix"].endswith(f"--extra={extra}")
    assert driver in checks["GPUs"]["detail"] and "9.895e+14" in checks["GPUs"]["detail"]
    assert "JAX_PLATFORMS" in _checks(marin("doctor", "--json", JAX_PLATFORMS="cpu"))["JAX"]["fix"]


def test_doctor_with_a_gpu_outside_the_catalogue_names_the_override(marin: Marin, programs: pathlib.Path) -> None:
    _program(programs, "nvidia-smi", 'echo "NVIDIA Q1, 1024"')
    check = _checks(marin("doctor", "--json"))["GPUs"]
    assert check["state"] == "warn" and "device_flops_override" in check["fix"]


def test_doctor_with_a_broken_jax_is_a_problem_with_its_last_word(
    marin: Marin, programs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "stand_in" / "jax" / "__init__.py").write_text("raise RuntimeError('libfoo is missing')\n")
    done = marin("doctor", "--json")
    assert done.returncode == 1 and "libfoo is missing" in _checks(done)["JAX"]["detail"]


def test_doctor_with_gh_logged_out_or_in_says_so_without_its_token(marin: Marin, programs: pathlib.Path) -> None:
    _program(programs, "gh", "exit 1")
    assert _checks(marin("doctor", "--json"))["gh"]["fix"] == "gh auth login"
    _program(programs, "gh", "echo s3cret")
    done = marin("doctor", "--json")
    assert _checks(done)["gh"]["detail"] == "logged in" and "s3cret" not in done.stdout


def test_doctor_with_a_platform_that_is_not_there_names_the_variable(marin: Marin) -> None:
    check = _checks(marin("doctor", "--json", JAX_PLATFORMS="cuda"))["JAX"]
    assert check["state"] == "problem" and check["fix"] == "unset JAX_PLATFORMS"
    assert "JAX_PLATFORMS=cuda: this machine shows no NVIDIA GPU" in check["detail"]
