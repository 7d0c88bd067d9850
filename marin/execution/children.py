"""What every process that this package starts has in common: how it finds the package, and that it ends with its parent.

What such a process is sent is pickled, and never comes from a file that somebody else could have written: it goes through a
pipe, or through a temporary directory that only this user can read.
"""

import ctypes
import os
import pathlib
import signal
import sys

# Arguments of a Python that becomes the one whose arguments follow, and ends with its parent; without a fork, which JAX forbids.
ENDING_WITH_PARENT = ("-m", "marin.execution.children")
_PARENT = "MARIN_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def child_environment(**variables: str) -> dict[str, str]:
    """The environment for a child: this process's, with the package on its path, and `variables`."""
    package_root = str(pathlib.Path(__file__).resolve().parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), _PARENT: str(os.getpid())} | variables


def end_with_parent(signal_number: signal.Signals, parent: int | None = None) -> None:
    """Has the kernel send this child a signal when its parent dies; elsewhere than on Linux it goes on alone.

    Args:
        parent: the parent's process number; None for the one that `child_environment` told.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != (parent or int(os.environ.get(_PARENT, os.getppid()))):  # it died before that
        sys.exit(143)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
