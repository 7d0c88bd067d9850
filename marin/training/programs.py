"""How the training step is compiled: the number format, and on CPUs the compiler options that measure fastest.

A CPU with instructions for bfloat16 multiplies in it about twice as fast as in float32, but only through oneDNN, and with
oneDNN's options some float32 programs run at a quarter of their rate; no table knows which machine and version does what.
So where there is a choice a small program with the model's width is timed in each way. That happens once a run: the choice
stands in `run.json`, and a resumed run takes it from there, since another one would round differently.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib

from marin import hardware
from marin.errors import HardwareError
from marin.nn.precision import Precision
from marin.nn.quantized import has_quantizable_linears
from marin.parallel import distributed
from marin.training.compile_cache import unkept
from marin.training.config import TrainLmConfig

# jaxlib 0.12 has oneDNN's products in bfloat16; 0.10 has the options, and no fast program behind them.
_FIRST_FAST_BF16 = (0, 12)
_ONEDNN: dict[str, str | bool] = {"xla_cpu_use_onednn": True, "xla_cpu_experimental_onednn_custom_call": True}
_PROBE_TOKENS, _PROBE_WIDTH, _PROBE_REPETITIONS = 2048, 512, 5
# XLA tries kernels of its own beside cuBLAS for each product, 22 to 30 seconds for one of FP8 on an H200 with 16 cores, where a run
# has a dozen and cuBLAS is at 1.4 PFLOP/s of 1.98. For bfloat16 it tries for seconds, and a step of 130m takes 2 % less.
_FP8_ON_GPU: dict[str, str | bool] = {"xla_gpu_enable_triton_gemm": False}
# FP8 matrix units begin with this compute capability of NVIDIA's (Ada and Hopper).
_FIRST_FP8 = (8, 9)


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What a training step is compiled with."""

    precision: Precision
    options: dict[str, str | bool] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # of each way that was measured

    def as_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision.compute,
            "products": self.precision.products,
            "compiler_options": self.options,
            "compiler_measured": self.seconds,
        }

    @staticmethod
    def from_json(info: Mapping[str, Any]) -> "Compilation":
        """What `as_json` wrote into `run.json`."""
        precision = Precision(info["precision"], info.get("products"))
        return Compilation(precision, info.get("compiler_options") or {}, info.get("compiler_measured") or {})

    def __str__(self) -> str:
        return self.precision.compute + "".join(f" {name.removeprefix('xla_cpu_')}" for name in self.options)


def choose_compilation(config: TrainLmConfig, shapes: Any) -> Compilation:
    """How a run that begins on this machine is compiled.

    Products in 8 bits that the device or the model has no use for are replaced by the compute format, with a message.

    Args:
        shapes: the parameters of the model, or their shapes.
    """
    asked, platform = config.train.precision, config.train.resources.platform
    products = config.precision.products
    if problem := why_no_products(products, shapes):
        name = "FP8" if products == "fp8" else products
        distributed.warn(f"note: {name} products are asked for and {problem}: they run in {config.precision.compute}")
        products = None
    if platform != "cpu":
        return on_accelerator(Precision(config.precision.compute, products), platform)
    candidates = [Compilation(Precision(way.precision.compute, products), way.options) for way in cpu_candidates(asked)]
    width = getattr(config.model, "hidden_dim", _PROBE_WIDTH)
    return fastest(candidates, lambda way: seconds_of(way, width))


def on_accelerator(precision: Precision, platform: str) -> Compilation:
    """How a program in these formats is compiled for a GPU or TPU."""
    return Compilation(precision, _FP8_ON_GPU if platform == "gpu" and precision.products == "fp8" else {})


def cpu_candidates(asked: Precision | None) -> list[Compilation]:
    """The ways to compile for this processor that can be fastest, the plainest first."""
    fast_bf16 = hardware.has_bf16_instructions() and hardware.version_of(jaxlib.__version__) >= _FIRST_FAST_BF16
    in_bf16 = [Compilation(Precision("bf16"))] + ([Compilation(Precision("bf16"), _ONEDNN)] if fast_bf16 else [])
    if asked is not None:
        return in_bf16 if asked.dtype == jnp.bfloat16 else [Compilation(Precision("f32"))]
    return [Compilation(Precision("f32")), *(in_bf16 if fast_bf16 else [])]


