"""The training state as shapes, and made where it is to lie: no device ever holds more than its part."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from marin.models.lm import LmConfig, shapes_of
from marin.optim.sophia import with_seed
from marin.parallel.sharding import state_shardings
from marin.training.state import TrainState, init_state


def is_shape(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


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


def initial_state(
    model: LmConfig,
    vocab_size: int,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    *,
    seed: int = 0,
    ema_beta: float | None = None,
) -> TrainState:
    """A new training state, laid out on the mesh by the rules of `marin.parallel.sharding`."""

    def make() -> TrainState:
        return init_state(model.build(vocab_size, key=jax.random.key(seed)), optimizer, ema_beta, seed=seed)

    if mesh.size == 1:  # without one large program to compile
        return jax.device_put(make(), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
    shapes, static = eqx.partition(state_shapes(model, vocab_size, optimizer, ema_beta), is_shape)
    shardings = state_shardings(shapes, shapes.model, mesh)
    arrays = jax.jit(lambda: eqx.filter(make(), eqx.is_array), out_shardings=shardings)()
    return eqx.combine(arrays, static)


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
