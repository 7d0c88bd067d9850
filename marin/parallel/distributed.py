"""Several processes, on one machine or many, that train together: how they find each other, and what they agree on.

`start` is called once in each process before JAX looks for devices. The first of these that is set says who is who:

    MARIN_COORDINATOR=host:port MARIN_NUM_PROCESSES=2 MARIN_PROCESS_ID=0     by hand
    MASTER_ADDR MASTER_PORT WORLD_SIZE RANK                                  torchrun
    SLURM_STEP_NUM_TASKS and others                                          srun

Process 0 writes the record and speaks to people; the others are silent, but for errors. A decision that depends on time or
signals is taken by all of them at the same step, or they would wait for each other for ever.
"""

import atexit
import contextlib
import dataclasses
import itertools
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin.errors import ConfigError, HardwareError, MarinError, leave
from marin.execution import presence
from marin.execution.following import step_of_one
from marin.hardware import why_no_device
from marin.nn.axes import BATCH_AXES
from marin.parallel.mesh import batch_sharding

Rows = TypeVar("Rows")  # a named tuple of arrays [B, T]

_BY_HAND = ("MARIN_COORDINATOR", "MARIN_NUM_PROCESSES", "MARIN_PROCESS_ID")
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_TIMEOUT = "MARIN_START_TIMEOUT"
_SHUTDOWN = 24 * 3600
_MEETING = 3600
# What JAX's transports say when a process that they talk to has ended; the rest is theirs to word.
_LOST_PROCESS = re.compile(
    r"(Gloo [\w-]+ failed|NCCL|coordination service|heartbeat).*|Connection (closed|reset) by peer.*|Socket closed.*",
    re.DOTALL,
)
_meetings = itertools.count()  # a barrier's name serves once


@dataclasses.dataclass(frozen=True)
class Processes:
    """Who takes part, as `jax.distributed.initialize` takes it; None where JAX finds it out."""

    how: str
    coordinator: str | None = None
    count: int | None = None
    index: int | None = None
    local_devices: tuple[int, ...] | None = None


def processes_of(environment: Mapping[str, str]) -> Processes | None:
    """What the environment says; None where this process is alone.

    Raises:
        ConfigError: if some of the variables that belong together are missing or cannot be right.
    """
    if any(name in environment for name in _BY_HAND):
        return _by_hand(environment)
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", least=1, missing=1)
    if "RANK" in environment or "WORLD_SIZE" in environment:
        named = _torchrun(environment)
        if named is None and tasks > 1 and "TORCHELASTIC_RUN_ID" not in environment:
            raise ConfigError(
                f"WORLD_SIZE is 1, but srun started {tasks} processes, and each would train alone: unset WORLD_SIZE and RANK,"
                " or start one process"
            )
        return named
    return Processes("SLURM") if tasks > 1 else None


def start(environment: Mapping[str, str] = os.environ) -> None:
    """Joins this process to the others, where there are some; before anything asks JAX for devices.

    Raises:
        ConfigError: if the variables cannot be right, or JAX has begun without the others.
        HardwareError: if the processes do not find each other in time (`MARIN_START_TIMEOUT`, 300 seconds).
    """
    processes = processes_of(environment)
    if processes is None or jax.distributed.is_initialized():
        return
    if processes.count != 1 and (step := step_of_one.get()) is not None:
        raise ConfigError(
            f"step `{step}` is run by process 0 alone, but trains, and {processes.how} starts several processes: write"
            " `marin_together = True` into the class of its config, and all of them train together"
        )
    timeout = _number(environment, _TIMEOUT, least=1, missing=300)
    if processes.coordinator is not None and processes.index:
        _wait_for_coordinator(processes.how, processes.coordinator, timeout)
    # Between processes on processors; other devices have their own.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX's own handler of SIGTERM would take the place of ours, and swallow it outside of the loop.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=processes.coordinator,
            num_processes=processes.count,
            process_id=processes.index,
            local_device_ids=processes.local_devices,
            cluster_detection_method="slurm" if processes.how == "SLURM" else "deactivate",
            initialization_timeout=timeout,
            # A process whose part is done waits at its end for the others, which may have evaluation before them.
            shutdown_timeout_seconds=_SHUTDOWN,
        )
    except RuntimeError as error:
        if "before" in str(error):
            raise ConfigError(
                f"{processes.how} starts several processes, but JAX already runs in this one alone: start training in a"
                " process of its own"
            ) from None
        raise HardwareError(
            f"the processes that {processes.how} names did not find each other in {timeout} s ({error}): see that all of"
            f" them run and reach {processes.coordinator or 'the first host'}, or raise {_TIMEOUT}"
        ) from None


@contextlib.contextmanager
def taking_part() -> Iterator[None]:
    """For what several processes do together: only the first prints, and one that fails does not wait for the others.

    Raises:
        HardwareError: if JAX has no device here.
    """
    with _leaves_after_errors():
        start_devices()
        with _only_main_speaks():
            yield


