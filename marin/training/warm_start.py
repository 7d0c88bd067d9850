"""Beginning a run with the moments that the optimizer of another one has gathered.

Moments and what corrects their bias are taken as they are. The counts that a schedule goes by (of learning rates, momentum or
decay) begin at 0, since the new run has a schedule of its own, and so does the count of skipped steps. A field of a state is
known by its name.
"""

from typing import Any

import equinox as eqx
import jax
import optax

from marin.training.checkpoint import Checkpoint, restore

_COUNTS = {"step", "skipped", "count_m2"}  # of ours, of `skip_bad_steps`, and of the schedules in Optax's AdEMAMix


def optimizer_state_from(origin: Checkpoint, fresh: Any) -> Any:
    """The optimizer state of a checkpoint in the structure of `fresh`, at the first step of its schedules.

    Raises:
        CheckpointError: the checkpoint is of another optimizer or model.
    """
    arrays, static = eqx.partition(fresh, eqx.is_array)
    return with_fresh_schedules(fresh, eqx.combine(restore(origin, arrays, prefix="opt_state."), static))


def with_fresh_schedules(fresh: Any, gathered: Any) -> Any:
    """An optimizer state with the moments that were `gathered`, at the first step of its schedules, where `fresh` is."""

    def with_fresh_counts(new: Any, old: Any) -> Any:
        if isinstance(new, optax.ScaleByScheduleState):
            return new
        counts = _counts_of(new)
        if not counts:
            return old
        rest = type(new)(*(with_counts(getattr(new, name), getattr(old, name)) for name in new._fields))
        return rest._replace(**{name: getattr(new, name) for name in counts})

    def with_counts(new: Any, old: Any) -> Any:
        return jax.tree.map(with_fresh_counts, new, old, is_leaf=_has_counts)

    return with_counts(fresh, gathered)


def _has_counts(node: Any) -> bool:
    return isinstance(node, optax.ScaleByScheduleState) or bool(_counts_of(node))


def _counts_of(node: Any) -> set[str]:
    return _COUNTS & set(getattr(node, "_fields", ())) if isinstance(node, tuple) else set()
