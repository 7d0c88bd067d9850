"""What a block keeps of its forward pass for the backward pass, and what it computes again: memory against FLOPs.

    False        keeps everything: no recomputation, the most memory
    "products"   keeps the results of matrix products with weights, recomputes what is cheap between them, and attention
    True         keeps a block's input alone and recomputes the block: the least memory, a third more FLOPs

(Chen et al., 2016, arXiv:1604.06174; Korthikanti et al., 2022, arXiv:2205.05198, on choosing what to recompute.) Gradients are the
same whatever is chosen; cost is counted without recomputation. On a processor XLA (jaxlib 0.10) merges what is computed again with
what was, so that nothing is saved and nothing lost there.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from marin.errors import ConfigError

PRODUCTS = "products"


def check_recomputation(value: object) -> None:
    """Raises:
    ConfigError: unless `value` is one of the choices.
    """
    if value is not True and value is not False and value != PRODUCTS:
        raise ConfigError(
            f"`gradient_checkpointing` is {value!r}: use True (recompute whole blocks), '{PRODUCTS}' (keep the results of"
            " products with weights) or False (recompute nothing)"
        )


def recomputing(run: Callable[..., Any], choice: bool | str) -> Callable[..., Any]:
    """`run`, a block of a model, with what its gradient recomputes."""
    if choice is False:
        return run
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if choice == PRODUCTS else None
    return eqx.filter_checkpoint(run, policy=policy)
