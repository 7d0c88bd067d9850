"""`marin doctor`: what this machine can do, and what to fix, one line each with the next command.

A line is ok, a warning (something optional is missing, or will hurt later) or a problem (the main job cannot run). Only
problems make the exit status 1. Nothing is changed, nothing is sent anywhere, and no key is ever printed.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator

from marin import hardware
from marin.cli import checkout, keys, packages
from marin.errors import MarinError

HELP = "Say what this machine can do and what to fix. Exit status 1 if something keeps the main job from running."

OK, WARN, PROBLEM = "ok", "warn", "problem"

_GIB = 2**30
_MEMORY_NEEDED = 3 * _GIB  # what the hello run may use
_DISK_NEEDED = 2 * _GIB
_DISK_ADVISED = 20 * _GIB  # a pre-tokenized set of 10B tokens
_CUDA13_DRIVER = 580  # CUDA 13 needs at least this driver
_JAX_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class Check:
    """One finding; `fix` is the next command or edit, empty where there is nothing to do."""

    section: str
    name: str
    state: str
    detail: str
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


# ---------------------------------------------------------------------------------------------------------------------
# The machine
# ---------------------------------------------------------------------------------------------------------------------


def _check_python() -> Check:
    version = platform.python_version()
    if sys.version_info >= (3, 13):
        return Check("machine", "Python", WARN, f"{version}, tested are 3.11 and 3.12", "uv venv --python 3.11")
    return Check("machine", "Python", OK, version)


def _check_processor(host: dict[str, object]) -> Check:
    try:
        peak = f"{hardware.measure_cpu_peak() / 1e9:,.0f} GFLOP/s float32, measured"
    except (MarinError, ImportError) as error:
        return Check("machine", "processor", WARN, f"peak not measured: {error}")
    return Check("machine", "processor", OK, f"{host['cpu_model']}, {host['cores_usable']:g} cores usable, {peak}")


def _check_memory(host: dict[str, object]) -> Check:
    total = host["memory_bytes"]
    assert isinstance(total, int)
    free = ""
    try:
        import psutil  # doctor works where packages are missing: it is there to say so

        free = f", {psutil.virtual_memory().available / _GIB:.1f} GiB free"
    except ImportError:
        pass
    detail = f"{total / _GIB:.1f} GiB{free}"
    if total < _MEMORY_NEEDED:
        return Check("machine", "memory", WARN, f"{detail}; the hello run takes 3 GiB", "train a smaller model")
    return Check("machine", "memory", OK, detail)


def _check_gpus() -> Iterator[Check]:
    gpus = hardware.detect_gpus()
    if not gpus:
        yield Check("machine", "GPUs", OK, "none (nvidia-smi lists none); everything runs on the processor too")
        return
    for name in dict.fromkeys(name for name, _ in gpus):
        of_type = [memory for other, memory in gpus if other == name]
        detail = f"{len(of_type)} x {name}, {of_type[0] / _GIB:.0f} GiB, driver {hardware.gpu_driver_version()}"
        try:
            device = hardware.lookup_device(name)
            yield Check("machine", "GPUs", OK, f"{detail}, peak {device.peak('bf16'):.4g} FLOP/s bf16 ({device.name})")
        except MarinError as error:
            yield Check("machine", "GPUs", WARN, detail, str(error))


def _probe_jax() -> dict[str, object] | str:
    """What JAX sees, from a process of its own, since it may hang or crash on a broken driver; or what went wrong."""
    code = (
        "import json, jax; d = jax.devices(); "
        "print(json.dumps({'version': jax.__version__, 'platform': d[0].platform, 'count': len(d), 'kind': d[0].device_kind}))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_JAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_JAX_SECONDS} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines() or ["no output"]
    return dict(json.loads(lines[-1])) if done.returncode == 0 else hardware.why_no_device(lines[-1])


def _cuda_extra() -> str:
    major = (hardware.gpu_driver_version() or "0").split(".")[0]
    return "cuda13" if major.isdecimal() and int(major) >= _CUDA13_DRIVER else "cuda12"


def _check_jax() -> Check:
    seen = _probe_jax()
    if isinstance(seen, str) and (asked := os.environ.get("JAX_PLATFORMS")):
        said = f"cannot start with JAX_PLATFORMS={asked}: {seen}"
        return Check("machine", "JAX", PROBLEM, said, "unset JAX_PLATFORMS")
    if isinstance(seen, str):
        return Check("machine", "JAX", PROBLEM, f"cannot start: {seen}", "uv sync --all-packages")
    detail = f"{seen['version']}, sees {seen['count']} {seen['platform']} device(s): {seen['kind']}"
    if seen["platform"] == "cpu" and hardware.detect_gpus():
        if os.environ.get("JAX_PLATFORMS"):
            return Check("machine", "JAX", WARN, f"{detail}; JAX_PLATFORMS hides the GPU", "unset JAX_PLATFORMS")
        return Check(
            "machine", "JAX", WARN, f"{detail}, but not the GPU", f"uv sync --all-packages --extra={_cuda_extra()}"
        )
    return Check("machine", "JAX", OK, detail)


def _nearest_existing(path: str) -> str:
    return str(next(place for place in (pathlib.Path(path), *pathlib.Path(path).parents) if place.exists()))


def _check_prefix() -> Iterator[Check]:
    try:
        from marin.storage import files, prefix  # needs fsspec, which may be what is missing

        where = prefix.resolve_prefix(None)
        existing = _nearest_existing(where) if files.is_local(where) else where
        prefix.check_writable(existing)  # which would create it
    except MarinError as error:
        yield Check("storage", "prefix", PROBLEM, str(error), "export MARIN_PREFIX=... (a place that you can write to)")
        return
    except ImportError as error:
        yield Check("storage", "prefix", PROBLEM, f"cannot be checked: {error}", "uv sync --all-packages")
        return
    source = "MARIN_PREFIX" if os.environ.get("MARIN_PREFIX") else "the default; --prefix or MARIN_PREFIX change it"
    yield Check("storage", "prefix", OK, f"{where} can be written ({source})")
    if not files.is_local(where):
        return
    free = shutil.disk_usage(existing).free
    detail = f"{free / _GIB:,.1f} GiB free for the prefix"
    if free < _DISK_NEEDED:
        yield Check("storage", "disk", PROBLEM, f"{detail}; the hello run needs 2", "free some, or move MARIN_PREFIX")
    elif free < _DISK_ADVISED:
        yield Check(
            "storage", "disk", WARN, f"{detail}; a 10B-token data set needs 20", "move MARIN_PREFIX for large runs"
        )
    else:
        yield Check("storage", "disk", OK, detail)


# ---------------------------------------------------------------------------------------------------------------------
# Accounts and tools, all optional
# ---------------------------------------------------------------------------------------------------------------------


def _check_keys(root: pathlib.Path | None) -> Iterator[Check]:
    env_file = (root or pathlib.Path.cwd()) / ".env"
    for service in keys.SERVICES:
        found = keys.find_key(service)
        if found:
            yield Check("accounts", service.name, OK, found)
        elif keys.in_env_file(service, env_file):
            yield Check("accounts", service.name, WARN, "in .env, which this shell has not loaded", ". ./.env")
        else:
            hint = f"export {service.variable}=... or {service.login_command}"
            yield Check("accounts", service.name, OK, f"absent (optional: {service.purpose}; {hint})")
    try:
        mode = env_file.stat().st_mode
    except OSError:
        return
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield Check("accounts", ".env", WARN, "other users of this machine can read the keys in it", "chmod 600 .env")


def _check_git(root: pathlib.Path | None) -> Iterator[Check]:
    if shutil.which("git") is None:
        yield Check("accounts", "git", WARN, "not found; runs cannot record their commit", "install git")
        return
    name, email = checkout.git_config("user.name", root), checkout.git_config("user.email", root)
    if name and email:
        yield Check("accounts", "git", OK, f"{name} <{email}>")
    else:
        missing = "user.email" if name else "user.name"
        yield Check("accounts", "git", WARN, f"{missing} is unset", f"git config --global {missing} '...'")
    if shutil.which("gh") is None:
        yield Check("accounts", "gh", OK, "absent (optional: forks the repository and opens pull requests)")
    elif checkout.run_quietly(["gh", "auth", "token"]):
        yield Check("accounts", "gh", OK, "logged in")
    else:
        yield Check("accounts", "gh", WARN, "not logged in", "gh auth login")


def _check_chromium() -> Check:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = next(filter(None, map(shutil.which, names)), None)
    if found:
        return Check("tools", "Chromium", OK, found)
    cache = pathlib.Path(os.path.expanduser(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or "~/.cache/ms-playwright"))
    own = next(iter(sorted(cache.glob("chromium*"))), None)
    if own:
        return Check("tools", "Chromium", OK, f"Playwright's, {own.name}")
    return Check("tools", "Chromium", OK, "absent (optional: tests that look at pages are skipped)")


# ---------------------------------------------------------------------------------------------------------------------
# Report
# ---------------------------------------------------------------------------------------------------------------------


def examine(host: dict[str, object]) -> Iterator[Check]:
    """All findings, in the order in which they are shown; a slow one comes when it is known."""
    root = checkout.find_checkout()
    yield _check_python()
    yield _check_processor(host)
    yield _check_memory(host)
    yield from _check_gpus()
    yield _check_jax()
    for finding in packages.examine(root):
        yield Check(
            "packages",
            finding.name,
            PROBLEM if finding.blocking else WARN if finding.fix else OK,
            finding.detail,
            finding.fix,
        )
    yield from _check_prefix()
    yield from _check_keys(root)
    yield from _check_git(root)
    yield _check_chromium()


def _show_plainly(checks: Iterable[Check]) -> list[Check]:
    shown = []
    for check in checks:
        print(f"{check.state:<8} {check.name}: {check.detail}" + (f"\n         -> {check.fix}" if check.fix else ""))
        shown.append(check)
    return shown


def run(args: argparse.Namespace) -> int:
    host = hardware.host_info()
    if args.json:
        checks = list(examine(host))
        print(json.dumps({"host": host, "checks": [dataclasses.asdict(check) for check in checks]}, indent=2))
    else:
        try:
            from marin.cli.findings import show
        except ImportError:  # rich is missing, which the findings will say
            show = _show_plainly
        checks = show(examine(host))
    return 1 if any(check.state == PROBLEM for check in checks) else 0
