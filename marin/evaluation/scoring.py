"""A model as scoring sees it: activations by the model's own code, and the loss of each token by the framework's.

What a model computes is a program of its own, which is given tokens and no targets, so that none of its code stands beside what it
is to predict. The head is computed before any text is seen. The probes (`marin.evaluation.validity`) look at the very program that
scored the run, and at what it gave.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from marin.nn.axes import replicate
from marin.nn.loss import cross_entropy
from marin.nn.precision import Precision
from marin.training.traced_flops import calls_out_of, held_bytes

# Tokens whose logits exist at once.
SCORING_BLOCK = 2048


class Program(Protocol):
    """What computes a model's activations from its arrays, and what can be told of it."""

    @property
    def num_traces(self) -> int:
        """How often the model's code was asked for its program: one that asks again may get another."""

    def head(self, arrays: Any, /) -> Float[Array, "D V"]: ...

    def activations(self, arrays: Any, tokens_BT: Any, segment_ids_BT: Any, /) -> Float[Array, "B T D"]: ...

    def calls_out(self, arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> set[str]:
        """By what the program for a batch of this shape calls out of itself."""

    def held(self, arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> tuple[int, str]:
        """How many bytes the program for a batch of this shape holds that are no parameters; and its largest array, in words."""


class Scorer:
    """A model's program with its arrays, ready to be scored.

    Args:
        softcap: of the logits, or None.
        precision: what the arrays were cast to.
    """

    def __init__(self, program: Program, arrays: Any, softcap: float | None, precision: Precision) -> None:
        self.program, self.arrays, self.softcap, self.precision = program, arrays, softcap, precision
        self.head_DV = program.head(arrays)

    @staticmethod
    def of(model: Any, precision: Precision) -> "Scorer":
        """The scorer of a model in this process, by its own code."""
        arrays, static = eqx.partition(precision.cast(model), eqx.is_array)
        softcap = None if model.logit_softcap is None else float(model.logit_softcap)
        return Scorer(_program_of(static), arrays, softcap, precision)

    def activations(self, tokens_BT: Int[Any, "B T"], segment_ids_BT: Int[Any, "B T"]) -> Float[Array, "B T D"]:
        return self.program.activations(self.arrays, tokens_BT, segment_ids_BT)

    def nats(
        self, tokens_BT: Int[Any, "B T"], targets_BT: Int[Any, "B T"], segment_ids_BT: Int[Any, "B T"]
    ) -> Float64[np.ndarray, "B T"]:
        """The loss of each target, in nats."""
        x_BTD = self.activations(tokens_BT, segment_ids_BT)
        return np.asarray(_loss(x_BTD, self.head_DV, targets_BT, softcap=self.softcap), np.float64)

    def nats_at(
        self,
        columns_BK: Int[Any, "B K"],
        tokens_BT: Int[Any, "B T"],
        targets_BT: Int[Any, "B T"],
        segment_ids_BT: Int[Any, "B T"],
    ) -> Float64[np.ndarray, "B K"]:
        """The same at some columns of each row, without the cost of the head at all others.

        The head's products have another shape, so figures differ from those of `nats` by rounding.
        """
        x_BTD = self.activations(tokens_BT, segment_ids_BT)
        targets_BK = np.take_along_axis(targets_BT, columns_BK, axis=1)
        return np.asarray(_loss_at(x_BTD, columns_BK, self.head_DV, targets_BK, softcap=self.softcap), np.float64)

    def calls_out(self, tokens_BT: Int[Any, "B T"], segment_ids_BT: Int[Any, "B T"]) -> set[str]:
        """By what the model's program for a batch of this shape calls out of itself."""
        return self.program.calls_out(self.arrays, tokens_BT, segment_ids_BT)

    def constant_bytes(self, tokens_BT: Int[Any, "B T"], segment_ids_BT: Int[Any, "B T"]) -> tuple[int, str]:
        """How much the model's program for a batch of this shape holds that is no parameter, in bytes; and its largest array, in words."""
        return self.program.held(self.arrays, tokens_BT, segment_ids_BT)

    @property
    def num_traces(self) -> int:
        """As `Program.num_traces`."""
        return self.program.num_traces


class _ModelProgram:
    """The compiled code of one model structure, whatever its weights."""

    num_traces: int
    head: Callable[[Any], Array]
    activations: Callable[[Any, Any, Any], Array]

    def __init__(self, static: Any) -> None:
        def activations(arrays: Any, tokens_BT: Any, segment_ids_BT: Any) -> Any:
            self.num_traces += 1
            return eqx.combine(arrays, static).activations(tokens_BT, segment_ids_BT)

        self.num_traces = 0
        self.head = jax.jit(lambda arrays: eqx.combine(arrays, static).lm_head_DV)
        self.activations = jax.jit(activations)

    def calls_out(self, *arguments: Any) -> set[str]:
        return calls_out_of(jax.make_jaxpr(self.activations)(*arguments))

    def held(self, *arguments: Any) -> tuple[int, str]:
        return held_bytes(jax.make_jaxpr(self.activations)(*arguments))


# A model is scored many times while it trains.
_program_of = functools.lru_cache(maxsize=4)(_ModelProgram)


@functools.partial(jax.jit, static_argnames="softcap")
def _loss(x_BTD: Any, head_DV: Any, targets_BT: Any, *, softcap: float | None) -> Any:
    loss_BT = cross_entropy(x_BTD, head_DV, targets_BT, block=SCORING_BLOCK, softcap=softcap)
    return replicate(loss_BT)  # so that every process of a multi-host run has all of it


@functools.partial(jax.jit, static_argnames="softcap")
def _loss_at(x_BTD: Any, columns_BK: Any, head_DV: Any, targets_BK: Any, *, softcap: float | None) -> Any:
    return _loss(jnp.take_along_axis(x_BTD, columns_BK[..., None], axis=1), head_DV, targets_BK, softcap=softcap)
