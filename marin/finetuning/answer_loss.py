"""Bits per byte of what assistants write: the loss of finetuning, in a unit that no tokenizer changes.

Targets that stand for no bytes (the special tokens of the template) count neither bits nor bytes.
"""

import math
from typing import Any

import numpy as np

from marin.data.loader import BatchSource
from marin.data.tokenizer import Tokenizer
from marin.errors import DataError
from marin.evaluation.scoring import Scorer
from marin.nn.precision import Precision


def answer_bits_per_byte(
    model: Any,
    source: BatchSource,
    tokenizer: Tokenizer,
    *,
    precision: Precision,
    batch_size: int,
    max_rows: int | None = None,
) -> float:
    """Over the rows of the source in their order, each once.

    Args:
        max_rows: so many of them at most, at even distances, as packing puts the longest documents into the first; None for all.
    Raises:
        DataError: nothing is learned in these rows, or the loss is not finite.
    """
    scorer = Scorer.of(model, precision)
    rows = source.components[0].rows
    nats, num_bytes = 0.0, 0
    count = min(rows.num_rows, max_rows or rows.num_rows)
    for start in range(0, count, batch_size):
        batch = rows.read(np.arange(start, min(start + batch_size, count)) * rows.num_rows // count)
        missing = batch_size - len(batch.tokens_BT)
        tokens_BT, targets_BT, segments_BT = (
            np.pad(values, ((0, missing), (0, 0)))
            for values in (batch.tokens_BT, batch.targets_BT, batch.segment_ids_BT)
        )
        loss_BT = scorer.nats(tokens_BT, targets_BT, segments_BT)[: len(batch.tokens_BT)]
        bytes_BT = np.where(batch.weight_BT > 0, tokenizer.token_bytes[batch.targets_BT], 0)
        nats += float(loss_BT[bytes_BT > 0].sum())
        num_bytes += int(bytes_BT.sum())
    if not num_bytes or not math.isfinite(nats):
        raise DataError(
            f"the loss of answers is {nats} nats over {num_bytes} bytes: the data has no answers, or training diverged"
        )
    return nats / (math.log(2.0) * num_bytes)