def fastest(candidates: list[Compilation], seconds: Callable[[Compilation], float]) -> Compilation:
    """The candidate that takes the least time; a later one must beat the ones before it by a tenth."""
    if len(candidates) == 1:
        return candidates[0]
    measured = {str(way): seconds(way) for way in candidates}
    best = candidates[0]
    for way in candidates[1:]:
        if measured[str(way)] < 0.9 * measured[str(best)]:
            best = way
    return dataclasses.replace(best, seconds={name: round(value, 6) for name, value in measured.items()})


def seconds_of(way: Compilation, width: int) -> float:
    """The least time of a feed-forward block, forward and backward; infinite where the compiler refuses the options."""
    keys = jax.random.split(jax.random.key(0), 3)
    dtype = way.precision.dtype
    x_ND = jax.random.normal(keys[0], (_PROBE_TOKENS, width)).astype(dtype)
    up_DF = (width**-0.5 * jax.random.normal(keys[1], (width, 4 * width))).astype(dtype)
    down_FD = (width**-0.5 * jax.random.normal(keys[2], (4 * width, width))).astype(dtype)

    def loss(x_ND: Any, up_DF: Any, down_FD: Any) -> Any:
        return jnp.sum((jnp.square(jax.nn.relu(x_ND @ up_DF)) @ down_FD).astype(jnp.float32))

    arguments = (x_ND, up_DF, down_FD)
    try:
        lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arguments)
        with _kept_if_it_can_be(way):
            program = lowered.compile(way.options or None)
    except jax.errors.JaxRuntimeError:
        return math.inf
    seconds = []
    for _ in range(_PROBE_REPETITIONS + 1):
        begin = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


def trace_program(function: Callable[..., Any], *arguments: Any, out_shardings: Any = None) -> Any:
    """`function(state, ...)` traced for these arguments, as a `jax.stages.Traced`, which shows what the program does.

    Compiled, it gives the state's memory to the result.
    """
    return jax.jit(function, donate_argnums=0, out_shardings=out_shardings).trace(*arguments)


def compile_traced(traced: Any, way: Compilation) -> Any:
    """The program of a `trace_program`.

    Raises:
        HardwareError: if this compiler does not take the options, which a run that goes on has from where it began.
    """
    lowered = traced.lower()
    try:
        with _kept_if_it_can_be(way):
            return lowered.compile(compiler_options=way.options or None)
    except jax.errors.JaxRuntimeError as error:
        refused = [name for name in way.options if name in str(error)]
        if not refused:
            raise
        raise HardwareError(
            f"the run began with the compiler option {refused[0]}, which jaxlib {jaxlib.__version__} here does not know: go on"
            " with the version that `run.json` names, or begin a new run"
        ) from None


def _kept_if_it_can_be(way: Compilation) -> contextlib.AbstractContextManager[None]:
    """Programs that call oneDNN cannot be serialized: XLA fails with a lack of memory, of which JAX warns each time."""
    return unkept() if _ONEDNN.keys() & way.options.keys() else contextlib.nullcontext()


def why_no_products(products: str | None, shapes: Any) -> str | None:
    """Why products in 8 bits would not run as such; None where they do, or are not asked for."""
    if products is None:
        return None
    if not has_quantizable_linears(shapes):
        return "no `Linear` of the model has two sides of at least 128 that are multiples of 16"
    return why_no_fp8() if products == "fp8" else None


def why_no_fp8() -> str | None:
    """Why products in FP8 would not run as such on the first device; None where they do."""
    device = jax.devices()[0]
    capability = getattr(device, "compute_capability", None)
    if device.platform != "gpu" or capability is None:
        return f"{device.device_kind} has no matrix units for them"
    if hardware.version_of(str(capability)) < _FIRST_FP8:
        return f"{device.device_kind} (compute capability {capability}) has no matrix units for them"
    return None
