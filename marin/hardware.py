"""What devices can do at their peak, which of them this machine has, and how fast its processor multiplies.

The catalogue holds dense peaks (structured sparsity counted as nothing, though data sheets like to print the doubled
figure), for matrix units that accumulate in float32 where the sheet tells the two apart. They are the denominators of
MFU and of `training_hardware_flops`, so each entry names its source, and a device or precision that the catalogue does
not know raises instead of guessing. A processor's peak is measured, since no sheet knows its clock and its share.
"""

import dataclasses
import difflib
import functools
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import Any

from marin.errors import ConfigError, HardwareError

_GIB = 2**30

# Of an accelerator's memory: the rest is for its driver, for sending between devices, and for what fragmentation loses.
USABLE_MEMORY = 0.92

# What is less, was meant in TFLOP/s or GFLOP/s, as data sheets have it: no device is as slow.
LEAST_PEAK = 1e8

# Where the figures come from. NVIDIA prints sparse figures for tensor cores from Ampere on: those are halved below.
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_A40 = "NVIDIA A40 data sheet"
_A10 = "NVIDIA A10 data sheet"
_A10G = "NVIDIA and AWS, A10G data sheet (70 TFLOP/s dense, 140 sparse)"
_AMPERE_PRO = "NVIDIA RTX A6000 data sheet (309.7 TFLOP/s sparse)"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper, appendix A"
_ADA = "NVIDIA Ada GPU architecture white paper, appendix A"
_HOPPER = "NVIDIA H100 Tensor Core GPU data sheet (1,979 TFLOP/s sparse for SXM, 1,513 for PCIe, 1,671 for NVL)"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"
_L4 = "NVIDIA L4 data sheet"
_L40S = "NVIDIA L40S data sheet"
_BLACKWELL = "NVIDIA Blackwell architecture technical brief"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture white paper, appendix A"
_RTX_BLACKWELL_PRO = "NVIDIA RTX Blackwell PRO GPU architecture white paper, appendix A"
_VOLTA = "NVIDIA V100 Tensor Core GPU data sheet"
_T4 = "NVIDIA T4 Tensor Core GPU data sheet"
_CDNA2 = "AMD Instinct MI200 series data sheets"
_CDNA3 = "AMD Instinct MI300X and MI325X data sheets"
_TPU = "Google Cloud TPU system architecture documentation"
_FRAY = "Marin's published device table"


