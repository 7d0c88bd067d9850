"""The axes of a mesh of devices, and where the arrays of a model lie along them.

A model is plain code over whole arrays; XLA's partitioner divides it. It needs to be told where activations lie, or it may
gather them in place of the weights. The functions of `marin.nn` say so with what is here, so that models made of them, and
copies of the template, need not. Without a mesh (`jax.set_mesh`), on one device, and where a mesh's axes are already taken
by a `jax.shard_map` around, all of it does nothing.

    data      rows of the batch; parameters are on every device
    fsdp      rows of the batch; parameters are divided, and gathered where they are used
    sequence  positions of each row
    tensor    heads and hidden features
"""

import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array

DATA, FSDP, SEQUENCE, TENSOR = "data", "fsdp", "sequence", "tensor"
# From the outermost to the innermost: neighbours, which have the fastest links, share what needs most communication.
AXES = (DATA, FSDP, SEQUENCE, TENSOR)
BATCH_AXES = (DATA, FSDP)

# A dimension of an array, divided along these axes; None leaves it whole.
Axes = tuple[str, ...] | None


def ambient_axes() -> dict[str, int]:
    """The sizes of those axes of the ambient mesh that have more than one device; empty where nothing is to be divided."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or any(kind is not AxisType.Auto for kind in mesh.axis_types):
        return {}
    return {name: size for name, size in mesh.shape.items() if name in AXES and size > 1}


def dividing(sizes: dict[str, int], axes: Sequence[str], dim: int) -> Axes:
    """Those of `axes`, taken in order, that together divide a dimension of `dim`; None if there are none."""
    taken: tuple[str, ...] = ()
    for axis in axes:
        if axis in sizes and dim % (sizes[axis] * math.prod(sizes[name] for name in taken)) == 0:
            taken = (*taken, axis)
    return taken or None


def lay_out_activations(x: Array) -> Array:
    """[B, T, ...] with rows along data and fsdp and positions along sequence; other shapes are left alone."""
    sizes = ambient_axes()
    if not sizes or x.ndim < 3:
        return x
    rows, positions = dividing(sizes, BATCH_AXES, x.shape[0]), dividing(sizes, (SEQUENCE,), x.shape[1])
    rest = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 2)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(rows, positions, *rest))


def lay_out_stack(x: Array) -> Array:
    """[N, ...] with its items dealt out over all devices, each whole on one of them (see `stack_padding`).

    Not under tensor parallelism, which divides items in ways that XLA could only undo by gathering all of them.
    """
    sizes = ambient_axes()
    if not sizes or TENSOR in sizes:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(dividing(sizes, AXES, x.shape[0])))


def stack_padding(num_items: int) -> int:
    """How many items more a stack needs, that the devices can share it evenly."""
    sizes = ambient_axes()
    return 0 if TENSOR in sizes else -num_items % math.prod(sizes.values())


def replicate(x: Array) -> Array:
    """The array whole on every device."""
    return jax.lax.with_sharding_constraint(x, PartitionSpec()) if ambient_axes() else x
