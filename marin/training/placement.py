"""The training state as shapes, and made where it is to lie: no device ever holds more than its part.

A new state is what a traced program gives, and nothing else that a model's `build` or an optimizer's `init` did: the program can be
looked at, and code that would give other values when it is not traced never runs untraced.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.extend import core

from marin.models.lm import LmConfig, shapes_of
from marin.nn.trees import is_shape
from marin.optim.sophia import with_seed
from marin.parallel.sharding import state_shardings
from marin.training.state import TrainState, init_state


def parameter_shapes(model: LmConfig, vocab_size: int) -> Any:
    """The parameters of a model as shapes; nothing is computed."""
    return eqx.filter(shapes_of(model, vocab_size), is_shape)


def state_shapes(
    model: LmConfig, vocab_size: int, optimizer: optax.GradientTransformation, ema_beta: float | None
) -> TrainState:
    """A training state with shapes in place of arrays."""
    return eqx.filter_eval_shape(
        lambda: init_state(model.build(vocab_size, key=jax.random.key(0)), optimizer, ema_beta)
    )


@dataclasses.dataclass(frozen=True)
class InitialProgram:
    """What makes a new training state from a seed.

    Args:
        program: a traced program without arguments, which gives the leaves of `shapes`.
        static: what of the state is no array.
    """

    program: core.ClosedJaxpr
    shapes: Any
    static: Any

    def layout(self, mesh: jax.sharding.Mesh) -> TrainState:
        """The state as shapes that say where they lie on the mesh, by the rules of `marin.parallel.sharding`."""
        shardings = state_shardings(self.shapes, self.shapes.model, mesh)
        placed = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            self.shapes,
            shardings,
        )
        return eqx.combine(placed, self.static)

    def run(self, mesh: jax.sharding.Mesh) -> TrainState:
        """The state, laid out so."""

        def make() -> Any:
            return jax.tree.unflatten(jax.tree.structure(self.shapes), core.jaxpr_as_fun(self.program)())

        shardings = jax.tree.map(lambda leaf: leaf.sharding, eqx.filter(self.layout(mesh), is_shape))
        if mesh.size == 1:  # without one large program to compile
            arrays = jax.device_put(make(), shardings)
        else:
            arrays = jax.jit(make, out_shardings=shardings)()
        return eqx.combine(arrays, self.static)


def trace_initial_state(
    model: LmConfig,
    vocab_size: int,
    optimizer: optax.GradientTransformation,
    *,
    seed: int = 0,
    ema_beta: float | None = None,
) -> InitialProgram:
    """The program that makes a new training state; nothing is computed."""

    def make() -> TrainState:
        return init_state(model.build(vocab_size, key=jax.random.key(seed)), optimizer, ema_beta, seed=seed)

    return InitialProgram(*eqx.filter_make_jaxpr(make)())


def with_weights(
    state: TrainState, params: Any, optimizer: optax.GradientTransformation, *, seed: int = 0
) -> TrainState:
    """A new state that begins from these weights, and with it the average and what the optimizer takes from the weights.

    The optimizer state of `state` is given up.
    """
    static = eqx.filter(state.model, eqx.is_array, inverse=True)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state.opt_state)
    jax.tree.map(lambda leaf: leaf.delete(), state.opt_state)  # memory must not have to hold two
    # Copies: no two leaves of a state may share a buffer.
    begin = jax.jit(
        lambda params: jax.tree.map(jnp.copy, with_seed(optimizer.init(params), seed)), out_shardings=shardings
    )
    average = None if state.average is None else jax.tree.map(jnp.copy, params)
    return TrainState(eqx.combine(params, static), begin(params), state.step, average)