@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator: the dense peak of one chip in FLOP/s for each dtype that is known, and where that is stated."""

    name: str
    kind: str  # what JAX calls its platform: "gpu" or "tpu"; "neuron" for Trainium
    peak_flops: dict[str, float]
    memory_bytes: int
    source: str
    aliases: tuple[str, ...] = ()

    def peak(self, dtype: str = "bf16") -> float:
        """Dense peak in FLOP/s for "bf16", "fp16", "f32" (vector units, not TF32) or "fp8".

        Raises:
            HardwareError: if the device has no such units, or its figure is not in the catalogue.
        """
        if dtype not in self.peak_flops:
            known = ", ".join(f"{name} {flops:.4g}" for name, flops in self.peak_flops.items())
            raise HardwareError(
                f"no {dtype} peak is known for {self.name} (known: {known} FLOP/s): "
                f"set `device_flops_override` to the peak of the precision that you train in; a submission counts its matrix units"
            )
        return self.peak_flops[dtype]


def _device(name: str, gib: float, source: str, *aliases: str, kind: str = "gpu", **teraflops: float) -> Device:
    peaks = {dtype: value * 1e12 for dtype, value in teraflops.items()}
    return Device(name, kind, peaks, int(gib * _GIB), source, aliases)


def _tpu(name: str, gib: float, *aliases: str, **teraflops: float) -> Device:
    return _device(name, gib, _TPU, *aliases, kind="tpu", **teraflops)


# fmt: off
CATALOGUE: tuple[Device, ...] = (
    # Data centre, NVIDIA
    _device("A100-40G", 40, _A100, "A100", "A100-SXM4-40GB", "A100-PCIE-40GB", "A100-SXM-40GB", bf16=312, fp16=312, f32=19.5),
    _device("A100-80G", 80, _A100, "A100-SXM4-80GB", "A100 80GB PCIe", "A100-SXM-80GB", "A800", "A800-SXM4-80GB",
            "A800 80GB PCIe", bf16=312, fp16=312, f32=19.5),
    _device("H100", 80, _HOPPER, "H100 80GB HBM3", "H100-SXM", "H100-SXM5", "H100-80G", "H100-SXM5-80GB", "H800",
            bf16=989.5, fp16=989.5, fp8=1979, f32=67),
    _device("H100-PCIE", 80, _HOPPER, "H100-PCIE-80GB", bf16=756.5, fp16=756.5, fp8=1513, f32=51),
    _device("H100-NVL", 94, _HOPPER, bf16=835.5, fp16=835.5, fp8=1671, f32=60),
    _device("H200", 141, _H200, "H200-SXM", "H200-141G", bf16=989.5, fp16=989.5, fp8=1979, f32=67),
    _device("H200-NVL", 141, _H200, bf16=835.5, fp16=835.5, fp8=1671, f32=60),
    _device("GH200", 96, _HOPPER, "GH200 480GB", "GH200 96GB HBM3", bf16=989.5, fp16=989.5, fp8=1979, f32=67),
    _device("B100", 192, _BLACKWELL, bf16=1750, fp16=1750, fp8=3500, f32=60),
    _device("B200", 192, _BLACKWELL, "B200-SXM", bf16=2250, fp16=2250, fp8=4500, f32=80),
    _device("GB200", 192, _BLACKWELL, bf16=2500, fp16=2500, fp8=5000, f32=90),
    _device("GB10", 128, _FRAY, "DGX Spark", bf16=100),
    _device("A10", 24, _A10, bf16=125, fp16=125, f32=31.2),
    # Not the A10: a slower clock and half-rate accumulation. The published table has the A10's 125 here too.
    _device("A10G", 24, _A10G, bf16=70, fp16=70, f32=35),
    _device("A40", 48, _A40, bf16=149.7, fp16=149.7, f32=37.4),
    # The published table has 242 for the L4, which is the sheet's sparse figure.
    _device("L4", 24, _L4, bf16=121, fp16=121, fp8=242.5, f32=30.3),
    _device("L40", 48, _L40S, bf16=181.05, fp16=181.05, fp8=362, f32=90.5),
    _device("L40S", 48, _L40S, bf16=362.05, fp16=362.05, fp8=733, f32=91.6),
    # Volta and Turing have no bfloat16 units.
    _device("V100", 16, _VOLTA, "V100-PCIE", "V100-PCIE-16GB", "V100-PCIE-32GB", fp16=112, f32=14),
    _device("V100-SXM", 16, _VOLTA, "V100-SXM2", "V100-SXM2-16GB", "V100-SXM2-32GB", "V100-SXM3-32GB", fp16=125, f32=15.7),
    _device("V100S", 32, _VOLTA, "V100S-PCIE-32GB", fp16=130, f32=16.4),
    _device("T4", 16, _T4, fp16=65, f32=8.1),
    # Workstation and consumer, NVIDIA. The tensor cores of GeForce cards run at half rate when they accumulate in
    # float32, which training does: the half-rate dense figure is the one here (RTX 3090: 71, not 142 or 285).
    _device("A6000", 48, _AMPERE_PRO, "RTX A6000", bf16=154.85, fp16=154.85, f32=38.7),
    _device("RTX 6000 Ada", 48, _ADA, "RTX 6000 Ada Generation", bf16=364.2, fp16=364.2, fp8=728.5, f32=91.1),
    _device("RTX PRO 6000 Blackwell", 96, _RTX_BLACKWELL_PRO, "RTX PRO 6000 Blackwell Workstation Edition",
            bf16=503.8, fp16=503.8, f32=126),
    _device("RTX 3070", 8, _GA102, "3070", bf16=40.6, fp16=40.6, f32=20.3),
    _device("RTX 3080", 10, _GA102, "3080", bf16=59.5, fp16=59.5, f32=29.8),
    _device("RTX 3090", 24, _GA102, "3090", bf16=71, fp16=71, f32=35.6),
    _device("RTX 4080", 16, _ADA, "4080", bf16=97.5, fp16=97.5, fp8=194.9, f32=48.7),
    _device("RTX 4090", 24, _ADA, "4090", bf16=165.2, fp16=165.2, fp8=330.3, f32=82.6),
    _device("RTX 5080", 16, _RTX_BLACKWELL, "5080", bf16=112.6, fp16=112.6, fp8=225.1, f32=56.3),
    _device("RTX 5090", 32, _RTX_BLACKWELL, "5090", bf16=209.5, fp16=209.5, fp8=419, f32=104.8),
    # AMD. JAX sees the two dies of an MI250X as two devices; the figure is that of one.
    _device("MI210", 64, _CDNA2, bf16=181, fp16=181, f32=22.6),
    _device("MI250X", 64, _CDNA2, "MI250X/MI250", bf16=191.5, fp16=191.5, f32=23.95),
    _device("MI300X", 192, _CDNA3, "MI300X OAM", bf16=1307.4, fp16=1307.4, fp8=2614.9, f32=163.4),
    _device("MI325X", 256, _CDNA3, "MI325X OAM", bf16=1307.4, fp16=1307.4, fp8=2614.9, f32=163.4),
    # TPUs: one chip, whatever the number of its cores (published per core for v3: 61.5).
    _tpu("v2", 16, bf16=45),
    _tpu("v3", 32, bf16=2 * 61.5),
    _tpu("v4", 32, bf16=275),
    _tpu("v5litepod", 16, "v5e", "v5 lite", bf16=197),
    _tpu("v5p", 95, "v5", bf16=459),
    _tpu("v6e", 32, "v6 lite", "trillium", bf16=918),
    _device("trn1", 16, _FRAY, "trainium", kind="neuron", bf16=95),  # one of a chip's two cores
)
# fmt: on

_TPU_CORES_PER_CHIP = {"v2": 2, "v3": 2, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1}  # as slice names count them


def _key(name: str) -> str:
    """The letters and digits that tell devices apart: no vendor, no punctuation, "80GB" as "80g"."""
    name = re.sub(r"\b(nvidia|geforce|tesla|amd|instinct|google|cloud|tpu|gpu)\b", " ", name.lower())
    return re.sub(r"(\d)gi?b\b", r"\1g", re.sub(r"[^a-z0-9]+", " ", name)).replace(" ", "")


_BY_KEY = {_key(name): device for device in CATALOGUE for name in (device.name, *device.aliases)}


def lookup_device(name: str) -> Device:
    """The catalogue's entry for a device, by any name people and drivers write for it.

    "A100-80G", "NVIDIA A100-SXM4-80GB", "rtx 3090", "TPU v4" and the slice name "v4-128" are all understood.

    Raises:
        HardwareError: if the catalogue does not know the name.
    """
    slice_name = re.fullmatch(r"(v\d+[a-z]*)-\d+", name.strip().lower())
    device = _BY_KEY.get(_key(slice_name.group(1) if slice_name else name))
    if device is not None:
        return device
    if _key(name) == "cpu":
        raise HardwareError("a processor's peak is measured, not looked up: use `CpuOnlyConfig`")
    close = difflib.get_close_matches(_key(name), _BY_KEY, n=3, cutoff=0.5)
    nearest = ", ".join(dict.fromkeys(_BY_KEY[key].name for key in close)) or "A100-80G, H100, RTX 4090, v4, v5p"
    raise HardwareError(
        f"unknown device {name!r} (closest known: {nearest}): use a known name, or set `device_flops_override` "
        f"to the dense peak FLOP/s of one device, from its data sheet"
    )


def tpu_chips(tpu_type: str) -> int:
    """Chips in a slice: "v4-128" counts cores, two to a chip, and has 64; "v6e-8" counts chips and has 8.

    Raises:
        HardwareError: if the generation is unknown or the number of cores is odd.
    """
    generation, _, suffix = tpu_type.strip().lower().rpartition("-")
    if not suffix.isdecimal() or int(suffix) == 0:
        raise HardwareError(f"{tpu_type!r} is not a TPU slice name: write it as 'v4-128' or 'v6e-8'")
    device = lookup_device(generation)
    if device.name not in _TPU_CORES_PER_CHIP:
        raise HardwareError(f"{tpu_type!r} is not a TPU slice name: known are {', '.join(_TPU_CORES_PER_CHIP)}")
    chips, rest = divmod(int(suffix), _TPU_CORES_PER_CHIP[device.name])
    if rest:
        raise HardwareError(
            f"{tpu_type!r} cannot be: {device.name} slices count cores, and a chip has two; use an even number"
        )
    return chips


# ---------------------------------------------------------------------------------------------------------------------
# What this machine has
# ---------------------------------------------------------------------------------------------------------------------


def _nvidia_smi(fields: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):  # no such program, or no driver behind it: no GPU to speak of
        return []
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    # Some drivers say in a sentence, and with status 0, that there is no device.
    return [row for row in rows if len(row) == len(fields.split(","))]


def why_no_device(said: str) -> str:
    """Why JAX starts on no device, from what it said: nothing, or the mere name of an error, where it saw no GPU to start CUDA on."""
    if said not in ("", "AssertionError"):
        return said
    return "this machine shows no NVIDIA GPU: there is no /dev/nvidia0, /dev/nvidiactl or /dev/dxg, also not where a container hides it"


def detect_gpus() -> list[tuple[str, int]]:
    """(name as the driver gives it, memory in bytes) of each NVIDIA GPU; empty where there is no driver."""
    return [
        (name, int(mebibytes) * 2**20 if mebibytes.isdecimal() else 0)  # unified-memory devices answer "[N/A]"
        for name, mebibytes in _nvidia_smi("name,memory.total")
    ]


def is_nvidia_gpu(device: Any) -> bool:
    """Whether a device of JAX's is one."""
    return bool(device.platform == "gpu" and "rocm" not in device.client.platform_version.lower())


