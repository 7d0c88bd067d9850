"""Beginning a run with the moments that the optimizer of another one has gathered.

Moments and what corrects their bias are taken as they are. The counts that a schedule goes by (of learning rates, momentum or
decay) begin at 0, since the new run has a schedule of its own.
"""

from typing import Any

import equinox as eqx
import jax
import optax

from marin.training.checkpoint import Checkpoint, restore

_SCHEDULE_COUNT = "step"


def optimizer_state_from(origin: Checkpoint, fresh: Any) -> Any:
    """The optimizer state of a checkpoint in the structure of `fresh`, at the first step of its schedules.

    Raises:
        CheckpointError: the checkpoint is of another optimizer or model.
    """
    arrays, static = eqx.partition(fresh, eqx.is_array)
    restored = eqx.combine(restore(origin, arrays, prefix="opt_state."), static)

    def with_fresh_counts(new: Any, old: Any) -> Any:
        if isinstance(new, optax.ScaleByScheduleState):
            return new
        if _counts_steps(new):
            rest = type(new)(*(with_counts(getattr(new, name), getattr(old, name)) for name in new._fields))
            return rest._replace(**{_SCHEDULE_COUNT: getattr(new, _SCHEDULE_COUNT)})
        return old

    def with_counts(new: Any, old: Any) -> Any:
        return jax.tree.map(with_fresh_counts, new, old, is_leaf=_has_schedule)

    return with_counts(fresh, restored)


def _has_schedule(node: Any) -> bool:
    return isinstance(node, optax.ScaleByScheduleState) or _counts_steps(node)


def _counts_steps(node: Any) -> bool:
    return isinstance(node, tuple) and _SCHEDULE_COUNT in getattr(node, "_fields", ())
