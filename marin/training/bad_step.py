"""What is said, and what is kept, when a step goes wrong: its number, and the rows of its batch.

The step itself never applies an update from a loss or a gradient that is not finite (`marin.training.state`). Here the run
ends with the state before it in a checkpoint, and with a message from which its data can be looked at. Where the optimizer made
such numbers itself, the state before is gone and none is saved: the run ends, and its last checkpoint is the one before.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marin.data.loader import BatchRow
from marin.data.mixture import Mixture
from marin.errors import NonFiniteLossError
from marin.execution.attempts import usual_path
from marin.training.config import TrainLmConfig
from marin.training.state import TrainState, before_bad_step

# Rows named in a message, and in a line of the log.
_FEW, _MANY = 3, 256


def rows_as_json(rows: Sequence[BatchRow]) -> dict[str, Any]:
    """Rows for a line of `metrics.jsonl`, at most 256: [component, row, first document, last document], from 0."""
    return {"num_rows": len(rows), "rows": [list(row) for row in rows[:_MANY]]}


def describe_rows(rows: Sequence[BatchRow]) -> str:
    """The first few rows in words; documents are counted from 1, as `marin cache head` counts them."""
    shown = []
    for row in rows[:_FEW]:
        first, last = row.first_document + 1, row.last_document + 1
        documents = f"document {first:,}" if first == last else f"documents {first:,} to {last:,}"
        shown.append(f"row {row.row:,} of {row.component} ({documents})")
    more = f" and {len(rows) - _FEW:,} more" if len(rows) > _FEW else ""
    return ", ".join(shown) + more


def non_finite(
    config: TrainLmConfig, log: Path, step: int, rows: Sequence[BatchRow], loss: float, grad_norm: float
) -> NonFiniteLossError:
    """The error of a step whose update was not applied."""
    return NonFiniteLossError(
        f"at step {step} the loss is {loss} and the gradient norm {grad_norm}; the update was not applied.\n"
        f"  its batch: {describe_rows(rows)}; all rows: the line `bad_step` of {usual_path(str(log))}\n"
        f"  look at the first: {_head_command(config, rows[0])}\n"
        f"  then lower the learning rate, mend the data, or set `skip_bad_steps=True`; the state before step {step} is kept"
        f" as checkpoint step-{step:08d}"
    )


def spoiled_state(config: TrainLmConfig, step: int, loss: float, grad_norm: float) -> NonFiniteLossError:
    """The error of a step whose update was applied, and was not finite."""
    return NonFiniteLossError(
        f"at step {step} the optimizer ({type(config.train.build_optimizer()).__name__}) made numbers that are not finite, though the"
        f" loss {loss} and the gradient norm {grad_norm} are; only checkpoints from before that step are kept.\n"
        "  the same settings come to it again: change the optimizer or its settings, and begin anew or from the last checkpoint with"
        " `initialize_from_checkpoint_path`"
    )


def _head_command(config: TrainLmConfig, row: BatchRow) -> str:
    data = config.data.components[row.component] if isinstance(config.data, Mixture) else config.data
    first, number = row.first_document + 1, row.last_document - row.first_document + 1
    return (
        f"marin cache head {usual_path(str(data))} --first {first} --documents {number}"
        f" --tokenizer {usual_path(str(config.tokenizer))}"
    )


@contextlib.contextmanager
def keeping_state_before_bad_step(
    state: Callable[[], TrainState], save: Callable[[TrainState, int], object]
) -> Iterator[None]:
    """Saves the state before the refused update where the run ends with `NonFiniteLossError`."""
    try:
        yield
    except NonFiniteLossError:
        before = before_bad_step(state())
        if before is not None:
            save(before, int(before.step))
        raise
