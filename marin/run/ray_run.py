"""Runs a command as a job on a Ray cluster, and shows what it prints until it ends.

    python marin/run/ray_run.py -- python -m experiments.speedrun.hello_world.main --prefix gs://bucket/marin
    python marin/run/ray_run.py -e WANDB_API_KEY KEY --no_wait -- python -m experiments.speedrun.hello_world.main

The cluster is the one that RAY_ADDRESS names (http://head:8265, head:6379 or auto), and the job gets a copy of the repository
there, without what .gitignore names: an address on this machine may be the forwarded port of a cluster elsewhere. Where it is not
set, a cluster is started on this machine for as long as the job lasts, and the repository is used as it stands. The job has the
environment variables that are given here, and `MARIN_RUNNER=ray`: each step of an experiment becomes a task of the cluster. A
relative prefix is below the directory that this is started in.

The exit status is the command's. Ctrl-C cancels the job, which has 10 minutes to save what it has; with `--no_wait` it goes
on alone.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__" and str(ROOT) not in sys.path:  # started by its path, with or without an installed package
    sys.path[0] = str(ROOT)

from marin.children import ENDING_WITH_PARENT, child_environment, free_ports  # noqa: E402
from marin.errors import ConfigError, ExecutionError, clean_exit  # noqa: E402
from marin.execution.provenance import submitted_variables  # noqa: E402
from marin.execution.ray_cluster import check_listens, did_not_start, import_ray  # noqa: E402
from marin.execution.redaction import redact  # noqa: E402
from marin.flags import Parser  # noqa: E402

# What no job needs, beside what .gitignore names.
_LEFT_OUT = (".git", ".venv", "local_store", ".env", "**/__pycache__", "**/*.so", "**/node_modules")
_END_STATES = ("SUCCEEDED", "FAILED", "STOPPED")
_POLL = 0.5
_SECONDS_TO_START, _SECONDS_TO_STOP = 120.0, 60.0
# From asking a job to stop to killing it, after which its steps end too: they save first. Ray itself gives 3 seconds.
_SECONDS_TO_SAVE = 600


def main(arguments: Sequence[str]) -> int:
    """Submits the command and follows it; returns its exit status, or 0 at once with `--no_wait`.

    Raises:
        ConfigError: wrong arguments, no Ray, or no cluster at the address.
        ExecutionError: the cluster could not start the command.
    """
    options, command = _parse(list(arguments))
    if options.address or os.environ.get("RAY_ADDRESS"):
        _use_stored_token()
    ray = import_ray()
    from ray.job_submission import JobSubmissionClient

    with _cluster(options.address, keep=options.no_wait) as (address, headers):
        is_here = headers is not None
        if is_here and command[0] in ("python", "python3"):
            command[0] = sys.executable  # which has the package, whatever the shell finds first
        try:
            client = JobSubmissionClient(address, headers=headers)
            logging.getLogger("ray").setLevel(logging.ERROR)  # its own notes would stand between the lines of the job
            job = client.submit_job(
                entrypoint=shlex.join(command),
                runtime_env=runtime_environment(options, is_here=is_here),
                metadata={"command": " ".join(redact(command))},
            )
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise ConfigError(
                f"the cluster at {address} does not take the job ({error}): is RAY_ADDRESS right, and its dashboard reachable?"
            ) from None
        print(f"submitted {job} to {address}: {' '.join(redact(command))}", flush=True)
        if options.no_wait:
            print(f"ray job logs --address {address} --follow {job}   shows what it prints; `ray job stop` ends it")
            return 0
        return _follow(client, job, address, is_here=is_here)


def runtime_environment(options: argparse.Namespace, *, is_here: bool) -> dict[str, Any]:
    """Ray's description of what the job needs.

    Args:
        is_here: this process started the cluster, on this machine, so the repository is used as it stands.
    """
    variables = {"MARIN_RUNNER": "ray", "MARIN_SUBMITTED_FROM": os.getcwd(), "PYTHONUNBUFFERED": "1"}
    variables["RAY_JOB_STOP_WAIT_TIME_S"] = str(_SECONDS_TO_SAVE)
    if "MARIN_PREFIX" in os.environ:
        variables["MARIN_PREFIX"] = os.environ["MARIN_PREFIX"]
    variables |= dict(options.env_vars)
    environment: dict[str, Any] = {"env_vars": variables}
    if is_here:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    else:
        environment |= {"working_dir": str(ROOT), "excludes": list(_LEFT_OUT)}
        variables |= submitted_variables(ROOT)
    if options.pip_deps:
        environment["pip"] = options.pip_deps
    return environment


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    own, command = arguments[:place], arguments[place + 1 :]
    options = _parser().parse_args(own)
    pairs = []
    for given in options.env_vars:
        name, value = (given + [""])[:2]
        if len(given) > 2 or not name.isidentifier():
            raise ConfigError(f"`-e {' '.join(redact(given))}` is no variable: write `-e NAME VALUE`")
        pairs.append((name, value))
    options.env_vars = pairs
    options.pip_deps = [part for given in options.pip_deps for part in given.split(",") if part]
    if not command:
        raise ConfigError(
            "there is nothing to run: write the command after `--`, as in `-- python -m experiments.NAME.main`"
        )
    return options, command


def _parser() -> Parser:
    parser = Parser(
        prog="python marin/run/ray_run.py",
        usage="%(prog)s [FLAGS] -- COMMAND ...",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument("--no_wait", "--no-wait", action="store_true", help="submit, and leave it to itself")
    parser.add_argument(
        "-e", "--env_vars", "--env-vars", action="append", nargs="+", default=[], metavar=("NAME", "VALUE"),
        help="a variable of the job's environment; without a value it is empty; may be given often",
    )  # fmt: skip
    parser.add_argument(
        "--pip_deps",
        "--pip-deps",
        action="append",
        default=[],
        metavar="PACKAGES",
        help="what to install first, by commas",
    )
    parser.add_argument("--address", default=None, help="the cluster (default: $RAY_ADDRESS)")
    return parser


def _use_stored_token() -> None:
    """Has Ray, which must not be imported yet, show a cluster the token that it has stored on this machine.

    From 2.60 on `ray.init` stores one, `ray start --head` then asks for it, and `ray.init` shows it; who submits jobs must be told to.
    """
    stored = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    if "RAY_AUTH_TOKEN" in os.environ or os.path.isfile(stored):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


@contextlib.contextmanager
def _cluster(address: str | None, *, keep: bool) -> Iterator[tuple[str, dict[str, str] | None]]:
    """The address to submit to; with headers if this process started the cluster there, as it does where none is named."""
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        check_listens(address)
        yield address, None
        return
    if keep:
        raise ConfigError(
            "`--no_wait` needs a cluster that stays: set RAY_ADDRESS, or start one with `ray start --head`"
        )
    print("RAY_ADDRESS is not set: starting a cluster on this machine, for this job", flush=True)
    with _own_cluster() as (address, headers):
        yield address, headers


@contextlib.contextmanager
def _own_cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """A cluster on this machine: the address where it takes jobs, once it does, and the headers that it asks for.

    Its ports are free ones. `ray.init` takes the usual ones, and where they are another cluster's, jobs find no agent. Whoever may
    submit a job runs code as this user, so it takes none without a secret that only this process and the cluster know.
    """
    secret = secrets.token_hex(32)
    ports = dict(
        zip(
            ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port"),
            free_ports(4),
            strict=True,
        )
    )
    flags = ["--head", "--block", "--include-dashboard=true", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    command = [
        sys.executable,
        *ENDING_WITH_PARENT,
        "-m",
        "ray.scripts.scripts",
        "start",
        *flags,
        *(f"--{name}={port}" for name, port in ports.items()),
    ]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=child_environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secret),
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + _SECONDS_TO_START
            while not all(_listens(ports[name]) for name in ("dashboard-port", "dashboard-agent-listen-port")):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    last = (said.read().split("\n\n")[-1].strip() or "it said nothing").splitlines()[-1]
                    raise did_not_start(last)
                time.sleep(_POLL)
            yield f"http://127.0.0.1:{ports['dashboard-port']}", {"Authorization": f"Bearer {secret}"}
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _follow(client: Any, job: str, address: str, *, is_here: bool) -> int:
    """Prints the job's output until it ends.

    Raises:
        ExecutionError: it did not start, or nothing can be learned of it any more.
    """
    try:
        with _lost_connection_said(job, address):
            asyncio.run(_print_logs(client, job))
            status = _wait_for_end(client, job)
            info = client.get_job_info(job)
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C and SIGTERM
        again = "kills it with its cluster, saved or not" if is_here else "leaves it to itself"
        print(
            f"stopping {job}, which has {_SECONDS_TO_SAVE // 60} minutes to save; Ctrl-C again {again}",
            file=sys.stderr,
            flush=True,
        )
        with _lost_connection_said(job, address):
            client.stop_job(job)
            if _wait_for_end(client, job, _SECONDS_TO_SAVE + _SECONDS_TO_STOP) not in _END_STATES:
                end = (
                    "it is killed with its cluster"
                    if is_here
                    else f"`ray job stop --address {address} {job}` asks again"
                )
                print(f"{job} has not ended: {end}", file=sys.stderr, flush=True)
        raise
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        return 130
    if info.driver_exit_code:
        return int(info.driver_exit_code)
    raise ExecutionError(f"{job} did not start or was lost: {info.message}")


@contextlib.contextmanager
def _lost_connection_said(job: str, address: str) -> Iterator[None]:
    """Says in one message that the cluster answers no more, as where a forwarded port is closed."""
    import aiohttp

    try:
        yield
    except (OSError, RuntimeError, aiohttp.ClientError) as error:  # of Ray's client, which has no class of its own
        raise ExecutionError(
            f"the connection to the cluster at {address} was lost ({error}); {job} goes on if the cluster does: `ray job logs"
            f" --address {address} --follow {job}` shows what it prints, `ray job stop` ends it"
        ) from None


async def _print_logs(client: Any, job: str) -> None:
    async for text in client.tail_job_logs(job):
        print(text, end="", flush=True)


def _wait_for_end(client: Any, job: str, seconds: float = _SECONDS_TO_STOP) -> str:
    deadline = time.monotonic() + seconds
    while True:
        status = str(client.get_job_status(job).value)
        if status in _END_STATES or time.monotonic() > deadline:
            return status
        time.sleep(_POLL)


if __name__ == "__main__":
    with clean_exit():
        sys.exit(main(sys.argv[1:]))
