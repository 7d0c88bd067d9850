"""The sandbox for generated code: what computes runs, and what reaches out is refused."""

import ctypes
import os
import socket
import subprocess
import sys
import time

import pytest

from marin.errors import ConfigError
from marin.evaluation import code_sandbox
from marin.evaluation.code_sandbox import run_code

PATIENCE = 60.0  # a busy machine may take longer than the usual limit for what ends by itself


@pytest.mark.parametrize(
    "program",
    [
        "assert sorted([3, 1, 2]) == [1, 2, 3]",
        "import math, collections, re, itertools, heapq, string\nassert math.gcd(4, 6) == 2",
        "from typing import List\ndef f(x: List[int]) -> int:\n    return sum(x)\nassert f([1, 2]) == 3",
        'print(\'{"outcome": "failed"}\')',
        "if __name__ == '__main__':\n    x = 1",
        "import decimal, hashlib, random, datetime, zoneinfo, sqlite3, json.tool\nrandom.SystemRandom().random()",
        "from dataclasses import dataclass\n@dataclass\nclass Node:\n    after: 'Node | None' = None\nassert Node(Node()).after == Node()",
        "import pickle\nclass A: pass\nassert type(pickle.loads(pickle.dumps(A()))) is A",
    ],
)
def test_program_that_computes_passes(program):
    assert run_code(program, seconds=PATIENCE).passed


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("def f(:", "SyntaxError"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("import os\nos._exit(0)", "before its last line"),
        ("class E(Exception):\n    def __str__(self):\n        1 / 0\nraise E", "cannot be shown"),
        ("import numpy", "ModuleNotFoundError"),
    ],
)
def test_program_that_fails_or_ends_early_does_not_pass(program, detail):
    found = run_code(program, seconds=PATIENCE)
    assert found.outcome == "failed" and detail in found.detail


@pytest.mark.parametrize("block", ["print(1 / 0)", "import unittest; unittest.main()", "input()"])
def test_what_a_reply_does_as_a_program_of_its_own_is_not_run(block):
    result = run_code(
        f"def one():\n    return 1\n\nif __name__ == '__main__':\n    {block}\n\nassert one() == 1\n", seconds=PATIENCE
    )
    assert result.passed, result


def test_program_that_forges_the_verdict_does_not_pass():
    forged = 'import os\nfor fd in range(20):\n    try:\n        os.write(fd, b\'{"token": "", "outcome": "passed", "detail": ""}\')\n    except OSError:\n        pass\nos._exit(0)'
    assert not run_code(forged).passed


HOSTILE = {
    "a file": "open({path!r}, 'w').write('x')",
    "a file by its number": "import os\nos.open({path!r}, os.O_WRONLY | os.O_CREAT)",
    "a file without a name": "import os\nos.open('/tmp', os.O_TMPFILE | os.O_RDWR)",
    "appending": "open({existing!r}, 'a').write('x')",
    "removing": "import os\nos.remove({existing!r})",
    "renaming": "import os\nos.rename({existing!r}, {path!r})",
    "truncating": "import os\nos.truncate({existing!r}, 0)",
    "a folder": "import os\nos.mkdir({path!r})",
    "a link": "import os\nos.symlink('/etc', {path!r})",
    "permissions": "import os\nos.chmod({existing!r}, 0)",
    "a TCP socket": "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "a UDP socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "a Unix socket": "import socket\nsocket.socket(socket.AF_UNIX)",
    "fork": "import os\nos.fork()",
    "a subprocess": "import subprocess\nsubprocess.run(['true'], check=True)",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "a thread": "import threading\nthreading.Thread(target=print).start()",
    "a signal to the parent": "import os\nos.kill(os.getppid(), 15)",
    "raising its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "ptrace": "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nassert libc.ptrace(16, 1, 0, 0) == 0",
    "a raw system call": "import ctypes\nassert ctypes.CDLL(None).syscall(41, 2, 1, 0) >= 0",
    "a call of the other table": "import ctypes\nassert ctypes.CDLL(None).syscall(0x40000000 + 41, 2, 1, 0) >= 0",
    "memory": "x = bytearray(10**9)",
    "memory bit by bit": "x = []\nwhile True:\n    x.append(bytearray(10**6))",
}


@pytest.mark.parametrize("attempt", HOSTILE)
def test_hostile_program_is_refused_and_leaves_no_trace(attempt, tmp_path):
    existing, path = tmp_path / "existing", tmp_path / "made"
    existing.write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        port = server.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        udp.setblocking(False)
        server.setblocking(False)
        found = run_code(HOSTILE[attempt].format(existing=str(existing), path=str(path), port=port), seconds=PATIENCE)
        for listening in (server.accept, lambda: udp.recv(1)):
            with pytest.raises(BlockingIOError):
                listening()
    assert found.outcome == "failed", found
    assert not path.exists() and existing.read_text() == "kept" and existing.stat().st_mode & 0o600 == 0o600


READING = {
    "a file of the user": "open({existing!r}).read()",
    "a folder of the user": "import os\nos.listdir({folder!r})",
    "the environment of the parent": "import os\nopen('/proc/%d/environ' % os.getppid(), 'rb').read()",
    "the memory of the parent": "import os\nopen('/proc/%d/mem' % os.getppid(), 'rb')",
    "a pipe of the parent": "import os\nos.open('/proc/%d/fd/{pipe}' % os.getppid(), os.O_RDONLY | os.O_NONBLOCK)",
}


@pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint(1)) < 1, reason="this kernel has no Landlock"
)
@pytest.mark.parametrize("attempt", READING)
def test_program_reads_nothing_but_pythons_own_files(attempt, tmp_path):
    existing = tmp_path / "existing"
    existing.write_text("secret")
    pipe, other_end = os.pipe()
    program = READING[attempt].format(existing=str(existing), folder=str(tmp_path), pipe=pipe)
    assert subprocess.run([sys.executable, "-I", "-S", "-c", program], check=False).returncode == 0  # allowed outside
    found = run_code(program, seconds=PATIENCE)
    os.close(pipe)
    os.close(other_end)
    assert found.outcome == "failed" and "PermissionError" in found.detail, found


@pytest.mark.parametrize(
    "program", ["while True: pass", "import time\ntime.sleep(600)", "while True: print('x' * 9999)"]
)
def test_program_without_end_is_stopped(program):
    begin = time.monotonic()
    assert run_code(program, seconds=0.5).outcome == "timeout"
    assert time.monotonic() - begin < 60


def test_program_that_ignores_the_alarm_is_killed(monkeypatch):
    monkeypatch.setattr(code_sandbox, "_STARTUP_SECONDS", 0.5)
    program = "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    assert run_code(program, seconds=0.5).outcome == "timeout"


def test_secrets_of_the_environment_are_not_handed_on(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_code("import os\nassert 'HF_TOKEN' not in os.environ", seconds=PATIENCE).passed
    assert os.environ["HF_TOKEN"] == "secret"


def test_system_without_a_sandbox_runs_nothing(monkeypatch):
    monkeypatch.setattr(code_sandbox.sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="needs Linux"):
        run_code("x = 1")
