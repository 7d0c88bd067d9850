"""The device catalogue, slice names, detection through the real program interface, and the measured peak."""

import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin import hardware
from marin.errors import ConfigError, HardwareError

# Dense peaks that published results were computed with, FLOP/s of one device.
PUBLISHED_BF16 = {
    "A100": 312e12, "H100": 989.5e12, "H200": 989.5e12, "H100-PCIE": 756.5e12, "A10": 125e12, "A40": 149.7e12,
    "A6000": 154.85e12, "GB10": 100e12, "v3": 123e12, "v4": 275e12, "v5litepod": 197e12, "v5p": 459e12,
    "v6e": 918e12, "trn1": 95e12,
}  # fmt: skip
PUBLISHED_FP16 = {"V100": 112e12, "V100-SXM": 125e12, "V100S": 130e12, "T4": 65e12}


@pytest.mark.parametrize(("name", "flops"), PUBLISHED_BF16.items())
def test_peak_bf16_of_published_devices_is_the_published_figure(name: str, flops: float) -> None:
    assert hardware.lookup_device(name).peak("bf16") == flops


@pytest.mark.parametrize(("name", "flops"), PUBLISHED_FP16.items())
def test_peak_of_devices_without_bf16_is_known_in_fp16_only(name: str, flops: float) -> None:
    device = hardware.lookup_device(name)
    assert device.peak("fp16") == flops
    with pytest.raises(HardwareError, match="device_flops_override"):
        device.peak("bf16")


@pytest.mark.parametrize(
    ("name", "bf16"),
    [("L4", 121e12), ("A10G", 70e12), ("RTX 3090", 71e12), ("RTX 4090", 165.2e12), ("RTX 5090", 209.5e12),
     ("B100", 1750e12), ("B200", 2250e12), ("L40S", 362.05e12), ("MI300X", 1307.4e12)],
)  # fmt: skip
def test_peak_where_sheets_print_sparse_or_half_precision_sums_is_the_dense_one(name: str, bf16: float) -> None:
    assert hardware.lookup_device(name).peak("bf16") == bf16


@pytest.mark.parametrize(
    ("written", "name"),
    [("A100-80G", "A100-80G"), ("a100-80g", "A100-80G"), ("A100-80GB", "A100-80G"), ("NVIDIA A100-SXM4-80GB", "A100-80G"),
     ("NVIDIA A100 80GB PCIe", "A100-80G"), ("NVIDIA A100-SXM4-40GB", "A100-40G"), ("A100", "A100-40G"),
     ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H100 PCIe", "H100-PCIE"), ("NVIDIA H100 NVL", "H100-NVL"),
     ("NVIDIA H200", "H200"), ("NVIDIA RTX A6000", "A6000"), ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
     ("NVIDIA GeForce RTX 3090", "RTX 3090"), ("rtx3090", "RTX 3090"), ("Tesla T4", "T4"),
     ("Tesla V100-SXM2-32GB", "V100-SXM"), ("NVIDIA L40S", "L40S"), ("AMD Instinct MI300X OAM", "MI300X"),
     ("TPU v4", "v4"), ("v4-128", "v4"), ("TPU v5 lite", "v5litepod"), ("v5e", "v5litepod"), ("TPU v5", "v5p"),
     ("TPU v5p", "v5p"), ("TPU v6 lite", "v6e"), ("v6e-8", "v6e")],
)  # fmt: skip
def test_lookup_understands_the_names_that_people_and_drivers_write(written: str, name: str) -> None:
    assert hardware.lookup_device(written).name == name


