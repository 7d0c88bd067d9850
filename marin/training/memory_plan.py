"""How much memory a run needs on each device, found by tracing its step over a mesh that has no devices.

The step is traced and lowered with the shardings that it would run with; nothing is allocated or compiled. Parameters,
optimizer state and gradients are exact. Activations are an estimate: what JAX keeps for the backward pass, what the largest
recomputed block keeps beside it, and the head whole with its gradient and one block of logits. XLA may need less, where it
fuses, or more, where it holds several gathered layers at once. What an optimizer computes with beside its state is not in the plan: with
four layers of 256 in float32 XLA on a processor needs 2.0 to 2.4 times the parameters beside them and AdamW's state (the plan says 2.3),
with micro-batches and `skip_bad_steps` as without, but 3.1 with Muon and 8.3 with SOAP.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.extend.core
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from marin import hardware
from marin.data.rows import Batch
from marin.errors import HardwareError
from marin.models.lm import count_parameters
from marin.nn.axes import AXES, SEQUENCE, TENSOR
from marin.nn.trees import is_shape
from marin.parallel.mesh import batch_sharding, check_batch, default_parallelism, describe_mesh, num_batch_shards
from marin.parallel.sharding import bytes_per_device, state_shardings, state_specs, undivided
from marin.training.config import SimpleTrainConfig
from marin.training.placement import parameter_shapes, state_shapes
from marin.training.state import ACCELERATOR_BLOCK, StepConfig, make_train_step, training_activations

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device, and what they are for."""

    mesh: Any
    device: hardware.Device | None
    num_parameters: int
    parameters: int
    optimizer_state: int
    gradients: int
    activations: int
    undivided: dict[str, tuple[int, ...]]

    @property
    def total(self) -> int:
        return self.parameters + self.optimizer_state + self.gradients + self.activations

    def text(self) -> str:
        """The plan for people."""
        rows = {
            "parameters": self.parameters,
            "optimizer state": self.optimizer_state,
            "gradients": self.gradients,
            "activations": self.activations,
            "in all": self.total,
        }
        lines = [f"{self.num_parameters:,} parameters on {describe_mesh(self.mesh)}", "memory on each device:"]
        lines += [
            f"  {name:<16} {size / _GIB:9.3f} GiB" + (" (estimate)" if name == "activations" else "")
            for name, size in rows.items()
        ]
        if self.device is not None:
            lines.append(f"  {self.device.name + ' has':<16} {self.device.memory_bytes / _GIB:9.3f} GiB")
        whole = [f"{name} {shape}" for name, shape in self.undivided.items()]
        if whole:
            more = f" and {len(whole) - 3} more" if len(whole) > 3 else ""
            lines.append(f"whole on every device, as no axis divides them: {', '.join(whole[:3])}{more}")
        return "\n".join(lines)

    def check(self) -> None:
        """Raises:
        HardwareError: if a device has less memory than that.
        """
        if self.device is not None and self.total > hardware.USABLE_MEMORY * self.device.memory_bytes:
            raise HardwareError(
                f"training needs about {self.total / _GIB:.1f} GiB on each device, a {self.device.name} has"
                f" {self.device.memory_bytes / _GIB:.0f} GiB, of which {hardware.USABLE_MEMORY:.0%} can be used: divide the parameters over more"
                " devices (`parallelism.fsdp`), take fewer rows at once (`per_device_parallelism`), or set"
                " `gradient_checkpointing=True` in the model"
            )


def plan_memory(model: Any, vocab_size: int, train: SimpleTrainConfig, num_devices: int | None = None) -> MemoryPlan:
    """Traces and shards the step of a run; `num_devices` takes the place of what the config's resources have.

    Raises:
        ConfigError: if the devices cannot share the batch or the context.
    """
    resources = train.resources
    planned = plan_step(model, vocab_size, train, num_devices)
    sizes, params, state, mesh = planned.sizes, planned.params, planned.state, planned.abstract_mesh
    lower_step(planned, mesh, resources.platform)

    def held(tree: Any) -> int:
        arrays = eqx.filter(tree, is_shape)
        return bytes_per_device(arrays, state_specs(arrays, params, sizes), sizes)

    rows = planned.batch_size // num_batch_shards(mesh) // planned.config.micro_batches
    device = None if resources.platform == "cpu" else hardware.lookup_device(resources.device_name)
    return MemoryPlan(
        mesh=mesh,
        device=device,
        num_parameters=count_parameters(params),
        parameters=held(state.model),
        optimizer_state=held((state.opt_state, state.average)),
        gradients=held(params),
        activations=activation_bytes(state.model, (rows, planned.num_tokens), sizes, planned.config)
        + held(params) * planned.config.precision.dtype.itemsize // 4,
        undivided=undivided(params, sizes),
    )


