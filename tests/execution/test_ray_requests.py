"""What steps ask a cluster for, without a cluster."""

import http.server
import socket
import threading
from types import SimpleNamespace

import pytest

from marin.errors import ConfigError, HardwareError
from marin.execution import ray_cluster
from marin.execution.ray_cluster import check_fits, check_listens, request_for
from marin.resources import CpuOnlyConfig, GpuConfig, TpuPodConfig


def node(**resources):
    return {"NodeID": "n", "NodeManagerAddress": "10.0.0.1", "Resources": resources}


H100 = {"accelerator_type:H100": 1.0}
GPU_NODES = [node(CPU=8.0), node(CPU=64.0, GPU=8.0, **H100), node(CPU=64.0, GPU=8.0, **H100)]


@pytest.mark.parametrize(
    ("resources", "bundles"),
    [
        (None, [{"CPU": 1.0}]),
        (CpuOnlyConfig(), [{"CPU": 1.0}]),
        (CpuOnlyConfig(4), [{"CPU": 4.0}]),
        (CpuOnlyConfig(4, num_hosts=3), [{"CPU": 4.0}] * 3),
        (GpuConfig(1), [{"GPU": 1.0, "CPU": 1.0}]),
        (GpuConfig(8, "H100"), [{"GPU": 8.0, "CPU": 1.0, "accelerator_type:H100": 0.001}]),
        (GpuConfig(8, "h100"), [{"GPU": 8.0, "CPU": 1.0, "accelerator_type:H100": 0.001}]),
        (GpuConfig(16, "H100"), [{"GPU": 8.0, "CPU": 1.0, "accelerator_type:H100": 0.001}] * 2),
        (GpuConfig(12, "H100"), [{"GPU": 6.0, "CPU": 1.0, "accelerator_type:H100": 0.001}] * 2),
        (TpuPodConfig("v6e-8"), [{"TPU": 8.0, "CPU": 1.0, "TPU-v6e-8-head": 1.0}]),
        # v4-32: 32 cores, 16 chips, 4 hosts; the first of them shows the slice.
        (TpuPodConfig("v4-32"), [{"TPU": 4.0, "CPU": 1.0, "TPU-v4-32-head": 1.0}, *[{"TPU": 4.0, "CPU": 1.0}] * 3]),
    ],
)
def test_a_step_asks_for_a_bundle_a_host(resources, bundles):
    assert list(request_for(resources, GPU_NODES).bundles) == bundles


def test_two_slices_have_two_first_hosts():
    bundles = request_for(TpuPodConfig("v4-16", slice_count=2), []).bundles
    assert [("TPU-v4-16-head" in bundle) for bundle in bundles] == [True, False, True, False]


@pytest.mark.parametrize(
    ("resources", "nodes", "message"),
    [
        (GpuConfig(1, "A100"), GPU_NODES, "no node of the cluster has a GPU of type A100: there are H100"),
        (GpuConfig(2, "H100"), [node(CPU=2.0)], "there are none"),
        (GpuConfig(9, "H100"), [GPU_NODES[1]], "do not divide over nodes with 8"),
    ],
)
def test_a_type_that_is_not_there_is_named(resources, nodes, message):
    with pytest.raises(HardwareError, match=message):
        request_for(resources, nodes)


@pytest.mark.parametrize(
    ("resources", "bundles"),
    [
        (GpuConfig(8, "H100"), [{"GPU": 8.0, "CPU": 1.0, "accelerator_type:H100": 0.001}]),
        (GpuConfig(16, "h100"), [{"GPU": 8.0, "CPU": 1.0, "accelerator_type:H100": 0.001}] * 2),
        (GpuConfig(8, "GB200"), [{"GPU": 4.0, "CPU": 1.0, "accelerator_type:GB200": 0.001}] * 2),
        (GpuConfig(8, "X1", device_flops_override=1e12), [{"GPU": 8.0, "CPU": 1.0, "accelerator_type:X1": 0.001}]),
        (GpuConfig(2), [{"GPU": 2.0, "CPU": 1.0}]),
    ],
)
def test_gpus_that_a_growing_cluster_has_not_started_yet_are_waited_for(resources, bundles):
    head = [node(**{"node:__internal_head__": 1.0})]
    request = request_for(resources, head, grows=True)
    assert list(request.bundles) == bundles
    check_fits("a", request, head, grows=True)
    with pytest.raises(HardwareError, match="there are none"):
        request_for(resources, head)


def test_what_fits_no_node_is_refused_unless_the_cluster_grows():
    wanted = request_for(CpuOnlyConfig(99), GPU_NODES)
    with pytest.raises(HardwareError, match="step `a` asks for 99 CPU on one node"):
        check_fits("a", wanted, GPU_NODES, grows=False)
    check_fits("a", wanted, GPU_NODES, grows=True)
    check_fits("a", request_for(CpuOnlyConfig(64), GPU_NODES), GPU_NODES, grows=False)
    with pytest.raises(HardwareError, match="asks for 3 nodes, and the cluster has 2"):
        check_fits("a", request_for(GpuConfig(24, "H100"), GPU_NODES), GPU_NODES[1:], grows=False)


def test_an_address_where_nothing_answers_is_refused_at_once():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        with pytest.raises(ConfigError, match=f"nothing answers at 127.0.0.1:{port}"):
            check_listens(f"127.0.0.1:{port}")
        listening.listen()
        for address in (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", f"ray://127.0.0.1:{port}/", "auto"):
            check_listens(address)


def test_the_port_of_a_dashboard_is_not_taken_for_the_clusters(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        try:
            with pytest.raises(ConfigError, match=f"{address} is a web server, .* or write http://{address}"):
                ray_cluster.connect()
            check_listens(f"http://{address}")  # where jobs are submitted
        finally:
            server.shutdown()


def test_a_cluster_that_does_not_start_in_time_is_said_in_one_message(monkeypatch):
    def init(**_):
        raise Exception("The current node timed out during startup")  # Ray's own kind

    monkeypatch.setattr(ray_cluster, "import_ray", lambda: SimpleNamespace(is_initialized=lambda: False, init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(
        ConfigError, match="Ray did not start on this machine .The current node timed out during startup"
    ):
        ray_cluster.connect()
