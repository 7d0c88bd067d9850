"""A Ray cluster as the executor sees it: joined or started, checked, and asked for what a step needs.

Ray (Moritz et al., 2018, arXiv:1712.05889) is the extra `ray`; nothing here is imported without it being asked for.
"""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from marin.children import free_ports
from marin.errors import ConfigError, HardwareError, StorageError
from marin.hardware import Device, lookup_device, tpu_chips
from marin.resources import CpuOnlyConfig, GpuConfig, Resources, TpuPodConfig
from marin.storage import files

_TPU_CHIPS_A_HOST = 4
# GPUs of one host, where a cluster that grows has none of the type yet; the catalogue's types that come otherwise (data sheets).
_GPUS_A_HOST = 8
_OTHER_GPUS_A_HOST = {"GB200": 4, "GH200": 1, "GB10": 1}
# What a node shows of a special kind of device is taken in a small part by each task, so that many fit.
_A_LITTLE = 0.001
# In the environment of a step's process: what its job was given, the repository and variables, as Ray's runtime environment in JSON.
GIVEN_TO_JOB = "MARIN_RAY_RUNTIME_ENV"
# What steps and their shards may see of the driver's environment on other nodes, but for what belongs to one process.
_PASSED_ON = ("MARIN_", "JAX_", "XLA_", "HF_", "HUGGING_FACE_", "WANDB_", "AWS_", "GOOGLE_", "SR_")
_OF_ONE_PROCESS = (
    "MARIN_PARENT_PID", "MARIN_RUNNER", "MARIN_SHARDS", "MARIN_COORDINATOR", "MARIN_NUM_PROCESSES", "MARIN_PROCESS_ID", GIVEN_TO_JOB,
)  # fmt: skip
_PROBE_SECONDS = 60.0
_ANSWER_SECONDS = 10.0
_HTTP_ANSWER_SECONDS = 2.0
_SECONDS_TO_BE_KNOWN = 20.0


@dataclasses.dataclass(frozen=True)
class Request:
    """What a step asks a cluster for: one bundle of Ray resources for each host that takes part in it."""

    bundles: tuple[dict[str, float], ...]

    @property
    def num_hosts(self) -> int:
        return len(self.bundles)


def import_ray() -> Any:
    """The library.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "Ray is not installed: run `uv pip install 'marin[ray]'`, or run the experiment on this machine without it"
        ) from None
    return ray


def passed_on() -> dict[str, str]:
    """The variables of this process that tasks of the cluster get too."""
    return {
        name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON) and name not in _OF_ONE_PROCESS
    }


def connect() -> Any:
    """Ray, joined to the cluster that `RAY_ADDRESS` names, or to one on this machine that ends with this process.

    A step of a job joins with what the job was given, so that its tasks find the repository as the step itself does.

    Raises:
        ConfigError: there is no Ray, no cluster at that address, or one does not start here.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS")
    if address and address.startswith(("http://", "https://")):
        raise ConfigError(
            f"RAY_ADDRESS is {address}, where jobs are submitted: start this as a job,"
            " `python marin/run/ray_run.py -- python -m ...`, or name the cluster itself, as in head:6379"
        )
    if address:
        check_listens(address)
    try:
        with _signals_kept():
            ray.init(
                address=address or "local",
                logging_level="error",
                include_dashboard=False if not address else None,
                runtime_env=json.loads(os.environ.get(GIVEN_TO_JOB, "{}")) or None,
            )
    except Exception as error:  # a plain one where its processes do not start in time
        if not address:
            raise did_not_start(error) from None
        raise ConfigError(
            f"there is no Ray cluster at {address} ({error}): start one with `ray start --head`, or unset"
            " RAY_ADDRESS to start one here"
        ) from None
    return ray


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Puts this program's handler of SIGTERM back after `ray.init`, which sets its own.

    Ray's prints a stack of its C++ code, and ends the process 3 seconds later, whatever the steps still have to save.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def did_not_start(error: Exception | str) -> ConfigError:
    """What to say where Ray's own processes did not come up on this machine; Ray itself waits for them for 30 seconds."""
    return ConfigError(
        f"Ray did not start on this machine ({error}): run the same command again when the machine is less busy, or name a"
        " cluster that runs in RAY_ADDRESS"
    )


