"""The template's training step as XLA compiles it for a GPU that is not there: memory, kernels, and how fast they can be at best.

    python -m benchmarks.absent_gpu                                     # all four sizes in bfloat16, on an H200
    python -m benchmarks.absent_gpu --sizes 1_2b --fp8 --kernels 20     # and the twenty kernels that take longest
    python -m benchmarks.absent_gpu --sizes 520m --device H100 --recompute blocks --rows 8

Needs Linux and the packages of the extra `cuda12` or `cuda13`, and neither a GPU nor a driver: XLA's compiler takes a description of
the device. Model, optimizer, batch and options are those of `benchmarks.device_step`, which measures the same program where there
is a GPU. Prints one JSON line a size, of figures that are computed, not measured:

  memory_gib       what the program needs at once: state, batch and temporaries, by XLA's own assignment
  products         kernels of products by the format they multiply in, and cuDNN's for attention, as often as a step runs them; rows
                   are one document each unless `--document-length` says otherwise, and packed, counted as if nothing were hidden, if so
  least_seconds    the sum over kernels of the longer of two times: moving the kernel's bytes at the memory's peak rate, and
                   multiplying at the published dense peak. No GPU reaches both peaks, so a step takes longer
  most_mfu         what MFU would then be: an upper bound, not a forecast

Nothing is tuned, as there is no device to try kernels on: products go to cuBLAS, while on a device XLA may take kernels of its own.
"""

import argparse
import collections
import contextlib
import importlib
import json
import os
import sys
import unittest.mock
from collections.abc import Iterator
from typing import Any

# Before JAX is imported: it must not look for a driver, and XLA must not try kernels out.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
)

import equinox as eqx
import jax
import numpy as np
from jax.experimental import topologies

from benchmarks import device_step, hlo_costs
from marin import hardware
from marin.nn import attention_cudnn
from marin.nn.trees import is_shape

# Bytes a second of their memory, from their data sheets. Both have the same multiprocessors.
_BANDWIDTH = {"H100": 3.35e12, "H200": 4.8e12}
# What XLA asks of a device (its `GpuTargetConfigProto`), for Hopper's SXM modules.
_HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 minor: 0 }}
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 threads_per_warp: 32
  threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: 52428800 memory_bandwidth: {bandwidth} device_memory_size: {memory}
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "NVIDIA {name}"
"""


def main() -> None:
    parser = device_step.parser_of(__doc__)
    parser.add_argument("--device", default="H200", choices=list(_BANDWIDTH))
    parser.add_argument("--kernels", type=int, default=0, help="show so many that take longest")
    args, presets = device_step.parse(parser)
    devices = absent_devices(args.device)
    for size, preset in presets.items():
        compiled = compile_step(preset, args, devices)
        # What rows of one document take, or rows of several that are packed.
        way = 1 if args.document_length else 0
        kernels = hlo_costs.kernels_of(compiled.as_text(), branches={attention_cudnn.CHOICE: way})
        show(size, preset, args, compiled.memory_analysis(), kernels)


def absent_devices(name: str) -> Any:
    """A device that programs can be compiled for, and not run on."""
    try:
        from jax._src.lib import cuda_versions
    except ImportError:
        cuda_versions = None
    if cuda_versions is None:
        sys.exit(
            "error: XLA's compiler for NVIDIA is not installed: `uv sync --all-packages --extra=cuda12` brings it (5 GB)"
        )
    cudnn = cuda_versions.cudnn_get_version()
    described = _HOPPER.format(
        name=name,
        bandwidth=int(_BANDWIDTH[name]),
        memory=hardware.lookup_device(name).memory_bytes,
        cudnn=(cudnn // 10_000, cudnn % 10_000 // 100),
    )
    return topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=described).devices


@contextlib.contextmanager
def _pretending(name: str) -> Iterator[None]:
    """What chooses between kernels sees this device."""
    from jax._src.cudnn import fused_attention_stablehlo

    device = unittest.mock.Mock(platform="gpu", device_kind=f"NVIDIA {name}", compute_capability="9.0", core_count=132)
    device.client.platform_version = "cuda"
    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(jax, "default_backend", return_value="gpu"))
        stack.enter_context(unittest.mock.patch.object(jax, "local_devices", return_value=[device]))
        stack.enter_context(
            unittest.mock.patch.object(fused_attention_stablehlo, "check_compute_capability", return_value=True)
        )
        # JAX 0.11 and later ask more of a device before they lower a kernel that is written in Pallas.
        with contextlib.suppress(ImportError):
            gpu_info: Any = importlib.import_module("jax._src.pallas.triton.gpu_info")
            described = gpu_info.get_gpu_info_from_version(gpu_info.GpuVersion[name])
            stack.enter_context(unittest.mock.patch.object(gpu_info, "get_gpu_info", return_value=described))
        yield


def compile_step(preset: Any, args: argparse.Namespace, devices: Any) -> Any:
    """The training step that `device_step` takes, compiled for devices that need not be there."""
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def placed(tree: Any) -> Any:
        shapes, static = eqx.partition(tree, is_shape)
        return eqx.combine(
            jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes), static
        )

    precision = device_step.fp8() if args.fp8 else device_step.bf16()
    with _pretending(args.device):
        state, step, _ = device_step.step_of(preset, args, precision, shapes_only=True)
        lowered = jax.jit(step, donate_argnums=0).lower(placed(state), placed(device_step.batch_shapes(preset)))
        return lowered.compile()


def show(size: str, preset: Any, args: argparse.Namespace, memory: Any, kernels: list[hlo_costs.Kernel]) -> None:
    device = hardware.lookup_device(args.device)
    peaks = {"bf16": device.peak("bf16"), "f8": device.peak("fp8"), "f32": device.peak("f32")}

    def least(kernel: hlo_costs.Kernel) -> float:
        return hlo_costs.least_seconds(kernel, bytes_per_second=_BANDWIDTH[args.device], flops_per_second=peaks)

    products: collections.Counter[str] = collections.Counter()
    for kernel in kernels:
        if kernel.number_format:
            products["attention" if "fmha" in kernel.kind else kernel.number_format] += kernel.times
    seconds = sum(map(least, kernels))
    tokens = preset.train_batch_size * preset.model.seq_len
    flops = tokens * device_step.flops_per_token(preset.model, args.vocabulary)
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    line = {
        "name": f"absent_{args.device}_{size}",
        "memory_gib": round((needed - memory.alias_size_in_bytes) / 2**30, 2),
        "of_gib": round(device.memory_bytes / 2**30, 1),
        "products": dict(products),
        "kernels": sum(kernel.times for kernel in kernels),
        "least_seconds": round(seconds, 4),
        "most_mfu": round(flops / seconds / device.peak("bf16"), 4),
        "context": {
            "parameters": preset.model.total_trainable_params(args.vocabulary),
            "batch": preset.train_batch_size,
            "rows_at_once": device_step.rows_at_once(preset, args),
            "recompute": args.recompute,
            "products_in": "fp8" if args.fp8 else "bf16",
            "jax": jax.__version__,
        },
    }
    print(json.dumps(line), flush=True)
    for kernel in sorted(hlo_costs.merged(kernels), key=least, reverse=True)[: args.kernels]:
        print(
            f"{least(kernel):9.4f} s  {kernel.times:>5} times  {kernel.num_bytes / 2**20:8.0f} MiB  {kernel.flops / 1e12:7.3f} TFLOP"
            f" {kernel.number_format or '':4}  {kernel.kind:28.28}  {kernel.shape:44.44}  {kernel.source[-60:]}"
        )


if __name__ == "__main__":
    main()
