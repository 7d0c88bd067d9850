"""What `--device-type` and `--fp8` mean on this machine."""

import os
import sys
from collections.abc import Mapping

import jax

from marin import hardware
from marin.errors import ConfigError, HardwareError
from marin.nn.precision import Precision
from marin.parallel.distributed import processes_of
from marin.resources import CpuOnlyConfig, GpuConfig, Resources, TpuPodConfig

_DTYPE_VARIABLES = ("MARIN_DTYPE", "NANOCHAT_DTYPE")
DTYPES = {"float32": "f32", "bfloat16": "bf16"}
"""Number formats as flags and variables name them, and as `Precision` does."""


def resources_of(device_type: str, environment: Mapping[str, str] = os.environ) -> Resources:
    """The devices of all processes together.

    Args:
        device_type: "auto" (GPUs where there are any), "cpu", "cuda" or "gpu", or a TPU slice such as "v6e-8".
    Raises:
        ConfigError: there is no such type.
        HardwareError: there is no GPU.
    """
    kind = device_type.strip().lower() or "auto"
    gpus = 0 if kind == "cpu" else len(hardware.detect_gpus())
    if kind == "cpu" or (kind == "auto" and not gpus):
        return CpuOnlyConfig()
    if kind in ("auto", "cuda", "gpu"):
        if not gpus:
            raise HardwareError(
                f"`--device-type {device_type}` asks for a GPU and none is found: use cpu, or run `marin doctor`"
            )
        return GpuConfig(_num_gpus(gpus, environment))
    if "-" in kind:
        return TpuPodConfig(kind)
    raise ConfigError(f"`--device-type` is {device_type!r}: use auto, cpu, cuda, or a TPU slice such as v6e-8")


def take_devices(device_type: str) -> Resources:
    """`resources_of`, where "cpu" also keeps JAX, here and in the processes that this one starts, from a GPU or TPU that it would
    else compute on; before it has looked at its devices."""
    if device_type.strip().lower() == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")  # which was read from the environment when JAX was imported
    return resources_of(device_type)


def _num_gpus(found: int, environment: Mapping[str, str]) -> int:
    """GPUs of all processes: one each under torchrun and SLURM, all visible ones for a process that is alone."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    here = len([part for part in visible.split(",") if part.strip()]) if visible is not None else found
    processes = processes_of(environment)
    if processes is None:
        return max(1, here)
    if processes.how == "SLURM":
        return int(environment["SLURM_STEP_NUM_TASKS"])
    return (processes.count or 1) * (len(processes.local_devices) if processes.local_devices else max(1, here))


def precision_of(resources: Resources, fp8: bool, environment: Mapping[str, str] = os.environ) -> Precision | None:
    """The number format: what `MARIN_DTYPE` or `NANOCHAT_DTYPE` says, else None for the devices' own choice.

    Where 8-bit products are asked for and the device has none, training goes on without, and says so.

    Raises:
        ConfigError: the variable names another format than float32 and bfloat16.
    """
    name, given = next(((name, environment[name]) for name in _DTYPE_VARIABLES if environment.get(name)), ("", None))
    if given is not None and given not in DTYPES:
        raise ConfigError(f"{name} is {given!r}: use float32 or bfloat16")
    compute = None if given is None else DTYPES[given]
    if fp8 and _has_fp8(resources):
        return Precision(compute or "bf16", products="fp8")
    if fp8:
        print(
            f"note: `--fp8` is asked for, and {resources.device_name} has no 8-bit floating-point products: training goes on"
            " without, in bfloat16 or what a processor is faster in",
            file=sys.stderr,
        )
    return None if compute is None else Precision(compute)


def _has_fp8(resources: Resources) -> bool:
    if resources.platform != "gpu":
        return False
    try:
        hardware.lookup_device(resources.device_name).peak("fp8")
    except HardwareError:
        return False
    return True
