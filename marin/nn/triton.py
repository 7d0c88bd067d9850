"""Kernels of our own for NVIDIA GPUs, by Pallas' way to Triton: when they can run, and how they are called.

What they compute XLA computes too, with more passes over memory. Each has a reference beside it, which runs everywhere else, and whose
derivative stands for the kernel's where somebody takes one of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from marin import hardware
from marin.nn.axes import ambient_axes

# JAX has announced that it will take Pallas' way to Triton away: later versions are left to XLA until somebody has looked.
_LAST_JAX = (0, 12)
_AMPERE = 8.0  # before it there is no bfloat16


def has_triton() -> bool:
    """Whether kernels can run here, with a JAX that is known.

    On one NVIDIA GPU, or on each of several within `jax.shard_map`: XLA cannot divide them.
    """
    if ambient_axes():
        return False
    device = jax.local_devices()[0]
    if not hardware.is_nvidia_gpu(device) or float(device.compute_capability) < _AMPERE:
        return False
    return hardware.version_of(jax.__version__) <= _LAST_JAX


def call_triton(
    kernel: Callable[..., None],
    *arrays: jax.Array,
    grid: tuple[int, ...],
    in_specs: Sequence[tuple[tuple[int, ...], Callable[..., Any]]],
    out_specs: Sequence[tuple[tuple[int, ...], Callable[..., Any]]],
    out_shape: Sequence[jax.ShapeDtypeStruct],
    num_warps: int,
    aliases: dict[int, int] | None = None,
    interpret: bool = False,
) -> list[jax.Array]:
    """`kernel(*references)` for every place of the grid.

    Args:
        in_specs, out_specs: for each array the shape of one block, and which block a place of the grid takes.
        aliases: results by the operands whose memory they are written into.
        interpret: on any device, slowly, for tests.
    """
    # Pallas takes 0.5 s to import, and only GPUs need it.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    run = pallas.pallas_call(
        kernel,
        grid=grid,
        in_specs=[pallas.BlockSpec(*spec) for spec in in_specs],
        out_specs=[pallas.BlockSpec(*spec) for spec in out_specs],
        out_shape=list(out_shape),
        input_output_aliases=aliases or {},
        compiler_params=triton.CompilerParams(num_warps=num_warps, num_stages=2),
        interpret=interpret,
    )
    return list(run(*arrays))


def power_of_two(size: int, most: int) -> int:
    """The largest power of two that divides a size, at most `most`: blocks of Triton have no other sizes."""
    return min(size & -size, most)
