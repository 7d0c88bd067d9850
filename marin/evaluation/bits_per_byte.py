"""Bits per byte: sum of nats / (ln 2 x sum of bytes), over a fixed stream of named documents.

The stream (`marin.data.eval_set`) has each token as a target exactly once, also the token that begins the next document,
which says where the one before ended: it costs nats and brings no bytes. A position attends only within its own document.
Nats are summed in float64 from float32 losses of single tokens, so that neither the batch size nor the number of devices
changes what is added up.

Beside it stand two figures for published rows: Levanter's, per batch nats / bytes, averaged over batches by their tokens; and
nanochat's, in which tokens that stand for no bytes, such as those that begin documents, cost no nats either.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Float64

from marin.data.eval_set import EvalSet
from marin.data.tokenizer import Tokenizer
from marin.errors import DataError
from marin.evaluation.scoring import Scorer
from marin.nn.precision import Precision

_LN2 = math.log(2.0)


@dataclasses.dataclass(frozen=True)
class BitsPerByte:
    """A measurement. `value` is the project's metric; `levanter` and `nanochat` are what published rows use.

    `nats_of_targets` are those of each target in the order of the stream, whose sum is `nats`: what probes hold others against.
    """

    set_name: str
    digest: str
    value: float
    levanter: float
    nanochat: float
    nats: float
    num_bytes: int
    num_tokens: int
    num_documents: int
    nats_of_targets: Float64[np.ndarray, " N"] = dataclasses.field(repr=False, compare=False)


def bits_per_byte(
    model: Any,
    eval_set: EvalSet,
    tokenizer: Tokenizer,
    context_length: int,
    *,
    precision: Precision,
    batch_size: int = 16,
    max_batches: int | None = None,
) -> BitsPerByte:
    """Scores a model on a set; `max_batches` limits it to the beginning, for a look during training.

    Raises:
        DataError: if the tokens of a document do not stand for its bytes, or a loss is not finite.
    """
    scorer = Scorer.of(model, precision)
    return bits_per_byte_of(scorer, eval_set, tokenizer, context_length, batch_size=batch_size, max_batches=max_batches)


def bits_per_byte_of(
    scorer: Scorer,
    eval_set: EvalSet,
    tokenizer: Tokenizer,
    context_length: int,
    *,
    batch_size: int = 16,
    max_batches: int | None = None,
) -> BitsPerByte:
    """The same by a scorer, which can be probed afterwards."""
    stream = eval_set.stream(tokenizer, context_length)
    nats = text_nats = 0.0
    num_bytes = num_tokens = 0
    levanter_sum = 0.0
    scored: list[np.ndarray] = []
    for tokens, targets, segments, valid in stream.batches(batch_size, max_batches):
        loss = scorer.nats(tokens, targets, segments)
        scored.append(loss[valid])
        sizes = stream.token_bytes[targets[valid]]
        batch_nats = float(loss[valid].sum())
        text_nats += float(loss[valid][sizes > 0].sum())
        batch_bytes, batch_tokens = int(sizes.sum()), int(valid.sum())
        nats, num_bytes, num_tokens = nats + batch_nats, num_bytes + batch_bytes, num_tokens + batch_tokens
        levanter_sum += batch_tokens * batch_nats / (_LN2 * max(batch_bytes, 1))
    if not math.isfinite(nats):
        raise DataError(
            f"the model's loss on `{eval_set.name}` is not finite: its weights are damaged or training diverged"
        )
    return BitsPerByte(
        set_name=eval_set.name,
        digest=eval_set.digest,
        value=nats / (_LN2 * num_bytes),
        levanter=levanter_sum / num_tokens,
        nanochat=text_nats / (_LN2 * num_bytes),
        nats=nats,
        num_bytes=num_bytes,
        num_tokens=num_tokens,
        num_documents=len(eval_set.documents),
        nats_of_targets=np.concatenate(scored),
    )