def check_listens(address: str) -> None:
    """Refuses an address where nothing or a web server answers, on which Ray itself would wait for minutes.

    Raises:
        ConfigError: with what to do.
    """
    host, _, port = address.rpartition("://")[2].strip("/").rpartition(":")
    if not host or not port.isdecimal():  # such as `auto`, which Ray looks up on this machine
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS) as connection:
            is_web = "://" not in address and _speaks_http(connection)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"nothing answers at {address} ({error}): start a cluster with `ray start --head`, or unset RAY_ADDRESS to start"
            " one on this machine"
        ) from None
    if is_web:
        raise ConfigError(
            f"{address} is a web server, as Ray's dashboard is, and not the cluster itself: name the port that `ray start --head`"
            f" shows, as in {host}:6379, or write http://{address} to submit a job with marin/run/ray_run.py"
        )


def _speaks_http(connection: socket.socket) -> bool:
    """Whether a server answers in HTTP/1; a cluster's own begins to speak another protocol at once."""
    connection.settimeout(_HTTP_ANSWER_SECONDS)
    try:
        connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def alive_nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def known_nodes(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are alive, once Ray says of one what processors it has, which it does a moment after the node came."""
    end = time.monotonic() + _SECONDS_TO_BE_KNOWN
    while True:
        nodes = alive_nodes(ray)
        if any(node["Resources"].get("CPU") for node in nodes) or time.monotonic() > end:
            return nodes
        time.sleep(0.1)


def request_for(resources: Resources | None, nodes: list[dict[str, Any]], *, grows: bool = False) -> Request:
    """The bundles for a step.

    A step that names nothing takes one processor. GPUs of one step come from as few nodes as have them; a TPU slice takes all
    of its hosts.

    Args:
        grows: the cluster adds nodes by itself; GPUs of a type that no node has yet are planned as its hosts usually have them.
    Raises:
        HardwareError: no node has what is asked for.
    """
    if resources is None:
        return Request(({"CPU": 1.0},))
    if isinstance(resources, CpuOnlyConfig):
        return Request(({"CPU": float(resources.num_cpus or 1)},) * resources.num_hosts)
    if isinstance(resources, GpuConfig):
        return _gpu_request(resources, nodes, grows)
    if isinstance(resources, TpuPodConfig):
        return _tpu_request(resources)
    raise ConfigError(f"`resources` is {resources!r}: the Ray runner knows CpuOnlyConfig, GpuConfig and TpuPodConfig")


def check_fits(name: str, request: Request, nodes: list[dict[str, Any]], grows: bool) -> None:
    """Refuses what no node could ever run, which Ray would wait for without end.

    Args:
        grows: the cluster adds nodes by itself, so that nothing is refused.
    Raises:
        HardwareError: with what there is.
    """
    if grows:
        return
    for bundle in request.bundles:
        if not any(all(node["Resources"].get(key, 0) >= amount for key, amount in bundle.items()) for node in nodes):
            raise HardwareError(
                f"step `{name}` asks for {_described(bundle)} on one node, and no node of the cluster has that:"
                f" there are {'; '.join(sorted((_described(_shown(node)) for node in nodes), reverse=True))}"
            )
    if request.num_hosts > 1 and request.bundles[0].get("GPU") and request.num_hosts > len(nodes):
        raise HardwareError(f"step `{name}` asks for {request.num_hosts} nodes, and the cluster has {len(nodes)}")


def check_prefix_is_shared(ray: Any, prefix: str) -> None:
    """Proves that all nodes see the same files below a local prefix.

    Raises:
        StorageError: a node does not; it is named.
    """
    own = ray.util.get_node_ip_address()
    others = [node for node in alive_nodes(ray) if node["NodeManagerAddress"] != own]
    if not files.is_local(prefix) or not others:
        return
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = files.join(prefix, files.temporary_name("seen_by_all"))
    files.write_bytes(probe, b"")
    try:
        look = ray.remote(num_cpus=0)(files.exists)
        seen = {
            node["NodeManagerAddress"]: look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(probe)
            for node in others
        }
        for address, answer in seen.items():
            if not ray.get(answer, timeout=_PROBE_SECONDS):
                raise StorageError(
                    f"node {address} of the cluster does not see {prefix}: use a prefix that all nodes share, such as"
                    " gs://bucket/path or a network file system"
                )
    finally:
        files.remove_file(probe)


def coordinator_address() -> str:
    """Where the first of several processes on this host can listen for the others: `host:port`."""
    ray = import_ray()
    return f"{ray.util.get_node_ip_address()}:{free_ports(1, host='')[0]}"


def _gpu_request(resources: GpuConfig, nodes: list[dict[str, Any]], grows: bool) -> Request:
    kind = None if resources.accelerator_type == "auto" else _ray_name(resources.accelerator_type, nodes)
    fitting = [node["Resources"] for node in nodes if kind is None or kind in node["Resources"]]
    largest = int(max((node.get("GPU", 0) for node in fitting), default=0))
    if not largest and grows:
        largest = _usual_gpus_a_host(resources.accelerator_type)
    if not largest:
        have = sorted(
            {key.split(":", 1)[1] for node in nodes for key in node["Resources"] if key.startswith("accelerator_type:")}
        )
        raise HardwareError(
            f"no node of the cluster has a GPU of type {resources.accelerator_type}: there are {', '.join(have) or 'none'}"
        )
    num_hosts = -(-resources.gpu_count // largest)
    if resources.gpu_count % num_hosts:
        raise HardwareError(
            f"{resources.gpu_count} GPUs do not divide over nodes with {largest}: ask for a multiple of {largest}"
        )
    bundle = {"GPU": float(resources.gpu_count // num_hosts), "CPU": 1.0} | ({kind: _A_LITTLE} if kind else {})
    return Request((bundle,) * num_hosts)


def _usual_gpus_a_host(accelerator_type: str) -> int:
    device = _in_catalogue(accelerator_type)
    return _GPUS_A_HOST if device is None else _OTHER_GPUS_A_HOST.get(device.name, _GPUS_A_HOST)


def _ray_name(accelerator_type: str, nodes: list[dict[str, Any]]) -> str:
    """The resource by which Ray's nodes show this type; where none does, as the catalogue spells it."""
    wanted = _in_catalogue(accelerator_type)
    spellings = [accelerator_type] if wanted is None else [wanted.name, *wanted.aliases, accelerator_type]
    for node in nodes:
        for key in node["Resources"]:
            shown = key.removeprefix("accelerator_type:")
            if shown != key and (shown in spellings or (wanted is not None and _in_catalogue(shown) == wanted)):
                return key
    same = [name for name in spellings if name.casefold() == accelerator_type.casefold()]
    return f"accelerator_type:{same[0]}"


def _in_catalogue(accelerator_type: str) -> Device | None:
    try:
        return lookup_device(accelerator_type)
    except HardwareError:  # `auto`, or a type with a peak that its user gave
        return None


def _tpu_request(resources: TpuPodConfig) -> Request:
    """A slice's first host shows `TPU-{type}-head`, and each host its chips (Ray's documentation of TPUs)."""
    chips = tpu_chips(resources.tpu_type)
    hosts = max(1, chips // _TPU_CHIPS_A_HOST)
    if chips <= 8 and resources.tpu_type.startswith(("v6e", "v5litepod")):
        hosts = 1
    host = {"TPU": chips / hosts, "CPU": 1.0}
    first = host | {f"TPU-{resources.tpu_type}-head": 1.0}
    return Request((first, *(dict(host) for _ in range(hosts - 1))) * resources.slice_count)


def _shown(node: dict[str, Any]) -> dict[str, float]:
    return {
        key: value for key, value in node["Resources"].items() if key in ("CPU", "GPU", "TPU") or "accelerator" in key
    }


def _described(amounts: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {key}" for key, amount in sorted(amounts.items())) or "no processors"