@pytest.mark.parametrize("other", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti", "A1000", ""])
def test_lookup_of_a_similar_but_other_device_raises_instead_of_guessing(other: str) -> None:
    with pytest.raises(HardwareError, match="device_flops_override"):
        hardware.lookup_device(other)


def test_lookup_of_a_misspelt_name_names_the_closest() -> None:
    with pytest.raises(HardwareError, match="RTX 4090"):
        hardware.lookup_device("RTX 4900")


def test_lookup_of_cpu_points_to_the_measured_peak() -> None:
    with pytest.raises(HardwareError, match="CpuOnlyConfig"):
        hardware.lookup_device("CPU")


def test_catalogue_names_are_unambiguous_and_every_entry_has_a_source() -> None:
    spelled = [hardware._key(name) for device in hardware.CATALOGUE for name in {device.name, *device.aliases}]
    assert len(spelled) == len(set(spelled))
    for device in hardware.CATALOGUE:
        assert device.source and device.memory_bytes > 0
        assert all(1e12 <= peak <= 1e16 for peak in device.peak_flops.values())
        assert device.peak_flops.get("f32", 0) < min(
            device.peak_flops.get("bf16", 1e99), device.peak_flops.get("fp16", 1e99)
        )


@given(st.sampled_from(hardware.CATALOGUE), st.data())
def test_lookup_ignores_case_and_punctuation_of_every_name(device: hardware.Device, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from((device.name, *device.aliases)))
    written = data.draw(st.sampled_from((str.upper, str.lower, str.title)))(name)
    assert (
        hardware.lookup_device(written.replace("-", data.draw(st.sampled_from(" _-"))) if "-" in name else written)
        == device
    )


@pytest.mark.parametrize(
    ("tpu_type", "chips"),
    [
        ("v2-8", 4),
        ("v3-8", 4),
        ("v4-8", 4),
        ("v4-128", 64),
        ("v5p-32", 16),
        ("v5litepod-16", 16),
        ("v5e-4", 4),
        ("v6e-8", 8),
    ],
)
def test_tpu_chips_counts_cores_or_chips_as_the_generation_does(tpu_type: str, chips: int) -> None:
    assert hardware.tpu_chips(tpu_type) == chips


@pytest.mark.parametrize("tpu_type", ["v4", "v4-0", "v4-7", "v9-8", "A100-80", "v4-x", "-8"])
def test_tpu_chips_of_an_impossible_slice_raises(tpu_type: str) -> None:
    with pytest.raises(HardwareError):
        hardware.tpu_chips(tpu_type)


def _install_nvidia_smi(directory: os.PathLike[str], monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = os.path.join(directory, "nvidia-smi")
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\n{script}\n")
    os.chmod(path, stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


def test_detect_gpus_reads_names_and_memory(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _install_nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA H200, 143771'; echo 'NVIDIA H200, 143771'")
    assert hardware.detect_gpus() == [("NVIDIA H200", 143771 * 2**20)] * 2
    assert hardware.detect_gpu_name() == "H200"


def test_detect_gpus_with_unified_memory_keeps_the_device(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA GB10, [N/A]'")
    assert hardware.detect_gpus() == [("NVIDIA GB10", 0)]


@pytest.mark.parametrize(
    "script",
    ["echo failed to communicate with the driver >&2; exit 9", "exit 0", "echo No devices were found"],
)
def test_detect_gpus_without_a_working_driver_finds_none_and_says_what_to_do(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    _install_nvidia_smi(tmp_path, monkeypatch, script)
    assert hardware.detect_gpus() == [] and hardware.gpu_driver_version() is None
    with pytest.raises(HardwareError, match="CpuOnlyConfig"):
        hardware.detect_gpu_name()


def test_detect_gpu_name_with_several_types_asks_for_one(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_nvidia_smi(tmp_path, monkeypatch, "echo 'NVIDIA L4, 23034'; echo 'Tesla T4, 15360'")
    with pytest.raises(HardwareError, match="several types"):
        hardware.detect_gpu_name()


def test_host_info_is_plain_and_within_the_machine() -> None:
    info = hardware.host_info()
    assert set(info) == {"cpu_model", "cores_usable", "memory_bytes", "gpus", "platform", "kernel"}
    assert 0 < hardware.usable_cores() <= (os.cpu_count() or 1)
    assert hardware.total_memory() > 2**28


def test_measure_cpu_peak_is_cached_plausible_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MARIN_CPU_PEAK_FLOPS", raising=False)
    peak = hardware.measure_cpu_peak()
    assert 1e8 < peak < 1e14
    assert hardware.measure_cpu_peak() == peak  # measured again, it would differ
    assert hardware.measure_cpu_peak(1) == pytest.approx(peak / hardware.usable_cores())


def test_measured_core_is_as_fast_beside_other_work() -> None:
    """Or whoever keeps the machine busy meanwhile would have a cheaper one, and an honest run on a busy one would be asked about."""
    measure = hardware._measured_core.__wrapped__
    quiet = measure()
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * hardware.num_processors())]
    try:
        busy = measure()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert busy > 0.6 * quiet


@pytest.mark.parametrize("recorded", ["fast", "-1", "0", "nan", "inf", "150"])
def test_measure_cpu_peak_with_a_bad_record_names_the_variable(monkeypatch: pytest.MonkeyPatch, recorded: str) -> None:
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", recorded)
    with pytest.raises(ConfigError, match="MARIN_CPU_PEAK_FLOPS"):
        hardware.measure_cpu_peak()


def test_measure_cpu_peak_with_a_record_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", "1.5e11")
    assert hardware.measure_cpu_peak() == 1.5e11
    monkeypatch.setenv("MARIN_CPU_PEAK_FLOPS", "2.5e11")
    assert hardware.measure_cpu_peak() == 2.5e11


def test_hardware_and_resources_import_neither_jax_nor_numpy() -> None:
    code = "import marin.resources, sys; print([m for m in ('jax', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
