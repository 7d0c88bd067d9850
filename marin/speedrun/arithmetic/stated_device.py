"""What a results file says that the run ran on: the device, its chips and its peak, held against the catalogue."""

import dataclasses
from typing import Any, Literal

from marin import hardware
from marin.errors import HardwareError
from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.arithmetic.findings import close, whole_number
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding

AUTO_GPU_FLOPS = 989.5e12  # what the public contest's table gives for a GPU whose type is "auto"
PEAK_TOLERANCE = 0.01
_LONGEST_NAME = 64
# Whoever states a peak that nobody can look up states his own cost.
_UNKNOWN_DEVICE = (
    "the catalogue has no {name!r}, so its peak cannot be checked: add it to marin/hardware.py with its source"
)


@dataclasses.dataclass(frozen=True)
class StatedResources:
    """What the field `resources` says in every era's spelling: the kind of machine, its name, and how many of it."""

    kind: Literal["tpu", "gpu", "cpu"]
    name: str = "cpu"
    number: int = 1

    def chips(self) -> int:
        """Raises:
        HardwareError: if nobody knows how many chips a TPU of this name has.
        """
        return self.number * (hardware.tpu_chips(self.name) if self.kind == "tpu" else 1)


def stated_resources(info: RunInfo) -> StatedResources | None:
    """None where the file does not say."""
    resources, device = info.resources or {}, device_block(info)
    kind = str(device.get("kind") or device.get("type") or "")
    if "tpu_type" in resources or kind == "tpu":
        name = str(resources.get("tpu_type") or device.get("variant") or device.get("topology") or "")
        return StatedResources("tpu", name[:_LONGEST_NAME], whole_number(resources, "slice_count", "replicas") or 1)
    if "gpu_count" in resources or kind == "gpu":
        name = str(resources.get("accelerator_type") or device.get("variant") or "auto")
        number = whole_number(resources, "gpu_count") or whole_number(device, "count") or 1
        return StatedResources("gpu", name[:_LONGEST_NAME], number * (whole_number(resources, "replicas") or 1))
    if "num_cpus" in resources or kind == "cpu" or info.platform == "cpu":
        return StatedResources("cpu")
    return None


def device_block(info: RunInfo) -> dict[str, Any]:
    """The block `device` of some eras' resources."""
    device = (info.resources or {}).get("device")
    return device if isinstance(device, dict) else {}


@dataclasses.dataclass(frozen=True)
class StatedDevice:
    """`chips` of all slices together; `peak` is FLOP/s of one chip, None where it is not known, and `source` says whose figure it is."""

    name: str
    chips: int
    peak: float | None
    source: str


def device_of(info: RunInfo) -> tuple[StatedDevice | None, list[Finding]]:
    """What the run says it ran on."""
    stated = stated_resources(info)
    if stated is None:
        said = "the hardware is not stated" + ("" if info.device_name is None else " but for a name")
        if info.device_flops is None or info.training_hardware_flops is None:
            return None, [arithmetic.unchecked("resources", said)]
        message = f"{said}, so nothing says that its peak is {info.device_flops:.4g} FLOP/s"
        return None, [arithmetic.error("resources", message)]
    if stated.kind == "cpu":
        if info.platform not in (None, "cpu"):
            return None, [
                arithmetic.error(
                    "platform", f"the resources are a processor, the platform is {str(info.platform)[:20]!r}"
                )
            ]
        if (accelerator := _accelerator(info.device_name)) is not None:
            message = f"the resources are a processor, device_name is {accelerator.name}, an accelerator"
            return None, [arithmetic.error("device_name", message, accelerator.peak_flops.get("bf16"))]
        note = "the peak of a processor is measured on the machine at hand, so it is taken as stated"
        # Each process on processors is a machine of its own, whose number the cost counts as chips.
        return StatedDevice("cpu", info.num_chips or 1, None, "measured"), [arithmetic.note("device_flops", note)]
    try:
        name, count = stated.name, stated.chips()
    except HardwareError as error:
        # A peak that is stated for a device that nobody can look up is one of the author's own.
        report = arithmetic.unchecked if info.device_flops is None else arithmetic.error
        return None, [report("resources", f"chips not recomputable: {error}")]
    override = (info.resources or {}).get("device_flops_override")
    if isinstance(override, int | float) and not isinstance(override, bool):
        return _typed_in(name, count, float(override))
    if name.lower() == "auto":
        if info.device_name:
            name = info.device_name[:_LONGEST_NAME]
        else:
            note = f"the GPU's type was left open (`auto`); the public contest takes {AUTO_GPU_FLOPS:.5g} FLOP/s for it"
            return StatedDevice("auto", count, AUTO_GPU_FLOPS, "auto"), [arithmetic.warning("device_flops", note)]
    try:
        entry = hardware.lookup_device(name)
        return StatedDevice(name, count, entry.peak("bf16"), entry.source), []
    except HardwareError as error:
        if info.device_flops is None:
            return StatedDevice(name, count, None, ""), [
                arithmetic.unchecked("device_flops", f"the peak is not recomputable: {error}")
            ]
        return StatedDevice(name, count, None, ""), [
            arithmetic.error("device_flops", _UNKNOWN_DEVICE.format(name=name))
        ]


