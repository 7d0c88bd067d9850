"""What processes that this package starts have in common: how they find the package, where they listen, and how they end.

What such a process is sent is pickled, and never comes from a file that somebody else could have written: it goes through a
pipe, or through a temporary directory that only this user can read.
"""

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import sys

# Arguments of a Python that becomes the one whose arguments follow, and ends with its parent; without a fork, which JAX forbids.
ENDING_WITH_PARENT = ("-m", "marin.children")
_PARENT = "MARIN_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def child_environment(**variables: str) -> dict[str, str]:
    """The environment for a child: this process's, with the package on its path, and `variables`."""
    package_root = str(pathlib.Path(__file__).resolve().parents[1])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), _PARENT: str(os.getpid())} | variables


def end_with_parent(signal_number: signal.Signals, parent: int | None = None) -> None:
    """Has the kernel send this child a signal when its parent dies; elsewhere than on Linux it goes on alone.

    Args:
        parent: the parent's process number, for a child by fork; None for the one that `child_environment` told.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != (parent or int(os.environ.get(_PARENT, os.getppid()))):  # it died before that
        sys.exit(143)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nothing on this machine holds now; until a child takes them another program may."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
