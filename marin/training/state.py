"""The training state, and the step that takes it forward: one pure function, compiled once.

    (forward -> loss -> backward) for each micro-batch -> clip, optimizer -> new weights, average, metrics

An update from a loss or a gradient that is not finite is never applied: the state stays as it was. An optimizer that makes
numbers that are not finite of a finite gradient is noticed in the same step, and its state is kept nowhere.

Everything that a later step depends on is in `TrainState`, so a checkpoint of it resumes to the bit.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from marin.errors import ConfigError
from marin.nn.attention import without_fused_kernels
from marin.nn.loss import weighted_cross_entropy
from marin.nn.precision import Precision
from marin.optim.sophia import with_seed
from marin.parallel.sharding import lay_out_like_parameters
from marin.training.config import SimpleTrainConfig, WatchConfig
from marin.training.watch import watched_figures

# Tokens whose logits exist at once, where the model's config does not say. 512 keeps a block of a small vocabulary in
# the cache of a CPU core; accelerators want wider products.
CPU_BLOCK, ACCELERATOR_BLOCK = 512, 8192

SPOILED = "spoiled"
_METRICS = ("loss", "z_loss", "grad_norm", "learning_rate", "skipped_steps", SPOILED)
_SPOILED_STEP = -(2**31)

Metrics = dict[str, Array]


class TrainState(eqx.Module):
    """Model, optimizer state, step count and the average of the weights: all that a checkpoint holds.

    A step whose loss or gradient norm is not finite leaves everything as it was and turns `step` into `~step`, below
    zero. While it is, further steps change nothing: the loop has started them before it can know. A state that the
    optimizer itself has spoiled has the least number there is; the one before it has been written over by then.
    """

    model: Any
    opt_state: optax.OptState
    step: Int[Array, ""]
    average: Any


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """What the compiled step is specialized to.

    Args:
        micro_batches: parts that a batch is taken in, one after the other, to need less memory; the gradient is that of the
            whole batch.
    """

    precision: Precision
    micro_batches: int = 1
    loss_block: int | None = None
    z_loss_weight: float = 0.0
    ema_beta: float | None = None
    watch: WatchConfig | None = None

    @staticmethod
    def of(
        train: SimpleTrainConfig, model: Any, precision: Precision, batch_size: int, num_shards: int
    ) -> "StepConfig":
        """That of a run's steps with batches of this size.

        Args:
            model: its config.
            num_shards: how many parts the devices divide the rows of a batch into.
        """
        return StepConfig(
            precision=precision,
            micro_batches=train.micro_batches(batch_size, num_shards),
            loss_block=getattr(model, "cross_entropy_block_size", None),
            z_loss_weight=train.z_loss_weight or 0.0,
            ema_beta=train.ema_beta,
            watch=train.watch if train.watch.watch_targets else None,
        )


def init_state(
    model: Any, optimizer: optax.GradientTransformation, ema_beta: float | None, *, seed: int = 0
) -> TrainState:
    """The state before the first step.

    Args:
        seed: of what the optimizer draws at random.
    """
    params = eqx.filter(model, eqx.is_array)
    opt_state = with_seed(optimizer.init(params), seed)
    state = TrainState(model, opt_state, jnp.zeros((), jnp.int32), params if ema_beta is not None else None)
    # Copies: the state is donated to each step, so no two of its leaves may share a buffer.
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if eqx.is_array(leaf) else leaf, state)


def evaluation_model(state: TrainState) -> Any:
    """The model to score: the average of the weights where one is kept, else the weights."""
    return state.model if state.average is None else eqx.combine(state.average, state.model)


def training_activations(model: Any, batch: Any) -> tuple[Float[Array, "B T D"], Metrics]:
    """The model's vectors, and its own training losses by name where it has some (see `marin.models.lm`).

    Raises:
        ConfigError: if these are not one vector a token, or the model names a loss as the framework names one of its own.
    """
    own = getattr(model, "training_activations", None)
    if own is None:
        x_BTD = model.activations(batch.tokens_BT, batch.segment_ids_BT)
        _check_vectors(x_BTD, batch.tokens_BT, f"`activations` of {type(model).__name__}")
        return x_BTD, {}
    x_BTD, losses = own(batch.tokens_BT, batch.segment_ids_BT)
    _check_vectors(x_BTD, batch.tokens_BT, f"`training_activations` of {type(model).__name__}, its first value,")
    for name in losses:
        if not name.isidentifier() or name in _METRICS:
            raise ConfigError(
                f"`training_activations` of {type(model).__name__} names a loss {name!r}: use a name such as 'balance_loss',"
                f" and none of {', '.join(_METRICS)}"
            )
    return x_BTD, losses


def _check_vectors(x_BTD: Any, tokens_BT: Int[Array, "B T"], whose: str) -> None:
    """What a model forgets is seen here: a `return`, or a token that a shift has lost."""
    shape = getattr(x_BTD, "shape", None)
    if shape is None or len(shape) != 3 or tuple(shape[:2]) != tokens_BT.shape:
        rows, tokens = tokens_BT.shape
        found = f"a {type(x_BTD).__name__}" if shape is None else f"an array {list(shape)}"
        raise ConfigError(
            f"{whose} returns {'None' if x_BTD is None else found} for {rows} rows of {tokens} tokens: return a vector for each"
            f" token, an array [{rows}, {tokens}, width]"
        )


def in_parts(batch: Any, num_parts: int) -> Any:
    """The batch with its rows dealt out to `num_parts` micro-batches: every array [B, ...] becomes [N, B/N, ...].

    Part i has rows i, i + N, i + 2N, ...: where the rows of a batch lie on several devices each of them keeps its own.
    """
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf.reshape(-1, num_parts, *leaf.shape[1:]), 1, 0), batch)


def loss_block(config: StepConfig) -> int:
    return config.loss_block or (CPU_BLOCK if jax.default_backend() == "cpu" else ACCELERATOR_BLOCK)


def loss_of_rows(
    params: Any, static: Any, batch: Any, num_tokens: Float[Array, ""], config: StepConfig
) -> tuple[Float[Array, ""], Metrics]:
    """The part of the loss that these rows of a batch with `num_tokens` tokens have, and what is reported of it."""
    model = config.precision.for_training(eqx.combine(params, static))
    x_BTD, extra = training_activations(model, batch)
    nats, penalty = weighted_cross_entropy(
        x_BTD,
        model.lm_head_DV,
        batch.targets_BT,
        batch.weight_BT,
        loss_block(config),
        model.logit_softcap,
        config.z_loss_weight,
        in_fp8=config.precision.products == "fp8",
    )
    extra = {name: value.astype(jnp.float32) / config.micro_batches for name, value in extra.items()}
    metrics = {"loss": nats / num_tokens, "z_loss": penalty / num_tokens, **extra}
    return sum(metrics.values(), jnp.zeros((), jnp.float32)), metrics


def make_train_step(
    optimizer: optax.GradientTransformation, schedule: Callable[[Array], Array], config: StepConfig
) -> Callable[[TrainState, Any], tuple[TrainState, Metrics]]:
    """The function from (state, batch) to (state, metrics); metrics are float32 scalars, and histograms (`marin.training.watch`).

    The metric `SPOILED` is 1 where the optimizer made numbers that are not finite of a loss and a gradient that are, else 0.

    The loss that is reported is nats per token without the z-loss and the losses that the model adds, which are reported
    by their own names. The gradient is that of the sum of all.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def loss_fn(params: Any, static: Any, batch: Any, num_tokens: Array) -> tuple[Float[Array, ""], Metrics]:
        return loss_of_rows(params, static, batch, num_tokens, config)

    def loss_and_gradient(params: Any, static: Any, batch: Any) -> tuple[Metrics, Any]:
        num_tokens = jnp.maximum(jnp.sum(batch.weight_BT), 1.0)
        gradient = jax.value_and_grad(loss_fn, has_aux=True)
        if config.micro_batches == 1:
            (_, metrics), grads = gradient(params, static, batch, num_tokens)
            return metrics, lay_out_like_parameters(grads)

        def add(sums: Any, part: Any) -> tuple[Any, None]:
            (_, metrics), grads = gradient(params, static, part, num_tokens)
            return jax.tree.map(jnp.add, sums, (metrics, lay_out_like_parameters(grads))), None

        parts = in_parts(batch, config.micro_batches)
        first = jax.tree.map(lambda leaf: leaf[0], parts)
        (_, metrics), grads = jax.eval_shape(lambda: gradient(params, static, first, num_tokens))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (metrics, grads))
        (metrics, grads), _ = jax.lax.scan(add, zeros, parts)
        return metrics, grads

    def whole_loss(params: Any, static: Any, batch: Any) -> Float[Array, ""]:
        """For optimizers that ask how the gradient changes: fused kernels do not say, and rounding to 8 bits has steps."""
        num_tokens = jnp.maximum(jnp.sum(batch.weight_BT), 1.0)
        parts = in_parts(batch, config.micro_batches)
        smooth = dataclasses.replace(config, precision=Precision(config.precision.compute))
        one = jax.checkpoint(lambda part: loss_of_rows(params, static, part, num_tokens, smooth)[0])
        with without_fused_kernels():
            return jnp.sum(jax.lax.map(one, parts))

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        params, static = eqx.partition(state.model, eqx.is_array)
        metrics, grads = loss_and_gradient(params, static, batch)
        old = (params, state.opt_state, state.average)
        skipped = getattr(state.opt_state, "skipped", None)

        # Traced only by optimizers that ask for the loss at other parameters.
        def loss_at(params: Any) -> Float[Array, ""]:
            return whole_loss(params, static, batch)

        def watched(grads: Any, params: Any, updates: Any) -> Metrics:
            if config.watch is None:
                return {}
            return watched_figures(config.watch, state.step, {"grads": grads, "params": params, "updates": updates})

        def update(grads: Any, old: Any) -> tuple[Any, Metrics, Array]:
            params, old_state, average = old
            with jax.numpy_dtype_promotion("standard"):  # Optax raises float decay rates to integer counts
                updates, opt_state = optimizer.update(grads, old_state, params, loss=metrics["loss"], obj_fn=loss_at)
            params = optax.apply_updates(params, updates)
            if config.ema_beta is not None:
                moved = optax.incremental_update(params, average, 1.0 - config.ema_beta)
                average = moved if skipped is None else _where(opt_state.skipped == skipped, moved, average)
            return (params, opt_state, average), watched(grads, params, updates), _is_spoiled(params, opt_state)

        grad_norm = optax.tree.norm(grads)
        step = state.step + 1
        if skipped is not None:  # `skip_bad_steps` judges for itself, and goes on
            new, figures, spoiled = update(grads, old)
        else:
            good = (state.step >= 0) & jnp.isfinite(metrics["loss"]) & jnp.isfinite(grad_norm)
            # The figures' shapes alone, not those of `update`: an optimizer takes long to trace.
            of_none = jax.eval_shape(watched, grads, params, params)
            new, figures, spoiled = _if_good(good, update, grads, old, of_none)
            step = jnp.where(good, step, jnp.where(state.step < 0, state.step, ~state.step))
        step = jnp.where(spoiled, _SPOILED_STEP, step)
        new_params, opt_state, average = new
        if config.z_loss_weight == 0.0:
            del metrics["z_loss"]
        # A step that is skipped does not move the optimizer's schedule on.
        rate = schedule(state.step if skipped is None else state.step - skipped)
        metrics |= {"grad_norm": grad_norm, "learning_rate": rate, SPOILED: spoiled, **figures}
        if skipped is not None:
            metrics["skipped_steps"] = opt_state.skipped
        metrics = {name: value.astype(jnp.float32) for name, value in metrics.items()}
        return TrainState(eqx.combine(new_params, static), opt_state, step, average), metrics

    return train_step


