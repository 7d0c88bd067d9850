"""Trees of arrays, such as models and the states of optimizers: what each array is called, and shapes in place of arrays."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax


def name_of(path: Any) -> str:
    """What the leaf at a path of JAX is called everywhere, such as "blocks.0.mlp.up.weight_IO"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves by name, in their order."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """The tree of `function(name, leaf)`."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(name_of(path), leaf), tree)


def is_shape(leaf: object) -> bool:
    """Whether a leaf stands for an array, as in what `shapes_of` of `marin.models.lm` gives."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


def is_array_or_shape(leaf: object) -> bool:
    return eqx.is_array(leaf) or is_shape(leaf)


def with_arrays(tree: Any, arrays: Sequence[Any]) -> Any:
    """The tree with these in place of its arrays, or shapes of arrays, in their order."""
    before, rest = eqx.partition(tree, is_array_or_shape)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(before), arrays), rest)
