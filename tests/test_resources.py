"""What a step can ask for: counts, peaks and refusals."""

import pytest

from marin.errors import ConfigError, HardwareError, MarinError
from marin.resources import CpuOnlyConfig, GpuConfig, ResourceConfig, Resources, TpuPodConfig


@pytest.fixture
def recorded_cpu_peak(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", "2e11")
    return 2e11


def test_gpu_config_of_the_documented_example_has_its_documented_figures() -> None:
    gpu = GpuConfig(gpu_count=1, accelerator_type="A100-80G")
    assert (gpu.num_devices, gpu.num_chips, gpu.device_flops, gpu.platform) == (1, 1, 3.12e14, "gpu")


@pytest.mark.parametrize(
    ("tpu_type", "slices", "devices", "chips", "flops"),
    [
        ("v4-128", 1, 128, 64, 275e12),
        ("v5p-32", 1, 32, 16, 459e12),
        ("v5p-8", 2, 16, 8, 459e12),
        ("v6e-8", 1, 8, 8, 918e12),
    ],
)
def test_tpu_pod_counts_devices_and_chips_of_all_slices(
    tpu_type: str, slices: int, devices: int, chips: int, flops: float
) -> None:
    pod = TpuPodConfig(tpu_type=tpu_type, slice_count=slices)
    assert (pod.num_devices, pod.num_chips, pod.device_flops, pod.platform) == (devices, chips, flops, "tpu")


def test_cpu_config_is_one_device_with_the_measured_peak(recorded_cpu_peak: float) -> None:
    cpu = CpuOnlyConfig(num_cpus=4)
    assert (cpu.num_devices, cpu.num_chips, cpu.device_flops, cpu.platform) == (1, 1, recorded_cpu_peak, "cpu")


def test_override_replaces_the_peak_of_a_known_and_admits_an_unknown_device() -> None:
    assert GpuConfig(2, "A100", 1e14).device_flops == 1e14
    assert GpuConfig(2, "Home-made", 3e13).device_flops == 3e13
    assert TpuPodConfig("v4-8", device_flops_override=1e14).device_flops == 1e14


@pytest.mark.parametrize("accelerator", ["A101", "RTX 9090"])
def test_gpu_config_of_an_unknown_device_raises_when_made(accelerator: str) -> None:
    with pytest.raises(HardwareError, match="device_flops_override"):
        GpuConfig(1, accelerator)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "8"])
def test_counts_that_cannot_be_are_refused_with_the_field(count: object) -> None:
    with pytest.raises(ConfigError, match="gpu_count"):
        GpuConfig(count, "A100")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slice_count"):
        TpuPodConfig("v4-8", count)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_cpus"):
        CpuOnlyConfig(count)  # type: ignore[arg-type]


@pytest.mark.parametrize("override", [0, -1.0, "fast", True, float("inf"), 312, 91.1, 312_000])
def test_overrides_that_cannot_be_are_refused_with_the_field(override: object) -> None:
    with pytest.raises(ConfigError, match="device_flops_override"):
        GpuConfig(1, "A100", override)  # type: ignore[arg-type]


@pytest.mark.parametrize("tpu_type", ["v4", "v9-8", "v4-7", "A100", "", "V4 128", 4])
def test_tpu_pod_of_an_impossible_slice_is_refused(tpu_type: object) -> None:
    with pytest.raises(MarinError):
        TpuPodConfig(tpu_type)  # type: ignore[arg-type]


def test_resource_config_is_the_same_requests_in_other_words() -> None:
    assert ResourceConfig.with_gpu("H100", count=8) == GpuConfig(8, "H100")
    assert ResourceConfig.with_tpu("v5p-8", slice_count=2) == TpuPodConfig("v5p-8", 2)
    assert ResourceConfig.with_cpu(3) == CpuOnlyConfig(3)
    assert all(
        isinstance(request, Resources) for request in (GpuConfig(1, "H100"), TpuPodConfig("v4-8"), CpuOnlyConfig())
    )
