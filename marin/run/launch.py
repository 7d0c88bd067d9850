"""Starts a program in several processes on one machine, as torchrun does, without PyTorch.

    python -m marin.run.launch --nproc_per_node 8 -m scripts.base_train -- --depth=26 --fp8

Each process gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which
`marin.parallel.distributed` reads. Over several machines, start it on each with the same `--master_addr` and
`--master_port`, and with its own `--node_rank`. Where one process fails the others are stopped, and its exit status is
the launcher's; Ctrl-C and SIGTERM are passed on, so that all of them save and stop. On Linux they do so too where the
launcher itself is killed.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from marin.children import ENDING_WITH_PARENT, child_environment, free_ports
from marin.errors import ConfigError, clean_exit
from marin.flags import Parser, flag_of

_POLL = 0.2
_GRACE = 60.0  # seconds from asking a process to stop to killing it


def main(arguments: Sequence[str]) -> int:
    """Runs all processes to their end, and returns the exit status of the first that failed, or 0.

    Raises:
        ConfigError: numbers that cannot be.
    """
    own, program = _split(list(arguments))
    if not program and not {"-h", "--help"} & set(own):  # first, as a file's flags would be taken for the launcher's
        raise ConfigError(
            "there is nothing to run: name a module and its flags last, `-m scripts.base_train -- --depth=12`"
        )
    options = _parser().parse_args(own)
    count, nodes = options.nproc_per_node, options.nnodes
    if count < 1 or nodes < 1 or not 0 <= options.node_rank < nodes:
        raise ConfigError(
            f"{count} processes on node {options.node_rank} of {nodes} cannot be: use at least 1, and ranks from 0 to"
            f" {nodes - 1}"
        )
    if nodes > 1 and (options.master_addr is None or options.master_port is None):
        raise ConfigError("several nodes need `--master_addr` and `--master_port` of node 0, the same on all of them")
    port = options.master_port or free_ports(1)[0]
    shared = {
        "MASTER_ADDR": options.master_addr or "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count * nodes),
        "LOCAL_WORLD_SIZE": str(count),
    }
    environments = [
        child_environment(**shared, RANK=str(options.node_rank * count + local), LOCAL_RANK=str(local))
        for local in range(count)
    ]
    # A launcher that is killed passes nothing on; processes that went on alone would hold what a second start needs.
    return _run([sys.executable, *ENDING_WITH_PARENT, "-m", *program], environments)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The launcher's own arguments; and the module with the arguments that follow it, which are all its own."""
    if "-m" not in arguments:
        return arguments, []
    place = arguments.index("-m")
    module, rest = arguments[place + 1 : place + 2], arguments[place + 2 :]
    return arguments[:place], [*module, *(rest[1:] if rest[:1] == ["--"] else rest)]


def _parser() -> Parser:
    parser = Parser(
        prog="python -m marin.run.launch",
        usage="%(prog)s [--nproc_per_node N] [more of the options below] -m MODULE [-- FLAGS OF THE MODULE]",
        description=__doc__,
        allow_abbrev=False,
    )
    for name, kind, default, text in (
        ("nproc_per_node", int, 1, "processes on this machine"),
        ("nnodes", int, 1, "machines"),
        ("node_rank", int, 0, "the number of this machine"),
        ("master_addr", str, None, "address of machine 0"),
        ("master_port", int, None, "a free port of it"),
    ):
        said = text if default is None else f"{text} (default {default})"
        flags = dict.fromkeys((f"--{name}", flag_of(name)))
        parser.add_argument(*flags, type=kind, default=default, help=said)
    parser.add_argument("--standalone", action="store_true", help="one machine, which is the default")
    return parser


def _run(command: list[str], environments: list[dict[str, str]]) -> int:
    """Runs a process for each environment; signals that come from before the first has begun are passed on."""
    processes: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for environment in environments:
            if not asked:
                # Ctrl-C reaches the whole group of the terminal; who is asked to stop is for this process to say.
                processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
        while True:
            statuses = [process.poll() for process in processes]
            failed = [status for status in statuses if status]
            if failed or None not in statuses:
                break
            time.sleep(_POLL)
        if failed:
            _stop(processes, asked_already=bool(asked))
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        return 128 + asked[0] if len(processes) < len(environments) else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in processes:
            if process.poll() is None:
                process.kill()


def _stop(processes: list["subprocess.Popen[bytes]"], *, asked_already: bool) -> None:
    """Lets processes that were asked to stop save what they have; the others wait for one that is gone, and are asked.

    Nobody is asked twice: a second signal means to stop at once, in the middle of saving.
    """
    deadline = time.monotonic() + _GRACE
    for process in processes:
        if process.poll() is None and not asked_already:
            process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    with clean_exit():
        sys.exit(main(sys.argv[1:]))
