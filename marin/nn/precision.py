"""Which number format parameters are kept in and which one the forward and backward passes compute in."""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp

from marin.errors import ConfigError

Tree = TypeVar("Tree")
_COMPUTE_TYPES = {"f32": jnp.float32, "float32": jnp.float32, "bf16": jnp.bfloat16, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class Precision:
    """Parameters and optimizer state are float32; `compute` is "f32" or "bf16"."""

    compute: str = "bf16"

    def __post_init__(self) -> None:
        if self.compute not in _COMPUTE_TYPES:
            raise ConfigError(f"`precision.compute` is {self.compute!r}: use one of {sorted(_COMPUTE_TYPES)}")

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(_COMPUTE_TYPES[self.compute])

    def cast(self, tree: Tree) -> Tree:
        """The same tree with every floating array in the compute format; gradients flow back in float32."""
        dtype = self.dtype

        def cast_leaf(leaf: object) -> object:
            return (
                leaf.astype(dtype) if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
            )

        return jax.tree.map(cast_leaf, tree)
