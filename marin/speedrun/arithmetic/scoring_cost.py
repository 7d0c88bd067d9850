"""What the verdict makes of how a run was scored: what scoring took and training did not is in no cost.

A model may see longer rows when it is scored than it was trained on, and have other activations than in training: several passes,
or a search through what it has read. Neither is forbidden, and a run that does so is not to be compared with others unawares.
"""

from collections.abc import Iterator

from marin.speedrun.arithmetic import findings as arithmetic
from marin.speedrun.arithmetic.findings import row_length, whole_number
from marin.speedrun.results import RunInfo
from marin.speedrun.verdict import Finding
from marin.tracking.run_record import MOST_HELD

MORE_FLOPS = 1.1  # times what is stated: counts differ a little


def check(info: RunInfo) -> Iterator[Finding]:
    """Findings about the field `evaluation`."""
    evaluation = info.evaluation
    if evaluation is None:
        return
    scored = evaluation.context_length or whole_number(info.model, "max_seq_len", "seq_len")
    trained = row_length(info.train_config, info.model)
    if scored and trained and scored > trained:
        message = f"scored on rows of {scored:,} tokens, trained on rows of {trained:,}: what the longer context gains is in no cost"
        yield arithmetic.note("evaluation.context_length", message)
    if (held := evaluation.held_bytes or 0) > MOST_HELD:
        message = (
            f"the program that was scored holds {held:,} bytes that are no parameters, more than {MOST_HELD:,}: they may be of the evaluation"
            " set; compute tables inside `activations` from jnp.arange"
        )
        yield arithmetic.unchecked("evaluation.held_bytes", message)
    if evaluation.replaced:
        message = (
            f"the run was scored by a process in which other code than their files have stands behind {', '.join(evaluation.replaced)[:200]}:"
            " what was measured may be something else"
        )
        yield arithmetic.unchecked("evaluation.replaced", message)
    if evaluation.uncounted:
        message = (
            f"scoring has {', '.join(evaluation.uncounted)[:80]}, whose work is not counted, of a loop one turn: what it takes may be more than"
            " training took, and is in no cost"
        )
        yield arithmetic.warning("evaluation.uncounted", message)
    flops, in_training = evaluation.flops_per_token, info.traced_flops_per_token
    if flops and in_training and in_training > 0 and flops > MORE_FLOPS * in_training:
        message = (
            f"scoring takes {flops:.4g} FLOPs a token, the forward pass of training {in_training:.4g}: what is computed only when the"
            " model is scored is in no cost"
        )
        yield arithmetic.warning("evaluation.flops_per_token", message)
