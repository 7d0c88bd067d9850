"""Rules: where a parameter lies on a mesh, from the name of the module that holds it and its shape.

Matrices whose outputs are heads or hidden features (queries, gates) are divided by columns along the tensor axis, those that
take such inputs (attention's and the feed-forward's output) by rows, so that the two together need one sum over devices.
Along the fsdp axis each array of two dimensions or more is divided in its largest dimension that the axis divides. Vectors
stay whole. Optimizer state and averages lie as the parameter of the same path and shape does. A layout never changes
what is computed, only what each device holds: a matrix of an unknown name is divided along fsdp alone.
"""

import math
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from marin.nn.axes import FSDP, TENSOR, ambient_axes, dividing
from marin.nn.trees import map_named, named_leaves

# Names of modules (or of arrays, without their shape suffix) by the dimension, from the end, that tensor parallelism divides.
_COLUMNS = ("query", "key", "value", "gate", "up", "lm_head", "wq", "wk", "wv", "w1", "w3")
_ROWS = ("output", "down", "wo", "w2")

Tree = Any


def parameter_spec(path: str, shape: tuple[int, ...], sizes: dict[str, int]) -> PartitionSpec:
    """Where a parameter lies.

    Args:
        path: as `marin.nn.trees` names it, such as "blocks.0.attention.query.weight_IO".
        sizes: devices of each axis.
    """
    sizes = {axis: size for axis, size in sizes.items() if size > 1}
    if len(shape) < 2:
        return PartitionSpec()
    axes: list[tuple[str, ...]] = [()] * len(shape)
    divided = _tensor_dim(path, len(shape))
    if divided is not None and dividing(sizes, (TENSOR,), shape[divided]):
        axes[divided] = (TENSOR,)
    if FSDP in sizes:
        # Rather a dimension of its own than one that is divided already; of those the largest.
        for dim in sorted(range(len(shape)), key=lambda dim: (bool(axes[dim]), -shape[dim])):
            if shape[dim] % (sizes[FSDP] * math.prod(sizes[axis] for axis in axes[dim])) == 0:
                axes[dim] = (*axes[dim], FSDP)
                break
    return PartitionSpec(*((names[0] if len(names) == 1 else names or None) for names in axes))


def state_specs(state: Tree, model: Tree, sizes: dict[str, int]) -> Tree:
    """Where each leaf of a training state lies, by the parameters of `model`; both may hold shapes in place of arrays."""
    known = {name: leaf.shape for name, leaf in named_leaves(model).items()}

    def spec(name: str, leaf: Any) -> PartitionSpec:
        parts = name.split(".")
        for start in range(len(parts)):
            own = ".".join(parts[start:])
            if known.get(own) == leaf.shape:
                return parameter_spec(own, leaf.shape, sizes)
        return parameter_spec("", leaf.shape, sizes)

    return map_named(spec, state)


def state_shardings(state: Tree, model: Tree, mesh: Any) -> Tree:
    """`state_specs` on a mesh."""
    specs = state_specs(state, model, dict(mesh.shape))
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))


def lay_out_like_parameters(tree: Tree) -> Tree:
    """Gradients, laid out on the ambient mesh as the parameters of their paths are."""
    sizes = ambient_axes()
    if not sizes:
        return tree
    return map_named(
        lambda name, leaf: jax.lax.with_sharding_constraint(leaf, parameter_spec(name, leaf.shape, sizes)), tree
    )


def undivided(params: Tree, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """The arrays of two dimensions or more that every device must hold whole, as no rule divides them, with their shapes."""
    if math.prod(sizes.get(axis, 1) for axis in (FSDP, TENSOR)) == 1:
        return {}
    return {
        name: leaf.shape
        for name, leaf in named_leaves(params).items()
        if len(leaf.shape) > 1 and not any(parameter_spec(name, leaf.shape, sizes))
    }


def bytes_per_device(tree: Tree, specs: Tree, sizes: dict[str, int]) -> int:
    """What one device holds of a tree of arrays or shapes that lies as `specs` say."""

    def held(leaf: Any, spec: PartitionSpec) -> int:
        axes = [axis for names in spec if names for axis in ((names,) if isinstance(names, str) else names)]
        return leaf.size * leaf.dtype.itemsize // math.prod(sizes[axis] for axis in axes)

    return sum(jax.tree.leaves(jax.tree.map(held, tree, specs)))


def _tensor_dim(path: str, num_dims: int) -> int | None:
    """The dimension that tensor parallelism divides, where the name of the array or its module says."""
    parts = path.lower().split(".")[-2:]
    if parts and "_" in parts[-1]:
        parts.append(parts[-1].rsplit("_", 1)[0])  # without its ending: "wq" of "wq_IO", "down" of "down_proj"
    if any(part in _COLUMNS for part in parts):
        return num_dims - 1
    if any(part in _ROWS or "embed" in part for part in parts):
        return num_dims - 2
    return None