def check_name(info: RunInfo, device: StatedDevice | None) -> list[Finding]:
    """Whether what the engine found and what the resources say are one device, but for the size of its memory."""
    if device is None or device.name in ("cpu", "auto"):
        return []
    found, stated = _accelerator(info.device_name), _accelerator(device.name)
    if found is None or stated is None or same_device(found, stated):
        return []
    return [arithmetic.error("device_name", f"device_name is {found.name}, the resources say {stated.name}")]


def same_device(one: hardware.Device, other: hardware.Device) -> bool:
    """Whether two entries of the catalogue differ in their memory alone, as A100-40G and A100-80G.

    An H200 has the peak of an H100 and is faster all the same.
    """
    return one.peak_flops == other.peak_flops and one.name.partition("-")[0] == other.name.partition("-")[0]


def described(info: RunInfo, device: StatedDevice) -> str:
    """The device and its chips in words, such as "2 x v4-8 has 8 chips"."""
    slices = whole_number(info.resources, "slice_count", "replicas") or 1
    return (
        f"{f'{slices} x ' if slices > 1 else ''}{device.name} has {device.chips} chip{'s' if device.chips > 1 else ''}"
    )


def _accelerator(name: str | None) -> hardware.Device | None:
    """The catalogue's entry of a name; None where it has none, as for a processor."""
    try:
        return None if name is None else hardware.lookup_device(name[:_LONGEST_NAME])
    except HardwareError:
        return None


def _typed_in(name: str, count: int, override: float) -> tuple[StatedDevice, list[Finding]]:
    """A device whose peak the author typed in: for one that the catalogue has, it must be the catalogue's."""
    said = f"the peak of {name} was typed in by the author ({override:.4g} FLOP/s), not taken from the catalogue"
    try:
        entry = hardware.lookup_device(name)
    except HardwareError:
        return StatedDevice(name, count, override, "override"), [
            arithmetic.error("device_flops", f"{said}: {_UNKNOWN_DEVICE.format(name=name)}")
        ]
    peaks = sorted(entry.peak_flops.values())
    known = entry.peak_flops.get("bf16") or entry.peak_flops.get("fp16") or peaks[0]  # a V100 has no bfloat16
    # FP8 trains at another peak than bf16; a lower one, such as float32's, would make the same hardware cheaper.
    if any(close(override, peak, PEAK_TOLERANCE) for peak in peaks if peak >= known):
        return StatedDevice(name, count, override, "override"), [arithmetic.note("device_flops", said)]
    message = f"{said}, where it is {known:.4g} FLOP/s ({entry.source})"
    return StatedDevice(name, count, override, "override"), [arithmetic.error("device_flops", message, known)]
