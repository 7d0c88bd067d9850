"""What is settled before training: a config that names another GPU than the machine has does not start, and a GPU's memory is taken."""

import os
import types

import jax
import pytest

from marin.errors import HardwareError
from marin.resources import CpuOnlyConfig, GpuConfig
from marin.training.preflight import check_devices, take_gpu_memory


def _machine(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(device_kind=kind)])


@pytest.mark.parametrize("override", [None, 121e12])
def test_config_of_another_gpu_does_not_start(monkeypatch: pytest.MonkeyPatch, override: float | None) -> None:
    _machine(monkeypatch, "NVIDIA H100 80GB HBM3")
    with pytest.raises(HardwareError, match="the config says L4, this machine has NVIDIA H100"):
        check_devices(GpuConfig(gpu_count=1, accelerator_type="L4", device_flops_override=override))
    check_devices(GpuConfig(gpu_count=1, accelerator_type="H100", device_flops_override=override))


def test_config_of_a_gpu_that_nobody_knows_starts_with_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, "NVIDIA X9000")
    check_devices(GpuConfig(gpu_count=1, accelerator_type="X9000", device_flops_override=1e15))
    with pytest.raises(HardwareError, match="X9000"):
        check_devices(GpuConfig(gpu_count=1, accelerator_type="X9000"))
    with pytest.raises(HardwareError, match="the config says H100, this machine has NVIDIA X9000"):
        check_devices(GpuConfig(gpu_count=1, accelerator_type="H100", device_flops_override=989.5e12))


@pytest.mark.parametrize("given", [None, "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_jax_gets_the_gpu_memory_that_a_plan_counts_on_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    environment = {} if given is None else {given: "0.5"}
    monkeypatch.setattr(os, "environ", environment)
    take_gpu_memory(CpuOnlyConfig())
    assert environment == ({} if given is None else {given: "0.5"})
    take_gpu_memory(GpuConfig(gpu_count=1, accelerator_type="H100"))
    assert environment == ({"XLA_CLIENT_MEM_FRACTION": "0.92"} if given is None else {given: "0.5"})
