"""Batches as a pure function of (seed, step): nothing is remembered between calls, so resuming needs no loader state.

The cache is read as one stream and cut into windows of T + 1 tokens at stride T, so each token is a target once in an
epoch, and the last token of one window is the first of the next. Sample number `step * B + row` belongs to the epoch
`sample // num_windows`; each epoch visits every window once, in the order of its own permutation. A batch that crosses
the end of an epoch takes its last rows from the next one.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from marin.data.cache import TokenCache
from marin.data.permutation import derive_seed, permute
from marin.errors import ConfigError


class Batch(NamedTuple):
    """Rows of consecutive tokens, and for each position the token that follows."""

    tokens_BT: Int32[np.ndarray, "B T"]
    targets_BT: Int32[np.ndarray, "B T"]
    weight_BT: Float32[np.ndarray, "B T"]
    """1 where the target counts in the loss. Predicting that a document ends counts."""
    segment_ids_BT: Int32[np.ndarray, "B T"]
    """0 from the start of each row, one more at each token that begins a document."""


class BatchSource:
    """The batches of one cache.

    Args:
        context_length: T, tokens per row.
        bos_id: the token that begins a document; None gives each row a single segment.
    Raises:
        ConfigError: the cache is shorter than one window.
    """

    def __init__(self, cache: TokenCache, context_length: int, bos_id: int | None):
        if context_length < 1:
            raise ConfigError(f"`context_length` is {context_length}: use at least 1")
        if len(cache) < context_length + 1:
            raise ConfigError(
                f"the token cache {cache.path} has {len(cache)} tokens, but one row of `context_length` "
                f"{context_length} needs {context_length + 1}: use a shorter context or more documents"
            )
        self.cache = cache
        self.context_length = context_length
        self.bos_id = bos_id
        self.num_windows = (len(cache) - 1) // context_length

    def window_indices(self, seed: int, step: int, batch_size: int) -> Int64[np.ndarray, " B"]:
        """Which window each row of the batch is."""
        if step < 0 or batch_size < 1:
            raise ConfigError(
                f"batch of {batch_size} rows at step {step}: the step must be 0 or more, the batch size at least 1"
            )
        sample_B = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
        epoch_B, position_B = np.divmod(sample_B, self.num_windows)
        window_B = np.empty(batch_size, np.int64)
        for epoch in range(int(epoch_B[0]), int(epoch_B[-1]) + 1):
            in_epoch_B = epoch_B == epoch
            window_B[in_epoch_B] = permute(position_B[in_epoch_B], self.num_windows, derive_seed(seed, "epoch", epoch))
        return window_B

    def batch_at(self, seed: int, step: int, batch_size: int) -> Batch:
        """Batch number `step` of the order that `seed` names."""
        starts_B = self.window_indices(seed, step, batch_size) * self.context_length
        window_BT1 = self.cache.windows(starts_B, self.context_length + 1)
        tokens_BT = np.ascontiguousarray(window_BT1[:, :-1])
        targets_BT = np.ascontiguousarray(window_BT1[:, 1:])
        begins_BT = np.zeros(tokens_BT.shape, bool) if self.bos_id is None else tokens_BT == self.bos_id
        return Batch(tokens_BT, targets_BT, np.ones(tokens_BT.shape, np.float32), segment_ids(begins_BT))


def segment_ids(begins_BT: Bool[np.ndarray, "B T"]) -> Int32[np.ndarray, "B T"]:
    """0 from the start of each row, one more at each position after the first where a document begins."""
    inside_BT = begins_BT.copy()
    inside_BT[:, 0] = False
    return np.cumsum(inside_BT, axis=1, dtype=np.int32)
