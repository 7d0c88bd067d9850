"""Freed memory is kept: measured in a process of its own, as the options of the C library hold for a whole process."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys
from marin.training.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
before = 0
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(1 << 26)
    ctypes.memset(block, 1, 1 << 26)
    library.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the options are glibc's")
def test_memory_freed_by_one_step_is_not_asked_of_the_kernel_again(
    plain_environment: dict[str, str], repository
) -> None:
    def faults(word: str) -> int:
        command = [sys.executable, "-c", SCRIPT, word]
        done = subprocess.run(
            command, cwd=repository, env=plain_environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults("default") > 1000
    assert faults("keep") < 100


FIRST = """
import types
from jax._src import xla_bridge
from marin.resources import CpuOnlyConfig
from marin.training import loop

def keep_freed_memory():
    raise SystemExit("too late" if xla_bridge.backends_are_initialized() else "in time")

loop.keep_freed_memory = keep_freed_memory
loop.train_lm(types.SimpleNamespace(train=types.SimpleNamespace(resources=CpuOnlyConfig())))
"""


def test_training_keeps_freed_memory_before_anything_makes_jax_look_at_its_devices(
    plain_environment: dict[str, str], repository
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST],
        cwd=repository,
        env=plain_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip().splitlines()[-1] == "in time"
