"""Running code that a model has written: in a process of its own that can compute and read, and nothing else.

The process is a fresh Python. Before the code runs it gives up, for good,

    time and memory    processor seconds, wall seconds and address space are limited
    system calls       a seccomp filter allows computing and reading; all else fails with "operation not permitted": sockets,
                       processes and threads, programs, files opened for writing, renaming, removing, signals to others
    reading            where the kernel has Landlock (Linux 5.13), only Python's own files can be opened; elsewhere what the
                       user may read can be read, other processes' environments in /proc too

so it needs no privilege and no container. Nothing that is read leaves, as only the verdict comes back, and of that at most a
line. A fault of the kernel is a way out. Where the system has no such filter nothing runs.

It protects the machine, and not the score from a program that was written to cheat: who looks through the interpreter that
runs it finds how "passed" is said.
"""

import dataclasses
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import threading
from importlib import resources

from marin.errors import ConfigError

_MAX_REPLY = 4096
_STARTUP_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class CodeResult:
    """How the code ended: "passed" where its last line was reached, "failed", "timeout" or "killed"; and why."""

    outcome: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def require_sandbox() -> None:
    """Raises:
    ConfigError: this system cannot run generated code safely; says what would.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise ConfigError(
            f"generated code runs only in a sandbox, which needs Linux on x86_64 or aarch64, and this is {sys.platform} on"
            f" {platform.machine()}: run HumanEval on such a machine, or leave it out of the tasks"
        )


def run_code(program: str, *, seconds: float = 5.0, memory_bytes: int = 256 * 2**20) -> CodeResult:
    """Runs a program to its end in the sandbox.

    Args:
        seconds: of wall time for the program, and of processor time.
        memory_bytes: of address space, the interpreter's 30 MB included.
    Raises:
        ConfigError: this system has no sandbox.
    """
    require_sandbox()
    # A program that prints what looks like a verdict does not know this.
    token = secrets.token_hex(16)
    limits = {"seconds": seconds, "memory_bytes": memory_bytes, "machine": platform.machine(), "token": token}
    request = json.dumps({**limits, "program": program}).encode()
    start = resources.files("marin.evaluation").joinpath("code_sandbox_child.py").read_text()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", start],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    timed_out = threading.Event()

    def stop() -> None:
        timed_out.set()
        process.kill()

    timer = threading.Timer(seconds + _STARTUP_SECONDS, stop)
    timer.start()
    try:
        try:
            process.stdin.write(request)
            process.stdin.close()
        except BrokenPipeError:
            pass
        reply = process.stdout.read(_MAX_REPLY)
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
        status = process.wait()
    return _verdict(reply, token, status, timed_out.is_set())


def _verdict(reply: bytes, token: str, status: int, timed_out: bool) -> CodeResult:
    try:
        said = json.loads(reply)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("token") == token:
        if said["outcome"] == "no sandbox":
            raise ConfigError(
                f"generated code runs only in a sandbox, and this kernel allows no seccomp filter ({said['detail']}): run"
                " HumanEval on another machine, or leave it out of the tasks"
            )
        return CodeResult(said["outcome"], said["detail"])
    if timed_out or status in (-signal.SIGALRM, -signal.SIGXCPU):
        return CodeResult("timeout", "it ran out of time")
    if status < 0:
        return CodeResult("killed", f"the process ended by signal {-status}")
    return CodeResult("failed", f"it ended before its last line, with status {status}")