def _where(taken: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda one, other: jnp.where(taken, one, other), new, old)


def _is_spoiled(params: Any, opt_state: Any) -> Array:
    """Whether a parameter is not finite, or a number of the optimizer's none; one that is infinite may be meant.

    Only said, and not a reason to keep the old state: a choice that is made after the update has to hold both. With 7
    million parameters and an average (AdamW on a CPU) that took 42 MB beside their 29 MB, and with 512 tokens a step a
    fifth more time; to look takes no memory and 3 %, less as batches grow.
    """
    flags = [~jnp.all(jnp.isfinite(leaf)) for leaf in _numbers(params)]
    return jnp.any(jnp.stack(flags + [jnp.any(jnp.isnan(leaf)) for leaf in _numbers(opt_state)]))


def _numbers(tree: Any) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]


def _if_good(
    good: Array, update: Callable[[Any, Any], tuple[Any, Metrics, Array]], grads: Any, old: Any, shapes: Metrics
) -> tuple[Any, Metrics, Array]:
    """`update`, or what there was before it, and zeros of these shapes for the metrics of the update.

    A branch, and not a choice between two results: the state is updated in place either way, and a choice would keep both.
    With 5 million parameters and 1,024 tokens a step on a CPU (AdamW, n=12) a branch costs 0.9 % of the step's processor
    time and no memory, a choice 1.4 % and 15 MB.
    """

    def keep(grads: Any, old: Any) -> tuple[Any, Metrics, Array]:
        return old, {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}, jnp.zeros((), bool)

    return jax.lax.cond(good, update, keep, grads, old)


def before_bad_step(state: TrainState) -> TrainState | None:
    """The state before the update that was refused; None if none was, or if an update that was taken has spoiled it."""
    if int(state.step) >= 0 or int(state.step) == _SPOILED_STEP:
        return None
    return dataclasses.replace(state, step=~state.step)
