"""What is said of weights that are those of a model only in part, as `allow_partial_checkpoint` lets them be."""

from collections.abc import Sequence

from marin.errors import CheckpointError

_MOST_NAMED = 3


def note_of_part(where: str, taken: int, kept: Sequence[str], left_out: Sequence[str]) -> str | None:
    """What was not taken of a checkpoint, in a line; None where all of it was.

    Args:
        taken: how many parameters have its values.
        kept: the parameters that it lacks.
        left_out: what it holds and the model lacks.
    Raises:
        CheckpointError: nothing was taken: training would begin from the initial values alone.
    """
    if not taken:
        raise CheckpointError(
            f"{where} holds no parameter of the config's model, such as `{kept[0]}`: it is of another model; use the config that"
            " it was trained with, or begin without it"
        )
    parts = []
    if kept:
        parts.append(f"{len(kept):,} of {taken + len(kept):,} parameters keep their initial values ({_named(kept)})")
    if left_out:
        parts.append(f"{len(left_out):,} of the checkpoint are left out ({_named(left_out)})")
    return f"{where} is taken in part: {'; '.join(parts)}" if parts else None


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