@dataclasses.dataclass(frozen=True)
class PlannedStep:
    """A run's largest step, with shapes in place of arrays, and how many devices each axis of its mesh has."""

    step: Any
    state: Any
    params: Any
    batch_size: int
    num_tokens: int
    sizes: dict[str, int]
    config: StepConfig

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """A mesh of these sizes without devices."""
        return AbstractMesh(tuple(self.sizes[axis] for axis in AXES), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def plan_step(model: Any, vocab_size: int, train: SimpleTrainConfig, num_devices: int | None = None) -> PlannedStep:
    """The step that `train_lm` would take; see `plan_memory`."""
    resources = train.resources
    parallelism = train.parallelism or default_parallelism(resources.platform)
    sizes = parallelism.sizes(num_devices or resources.num_chips)
    batch_size = max(size for _, size in train.batch_schedule.entries)
    train.check_seq_len(model)
    num_tokens = train.seq_len(model)

    params = parameter_shapes(model, vocab_size)
    optimizer = train.build_transformation(params)
    state = state_shapes(model, vocab_size, optimizer, train.ema_beta)
    shards = parallelism.num_batch_shards(math.prod(sizes.values()))
    config = StepConfig.of(train, model, train.run_precision, batch_size, shards)
    config = dataclasses.replace(config, loss_block=config.loss_block or ACCELERATOR_BLOCK, watch=None)
    step = make_train_step(optimizer, train.build_optimizer().schedule(train.num_train_steps), config)
    planned = PlannedStep(step, state, params, batch_size, num_tokens, sizes, config)
    check_batch(batch_size, num_tokens, planned.abstract_mesh)
    return planned


def lower_step(planned: PlannedStep, mesh: Mesh | AbstractMesh, platform: str) -> Any:
    """The step lowered for a mesh, with the shardings of a run: proof that it can be divided so.

    Args:
        mesh: of the planned sizes, with devices or without; those that are only described can be compiled for too.
    """
    shapes, static = eqx.partition(planned.state, is_shape)
    shardings = state_shardings(shapes, shapes.model, mesh)
    placed = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, shardings
    )
    whole = NamedSharding(mesh, jax.sharding.PartitionSpec())

    def run(arrays: Any, batch: Any) -> Any:
        state, metrics = planned.step(eqx.combine(arrays, static), batch)
        return eqx.filter(state, eqx.is_array), metrics

    batch = _batch_shapes(planned.batch_size, planned.num_tokens, batch_sharding(mesh))
    with jax.set_mesh(mesh) if isinstance(mesh, Mesh) else jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(run, donate_argnums=0, out_shardings=(shardings, whole)).trace(placed, batch)
        return traced.lower(lowering_platforms=({"gpu": "cuda"}.get(platform, platform),))


def activation_bytes(shapes: Any, batch_shape: tuple[int, int], sizes: dict[str, int], config: StepConfig) -> int:
    """What a device holds between and during the passes, beside parameters and gradients.

    Args:
        batch_shape: rows that it takes at once, and tokens of a row.
    """
    num_rows, num_tokens = batch_shape
    arrays, static = eqx.partition(shapes, is_shape)
    arrays = jax.eval_shape(config.precision.cast, arrays)
    batch = _batch_shapes(num_rows, num_tokens, None)

    def forward(arrays: Any, batch: Batch) -> Any:
        return training_activations(eqx.combine(arrays, static), batch)

    weights = {leaf.shape for leaf in jax.tree.leaves(arrays)}
    whole = jax.make_jaxpr(forward)(arrays, batch)
    x_BTD = jax.eval_shape(forward, arrays, batch)[0]

    def size(leaf: Any) -> int:
        """On this device: of positions its own; of heads and hidden features too, but not of the residual stream."""
        if leaf.shape in weights or leaf.size < num_rows * num_tokens:
            return 0
        hidden = math.prod(leaf.shape) != x_BTD.size
        shared = sizes[SEQUENCE] * (sizes[TENSOR] if hidden else 1)
        return int(leaf.size * leaf.dtype.itemsize // shared)

    def kept(closed: Any) -> int:
        flat = jax.extend.core.jaxpr_as_fun(closed)
        inputs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
        backward = jax.eval_shape(lambda *xs: jax.vjp(flat, *xs)[1], *inputs)
        return sum(size(leaf) for leaf in jax.tree.leaves(backward))

    # Of blocks that are recomputed only the inputs are kept; without such blocks everything that the backward pass reads.
    inputs: dict[int, int] = {}
    blocks: dict[tuple[str, ...], Any] = {}
    keeps_more = False
    for equation in whole.jaxpr.eqns:
        if equation.primitive.name in ("checkpoint", "remat", "remat2"):
            inputs |= {id(variable): size(variable.aval) for variable in equation.invars}
            signature = tuple(str(variable.aval) for variable in equation.invars)
            blocks[signature] = jax.extend.core.ClosedJaxpr(equation.params["jaxpr"], ())
            keeps_more |= equation.params["policy"] is not None
    between = sum(inputs.values()) if blocks and not keeps_more else kept(whole)
    recomputed = max((kept(block) for block in blocks.values()), default=0)
    head_DV = jax.eval_shape(lambda arrays: eqx.combine(arrays, static).lm_head_DV, arrays)
    block = min(config.loss_block or ACCELERATOR_BLOCK, num_rows * num_tokens // (sizes[SEQUENCE] * sizes[TENSOR]))
    # The head whole and its gradient in float32; of a block its logits, their exponentials and their gradient.
    itemsize = x_BTD.dtype.itemsize
    loss = head_DV.size * (itemsize + 4) + block * head_DV.shape[1] * (4 + 4 + itemsize)
    return between + max(recomputed, loss)


def _batch_shapes(num_rows: int, num_tokens: int, sharding: Any) -> Batch:
    def shape(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((num_rows, num_tokens), dtype, sharding=sharding)

    return Batch(shape(jnp.int32), shape(jnp.int32), shape(jnp.float32), shape(jnp.int32))
