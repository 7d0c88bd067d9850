"""What a step asks for to run on: placement, never identity.

A `Resources` value says which devices, how many, and what they could do at their peak. It takes no part in a step's
fingerprint: moving a run to another machine keeps its output path.
"""

import dataclasses
import re

from marin import hardware
from marin.errors import ConfigError
from marin.number_checks import check_whole, is_finite


@dataclasses.dataclass(frozen=True)
class Resources:
    """Base of everything that a step can ask for."""

    @property
    def num_devices(self) -> int:
        """Devices as the framework counts them (on TPU v4 and v5p, the two cores of a chip count as two)."""
        raise AssertionError("a Resources subclass defines num_devices")

    @property
    def num_chips(self) -> int:
        """Chips, each with the peak that `device_flops` names."""
        return self.num_devices

    @property
    def device_flops(self) -> float:
        """Peak FLOP/s of one chip at the precision that training uses there."""
        raise AssertionError("a Resources subclass defines device_flops")

    @property
    def platform(self) -> str:
        """What JAX calls such a device: "cpu", "gpu" or "tpu"."""
        raise AssertionError("a Resources subclass defines platform")

    @property
    def device_name(self) -> str:
        """The name that the device catalogue knows."""
        raise AssertionError("a Resources subclass defines device_name")


def _checked_override(value: float | None, field: str) -> None:
    if value is not None and not (is_finite(value) and value >= hardware.LEAST_PEAK):
        raise ConfigError(
            f"`{field}` is {value!r}: give the peak in FLOP/s of one device, such as 312e12 for 312 TFLOP/s, or leave it None"
        )


@dataclasses.dataclass(frozen=True)
class CpuOnlyConfig(Resources):
    """This machine's processor, or `num_cpus` of its cores: training keeps to them, and only their peak is counted.

    The peak is measured, not looked up (see `hardware.measure_cpu_peak`). `num_hosts` above 1 asks a cluster for that many
    machines (`--runner ray`), which train together with `num_cpus` each.
    """

    num_cpus: int | None = None
    num_hosts: int = dataclasses.field(default=1, kw_only=True, metadata={"marin.omit_default": True})

    def __post_init__(self) -> None:
        if self.num_cpus is not None:
            check_whole("`CpuOnlyConfig.num_cpus`", self.num_cpus)
        check_whole("`CpuOnlyConfig.num_hosts`", self.num_hosts)

    @property
    def num_devices(self) -> int:
        return 1

    @property
    def device_flops(self) -> float:
        return hardware.measure_cpu_peak(self.num_cpus)

    @property
    def platform(self) -> str:
        return "cpu"

    @property
    def device_name(self) -> str:
        return "cpu"


@dataclasses.dataclass(frozen=True)
class GpuConfig(Resources):
    """GPUs of one type on one node; `accelerator_type="auto"` takes what the machine has."""

    gpu_count: int = 1
    accelerator_type: str = "auto"
    device_flops_override: float | None = None

    def __post_init__(self) -> None:
        check_whole("`GpuConfig.gpu_count`", self.gpu_count)
        _checked_override(self.device_flops_override, "GpuConfig.device_flops_override")
        if self.accelerator_type != "auto" and self.device_flops_override is None:
            hardware.lookup_device(self.accelerator_type)

    @property
    def num_devices(self) -> int:
        return self.gpu_count

    @property
    def device_flops(self) -> float:
        if self.device_flops_override is not None:
            return float(self.device_flops_override)
        return hardware.lookup_device(self.device_name).peak("bf16")

    @property
    def platform(self) -> str:
        return "gpu"

    @property
    def device_name(self) -> str:
        return hardware.detect_gpu_name() if self.accelerator_type == "auto" else self.accelerator_type


@dataclasses.dataclass(frozen=True)
class TpuPodConfig(Resources):
    """`slice_count` TPU slices of one type, such as "v4-128" (128 cores, 64 chips) or "v6e-8" (8 chips)."""

    tpu_type: str
    slice_count: int = 1
    device_flops_override: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tpu_type, str) or not re.fullmatch(r"[a-z0-9]+-\d+", self.tpu_type):
            raise ConfigError(
                f"`TpuPodConfig.tpu_type` is {self.tpu_type!r}: use a slice name such as 'v4-128' or 'v5p-8'"
            )
        check_whole("`TpuPodConfig.slice_count`", self.slice_count)
        _checked_override(self.device_flops_override, "TpuPodConfig.device_flops_override")
        hardware.tpu_chips(self.tpu_type)
        if self.device_flops_override is None:
            hardware.lookup_device(self.device_name)

    @property
    def num_devices(self) -> int:
        return int(self.tpu_type.rsplit("-", 1)[1]) * self.slice_count

    @property
    def num_chips(self) -> int:
        return hardware.tpu_chips(self.tpu_type) * self.slice_count

    @property
    def device_flops(self) -> float:
        if self.device_flops_override is not None:
            return float(self.device_flops_override)
        return hardware.lookup_device(self.device_name).peak("bf16")

    @property
    def platform(self) -> str:
        return "tpu"

    @property
    def device_name(self) -> str:
        return self.tpu_type.rsplit("-", 1)[0]


class ResourceConfig:
    """The same three requests as methods of one name, as the reference's experiments make them."""

    @staticmethod
    def with_gpu(
        accelerator_type: str = "auto", *, count: int = 1, device_flops_override: float | None = None
    ) -> GpuConfig:
        return GpuConfig(count, accelerator_type, device_flops_override)

    @staticmethod
    def with_tpu(tpu_type: str, *, slice_count: int = 1, device_flops_override: float | None = None) -> TpuPodConfig:
        return TpuPodConfig(tpu_type, slice_count, device_flops_override)

    @staticmethod
    def with_cpu(num_cpus: int | None = None) -> CpuOnlyConfig:
        return CpuOnlyConfig(num_cpus)
