"""What a language model must offer, and no more: activations and a head.

Scoring belongs to the framework, so that no submission scores itself. A model turns token ids into one vector a position;
the framework multiplies by `lm_head_DV` and computes the loss.

A model may also have

    training_activations(tokens_BT, segment_ids_BT) -> (x_BTD, {name: loss})

which training calls in place of `activations`. The losses are float scalars, means over the rows given; training adds them
to its own and reports each by its name (the balance of experts, the prediction of further tokens). Scoring never sees them.
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from marin.nn.trees import is_array_or_shape


@runtime_checkable
class LmModel(Protocol):
    """An Equinox module whose arrays are its parameters."""

    @property
    def lm_head_DV(self) -> Float[Array, "D V"]:
        """The matrix from activations to logits."""
        ...

    @property
    def logit_softcap(self) -> float | None:
        """Logits become `softcap * tanh(logits / softcap)`; None leaves them."""
        ...

    def activations(
        self, tokens_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"] | None
    ) -> Float[Array, "B T D"]:
        """One vector a position, from tokens at or before it in the same segment."""
        ...


@runtime_checkable
class LmConfig(Protocol):
    """A frozen dataclass that says which model to build and what it costs."""

    @property
    def max_seq_len(self) -> int:
        """The longest context that the model is trained on."""
        ...

    def build(self, vocab_size: int, *, key: PRNGKeyArray) -> LmModel:
        """The model with its initial values."""
        ...

    def flops_per_token(self, vocab_size: int, context_length: int) -> float:
        """FLOPs of the forward pass for one token (see `marin.models.flops`)."""
        ...

    def total_trainable_params(self, vocab_size: int) -> int:
        """How many numbers training changes."""
        ...


def shapes_of(config: Any, vocab_size: int) -> Any:
    """The model that `config` builds, with shapes in place of arrays; nothing is computed."""
    return eqx.filter_eval_shape(lambda: config.build(vocab_size, key=jax.random.key(0)))


def count_parameters(model: object) -> int:
    """Elements of all arrays in a model, or in the shapes that `shapes_of` gives."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(model) if is_array_or_shape(leaf))