def version_of(text: str) -> tuple[int, ...]:
    """The first two numbers of a version, such as JAX's, or of a compute capability."""
    return tuple(int(part) for part in text.split(".")[:2])


def gpu_driver_version() -> str | None:
    """The NVIDIA driver's version, or None where there is none."""
    rows = _nvidia_smi("driver_version")
    return rows[0][0] if rows and rows[0][0][:1].isdecimal() else None


def detect_gpu_name() -> str:
    """The catalogue's name of this machine's GPUs.

    Raises:
        HardwareError: if there is no GPU, if there are several types, or if the catalogue does not know the type.
    """
    names = sorted({name for name, _ in detect_gpus()})
    if not names:
        raise HardwareError(
            "no NVIDIA GPU found (`nvidia-smi` is missing or lists none): name the device that will run this, "
            "such as GpuConfig(accelerator_type='A100-80G'), or use CpuOnlyConfig()"
        )
    if len(names) > 1:
        raise HardwareError(
            f"this machine has GPUs of several types ({', '.join(names)}): pick one with CUDA_VISIBLE_DEVICES "
            f"and name it in `accelerator_type`"
        )
    return lookup_device(names[0]).name


def _first_line(path: str) -> str:
    try:
        return pathlib.Path(path).read_text().split("\n", 1)[0].strip()
    except OSError:
        return ""