def start_devices() -> str:
    """The platform of the devices that JAX computes on from now on, such as "cpu".

    Raises:
        HardwareError: if there is none.
    """
    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # the second where a platform is asked for that has no plugin here
        chosen = os.environ.get("JAX_PLATFORMS")
        way = f"JAX_PLATFORMS is {chosen!r}, unset it, or run `marin doctor`" if chosen else "run `marin doctor`"
        raise HardwareError(f"JAX found no device ({why_no_device(str(error))}): {way}") from None


@contextlib.contextmanager
def _leaves_after_errors() -> Iterator[None]:
    """A process that fails inside of this ends with its program, and does not wait for the others first.

    JAX has each process wait at its end until all have come to theirs; those that wait for this one in a computation never
    do. When it is gone their computation fails, and they end as well.
    """
    try:
        yield
    except Exception as error:
        if jax.distributed.is_initialized():
            # What is registered last is called first: before JAX's own waiting.
            atexit.register(leave, 2 if isinstance(error, MarinError) else 1)
            if not isinstance(error, MarinError) and (found := _LOST_PROCESS.search(str(error))):
                raise HardwareError(
                    f"another process of this run is gone, or cannot be reached any more ({found[0][:200]}): what it printed last"
                    " says why. Start all of them again with the same command: the run goes on from its last checkpoint"
                ) from error
        raise


def _wait_for_coordinator(how: str, address: str, timeout: int) -> None:
    """Returns when process 0 listens. JAX's own waiting ends with an abort of the process and no message."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            _connect(address)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise HardwareError(
                    f"process 0 of those that {how} names did not listen on {address} in {timeout} s ({error}): see that it"
                    f" runs and that this machine reaches it, or raise {_TIMEOUT}"
                ) from None
            time.sleep(0.5)


def _connect(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def leads() -> bool:
    """Whether process 0 waits for the others in `start`, or has them; True where the environment does not say where it listens."""
    processes = processes_of(os.environ)
    if processes is None or processes.coordinator is None:
        return True
    try:
        _connect(processes.coordinator)
    except OSError:
        return False
    return True


def process_index(environment: Mapping[str, str]) -> int:
    """The number of this process by the environment, without asking JAX; 0 for one that is alone."""
    processes = processes_of(environment)
    if processes is not None and processes.how == "SLURM":
        return _number(environment, "SLURM_PROCID", least=0)
    return 0 if processes is None or processes.index is None else processes.index


def name_of_start(environment: Mapping[str, str]) -> str | None:
    """What all processes that were started with this one have in common; None for one that is alone.

    Of an address it is the port, as process 0 may name its own host otherwise than the others do.
    """
    processes = processes_of(environment)
    if processes is None or processes.count == 1:
        return None
    if processes.coordinator is None:
        return "-".join(
            ["slurm", *(environment[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in environment)]
        )
    return f"port-{processes.coordinator.rpartition(':')[2]}-of-{processes.count}"


def watch_process_0(prefix: str, environment: Mapping[str, str]) -> presence.Watch | None:
    """Watches for process 0 of the start that this process is of; None for one that is alone."""
    start = name_of_start(environment)
    if start is None:
        return None
    timeout = _number(environment, _TIMEOUT, least=1, missing=300)
    return presence.Watch(presence.directory_of(prefix, start), timeout, f"raise {_TIMEOUT}")


def show_process_0(prefix: str, environment: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
    """In this, the others of its start see that process 0 is there; nothing for another process, or one that is alone."""
    start = name_of_start(environment)
    if start is None or process_index(environment) > 0:
        return contextlib.nullcontext()
    return presence.shown(presence.directory_of(prefix, start))


def is_main() -> bool:
    """Whether this process writes the record and speaks to people."""
    return bool(jax.process_index() == 0)


def warn(text: str) -> None:
    """A line on standard error, from one of the processes that train together."""
    if is_main():
        print(text, file=sys.stderr)


@contextlib.contextmanager
def _only_main_speaks() -> Iterator[None]:
    """Silences the standard output of all processes but the first."""
    if is_main():
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def meet(place: str) -> None:
    """Returns when every process has come here.

    The first sum between processors waits 30 seconds for the others, and a process that finds its program in the compile
    cache is ahead of one that compiles by more than that.
    """
    if jax.process_count() > 1:
        _service().wait_at_barrier(f"marin {next(_meetings)} {place}", timeout_in_ms=_MEETING * 1000)


def of_main(value: Any) -> Any:
    """The first process's value in all of them; it must be plain JSON."""
    if jax.process_count() == 1:
        return value
    key = f"marin {next(_meetings)}"
    if is_main():
        _service().key_value_set(key, json.dumps(value))
    return json.loads(_service().blocking_key_value_get(key, _MEETING * 1000))


