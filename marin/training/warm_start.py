"""Beginning a run with the weights of another one, and with the moments that its optimizer has gathered.

Weights mean something only with the tokenizer whose ids their embedding's rows stand for, and with the settings that they
were trained with. So another tokenizer is refused, and settings that shapes do not show are named where they differ.

Moments and what corrects their bias are taken as they are. The counts that a schedule goes by (of learning rates, momentum or
decay) begin at 0, since the new run has a schedule of its own, and so does the count of skipped steps; what is drawn at
random follows from its own seed. A field of a state is
known by its name.
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import optax

from marin.data.tokenizer import Tokenizer
from marin.data.tokenizer.loaded import TOKENIZER_FILE
from marin.errors import CheckpointError
from marin.execution.attempts import usual_path
from marin.models.partial import note_of_part
from marin.nn.trees import named_leaves
from marin.parallel.distributed import warn
from marin.tracking.run_record import RUN_FILE, read_info
from marin.training.checkpoint import Checkpoint, restore, stored_shapes
from marin.training.config import TrainLmConfig
from marin.training.config_json import changes, config_to_json
from marin.training.run_info import recorded_digest

_MODEL, _AVERAGE = "model.", "average."
# Counts of ours, of `skip_bad_steps` and of the schedules in Optax's AdEMAMix; Sophia's random signs, which are the run's own.
_COUNTS = {"step", "skipped", "count_m2", "signs"}


def weights_from(origin: Checkpoint, fresh: Any, config: TrainLmConfig, tokenizer: Tokenizer) -> Any:
    """The weights of a checkpoint in the structure of `fresh`, the arrays of `config`'s model.

    Raises:
        CheckpointError: it is of another model or tokenizer, as far as `allow_partial_checkpoint` does not let it be.
    """
    partial = config.train.allow_partial_checkpoint
    _check_origin(origin, config, tokenizer)
    ours = [_MODEL + name for name in named_leaves(fresh)]
    stored = stored_shapes(origin)
    kept = [name for name in ours if name not in stored]
    extra = sorted({name for name in stored if name.startswith(_MODEL)}.difference(ours))
    note = note_of_part(usual_path(str(origin.path)), len(ours) - len(kept), kept, extra) if partial else None
    params = restore(origin, fresh, partial=partial, prefix=_MODEL)
    if extra and not partial:
        more = f" and {len(extra) - 1:,} more" if len(extra) > 1 else ""
        raise CheckpointError(
            f"{usual_path(str(origin.path))} holds `{extra[0]}`{more}, for which the config's model has no parameter: use the config"
            " of that run, or set `allow_partial_checkpoint=True` to leave out what only it has"
        )
    if note is not None:
        warn(f"warning: {note}")
    if any(name.startswith(_AVERAGE) for name in stored):
        warn(
            "warning: the run that this one begins from kept an average of its weights: the weights themselves are taken"
        )
    return params


def check_hf_tokenizer(folder: Path, config: TrainLmConfig, tokenizer: Tokenizer) -> None:
    """Compares the tokenizer beside weights in Hugging Face's layout, where there is one, with that of the data.

    Raises:
        CheckpointError: it gives a token another id, and `allow_partial_checkpoint` is not set.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        return
    token = Tokenizer.load(str(folder)).first_token_unlike(tokenizer)
    if token is not None:
        problem = f"the tokenizer of {folder} gives the token {token!r} another id than {config.tokenizer}"
        _refuse_tokenizer(problem, config)


def _check_origin(origin: Checkpoint, config: TrainLmConfig, tokenizer: Tokenizer) -> None:
    record = origin.path.parent.parent / RUN_FILE
    if not record.is_file():
        return  # a checkpoint that was copied without its run
    info = read_info(record)
    saved = info.get("config")
    if recorded_digest(info, "tokenizer") not in (None, tokenizer.digest):
        run = usual_path(str(record.parent))
        _refuse_tokenizer(f"the run in {run} was trained with another tokenizer than {config.tokenizer}", config)
    before = saved.get("model") if isinstance(saved, dict) else None
    differing = [f"`{name}` {old}, here {new}" for name, old, new in changes(before, config_to_json(config.model))]
    if differing and isinstance(before, dict):
        warn(f"warning: the weights were trained with {'; '.join(differing)}")


def _refuse_tokenizer(problem: str, config: TrainLmConfig) -> None:
    if config.train.allow_partial_checkpoint:
        warn(f"warning: {problem}: rows of its embedding stand for other tokens")
        return
    raise CheckpointError(
        f"{problem}, so that rows of its embedding stand for other tokens: tokenize the data with the checkpoint's own tokenizer,"
        " or set `allow_partial_checkpoint=True` if that is meant"
    )


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
