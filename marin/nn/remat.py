"""What a block keeps of its forward pass for the backward pass, and what it computes again: memory against FLOPs.

    False        keeps everything: no recomputation, the most memory
    "products"   keeps the results of matrix products with weights and of cuDNN's attention, recomputes what is between them
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
from marin.nn.attention_cudnn import KEPT

PRODUCTS = "products"
# Attention by one kernel is several products in one.
_PRODUCTS_ARE_KEPT = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable, jax.checkpoint_policies.save_only_these_names(KEPT)
)


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
    return eqx.filter_checkpoint(run, policy=_PRODUCTS_ARE_KEPT if choice == PRODUCTS else None)