def whole(array: Any) -> np.ndarray:
    """All of an array on this host. Where processes hold parts of it, each of them must ask, in the same order."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def _service() -> Any:
    """What the processes share beside arrays; JAX has no public name for it."""
    from jax._src import distributed

    return distributed.global_state.client


class Agreement:
    """Decisions of single processes that become those of all.

    The flags of each step are put together on the devices while the step runs, and known with the next step, so that
    nothing waits for them. Alone, a process agrees with itself at once.
    """

    def __init__(self) -> None:
        self._alone = jax.process_count() == 1
        self.calls_behind = 0 if self._alone else 1
        if self._alone:
            return
        self._mesh = Mesh(np.array(jax.devices()), ("all",))
        whole = NamedSharding(self._mesh, PartitionSpec())
        self._any = jax.jit(lambda flags: flags.max(axis=0), out_shardings=whole)
        self._pending: jax.Array | None = None

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether a process raised it: in this call where it is alone, else in the call before."""
        if self._alone:
            return flags
        own = np.tile(np.array(flags, np.int32), (jax.local_device_count(), 1))
        every = jax.make_array_from_process_local_data(NamedSharding(self._mesh, PartitionSpec("all")), own)
        before, self._pending = self._pending, self._any(every)
        return tuple(False for _ in flags) if before is None else tuple(bool(flag) for flag in np.asarray(before))


def place_batch(read: Callable[[int, int], Rows], batch_size: int, mesh: Mesh) -> Rows:
    """A batch on the mesh, of which each process reads only the rows that its devices need.

    Args:
        read: (first row, number of rows) to a named tuple of arrays [B, T].
    """
    sharding = batch_sharding(mesh)
    if jax.process_count() == 1:
        return jax.device_put(read(0, batch_size), sharding)
    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXES)).addressable_devices_indices_map((batch_size,)).values()
    ranges = [index[0].indices(batch_size) for index in rows if index is not None]
    first, stop = min(start for start, _, _ in ranges), max(stop for _, stop, _ in ranges)
    part = read(first, stop - first)

    def place(leaf: np.ndarray) -> jax.Array:
        def piece(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # rows are always split
            start, end, _ = index[0].indices(batch_size)
            return leaf[start - first : end - first, index[1]]

        return jax.make_array_from_callback((batch_size, *leaf.shape[1:]), sharding, piece)

    return jax.tree.map(place, part)


def _by_hand(environment: Mapping[str, str]) -> Processes:
    _check_complete(environment, _BY_HAND, "to start several processes by hand")
    coordinator = environment["MARIN_COORDINATOR"]
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16 or (":" in host and not host.startswith("[")):
        raise ConfigError(
            f"MARIN_COORDINATOR is {coordinator!r}: write the host and port of process 0, as in node1:12345 or [fd00::1]:12345"
        )
    count = _number(environment, "MARIN_NUM_PROCESSES", least=1)
    index = _number(environment, "MARIN_PROCESS_ID", least=0, below=count)
    return Processes("MARIN_COORDINATOR", coordinator, count, index)


def _torchrun(environment: Mapping[str, str]) -> Processes | None:
    count = _number(environment, "WORLD_SIZE", least=1, missing=0)
    if count == 1:
        return None
    _check_complete(environment, _TORCHRUN, "as torchrun sets them")
    index = _number(environment, "RANK", least=0, below=count)
    # torchrun's own store listens on MASTER_PORT.
    port = _number(environment, "MASTER_PORT", least=1, below=2**16 - 1) + ("TORCHELASTIC_RUN_ID" in environment)
    several_here = _number(environment, "LOCAL_WORLD_SIZE", least=1, missing=1) > 1
    local = (_number(environment, "LOCAL_RANK", least=0),) if several_here else None
    host = environment["MASTER_ADDR"]
    if ":" in host and not host.startswith("["):  # IPv6
        host = f"[{host}]"
    return Processes("torchrun", f"{host}:{port}", count, index, local)


def _check_complete(environment: Mapping[str, str], names: tuple[str, ...], purpose: str) -> None:
    missing = [name for name in names if name not in environment]
    if missing:
        given = ", ".join(name for name in names if name in environment)
        raise ConfigError(
            f"{given} is set without {', '.join(missing)}: set all of {', '.join(names)} {purpose}, or none"
        )


def _number(
    environment: Mapping[str, str], name: str, *, least: int, below: int | None = None, missing: int | None = None
) -> int:
    text = environment.get(name)
    if text is None and missing is not None:
        return missing
    if text is None or not text.isdecimal() or int(text) < least or (below is not None and int(text) >= below):
        wanted = f"a whole number of at least {least}" + (f" and below {below}" if below is not None else "")
        raise ConfigError(f"the environment variable {name} is {text!r}: expected {wanted}")
    return int(text)