def _own_cgroup_directories() -> list[str]:
    """This process's cgroup (version 2) and its ancestors, each of which may set a limit."""
    try:
        lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    root = pathlib.PurePosixPath("/sys/fs/cgroup")
    here = root / own.lstrip("/")
    return [str(path) for path in (here, *here.parents) if path == root or root in path.parents]


def num_processors() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> float:
    """Processor cores that this process may keep busy: its affinity, cut by the cgroup quota (so maybe a fraction)."""
    cores = float(num_processors())
    quotas = [_first_line(f"{directory}/cpu.max").split() for directory in _own_cgroup_directories()]
    quotas.append([_first_line(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period")])
    for quota in quotas:
        if len(quota) == 2 and all(part.isdecimal() for part in quota) and int(quota[1]) > 0:
            cores = min(cores, int(quota[0]) / int(quota[1]))
    return cores


def total_memory() -> int:
    """Bytes of memory that this process may use: the machine's, cut by the cgroup limit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_first_line(f"{directory}/memory.max") for directory in _own_cgroup_directories()]
    limits.append(_first_line("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    return min([memory, *(int(limit) for limit in limits if limit.isdecimal())])


def cpuinfo() -> list[str]:
    """What Linux says of its processors, "name : value" a line; nothing on another system."""
    try:
        return pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _cpu_model() -> str:
    named = (line.partition(":")[2].strip() for line in cpuinfo() if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def has_bf16_instructions() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (x86: AVX512-BF16 or AMX; ARM: the BF16 extension)."""
    for line in cpuinfo():
        if line.startswith(("flags", "Features")):
            return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(line.partition(":")[2].split())
    return False


def host_info() -> dict[str, object]:
    """This machine in plain JSON values, for `run.json` and `marin doctor`."""
    return {
        "cpu_model": _cpu_model(),
        "cores_usable": usable_cores(),
        "memory_bytes": total_memory(),
        "gpus": [{"name": name, "memory_bytes": memory} for name, memory in detect_gpus()],
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
    }


# One core's best rate over square float32 products, printed as FLOP/s. Run with a single BLAS thread. A product takes a millisecond, less than
# the slice that a core is given between other work: on two cores under a load of 8, six measurements gave 87 to 93 GFLOP/s, with products
# of 1024, which take 25 ms, 7 to 68.
_MEASURE_ONE_CORE = """
import time, numpy
a = numpy.full((384, 384), 0.5, numpy.float32)
out, best, end = numpy.empty_like(a), 0.0, time.perf_counter() + 0.6
while time.perf_counter() < end:
    start = time.perf_counter()
    numpy.matmul(a, a, out=out)
    best = max(best, 2 * 384**3 / (time.perf_counter() - start))
print(best)
"""
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def measure_cpu_peak(num_cpus: int | None = None) -> float:
    """float32 FLOP/s of this machine's processor: one core's best rate times the cores that are used.

    Those are all that this process may use, or `num_cpus` of them if that is less.

    One core is measured in a process of its own with one BLAS thread, the best short product of 0.6 seconds, so that other
    work on the machine does not lower the figure: threads that wait for each other on a busy machine were seen to give a
    hundredth of it. It is an attainable rate, not a data sheet's, and says nothing of bfloat16. That is done once in a process.
    `MARIN_CPU_PEAK_FLOPS` replaces it, so that runs on one machine can share one denominator.

    Raises:
        ConfigError: if `MARIN_CPU_PEAK_FLOPS` is no number of at least `LEAST_PEAK`.
        HardwareError: if the measurement fails.
    """
    if recorded := given_cpu_peak():
        try:
            peak = float(recorded)
        except ValueError:
            peak = 0.0
        if not LEAST_PEAK <= peak < float("inf"):
            raise ConfigError(
                f"MARIN_CPU_PEAK_FLOPS is {recorded!r}: give FLOP/s, such as 1.2e11 for 120 GFLOP/s, or unset it"
            )
        return peak
    return min(num_cpus or usable_cores(), usable_cores()) * _measured_core()


def given_cpu_peak() -> str | None:
    """What the environment says that this processor's peak is, in place of a measurement; None where it says nothing."""
    return os.environ.get("MARIN_CPU_PEAK_FLOPS") or None


@functools.cache
def _measured_core() -> float:
    environment = os.environ | dict.fromkeys(_BLAS_THREADS, "1")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE_ONE_CORE], env=environment, capture_output=True, timeout=60, check=True
        )
        return float(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise HardwareError(
            f"the processor's peak could not be measured ({error}): set MARIN_CPU_PEAK_FLOPS to its float32 FLOP/s"
        ) from None
