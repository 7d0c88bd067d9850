"""Rows of a fixed length from a token cache: what batches are made of.

A *row* is `context_length` tokens, for each the token that follows, and how much that one counts in the loss. `Rows` is
the protocol of anything that holds rows by number; `ConcatenatedRows` is the plain one, where the cache is read as one
stream and cut. Rows by best fit are in `marin.data.packing`.

A cache may have a loss mask: a second cache with a number for each token, in `loss_mask` beside `train`, as chats have. A
position counts only where its target's mask is not 0. That a document ends counts where its last token's mask is 1; with
`ENDS_UNLEARNED` there the token counts and the end does not.
"""

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from marin.data.cache import TokenCache
from marin.errors import CacheError, ConfigError

ENDS_UNLEARNED = 2
"""In a loss mask: the token is learned, and that its document ends after it is not."""


class Batch(NamedTuple):
    """Rows of tokens, and for each position the token that follows."""

    tokens_BT: Int32[np.ndarray, "B T"]
    targets_BT: Int32[np.ndarray, "B T"]
    weight_BT: Float32[np.ndarray, "B T"]
    """1 where the target counts in the loss. Predicting that a document ends counts."""
    segment_ids_BT: Int32[np.ndarray, "B T"]
    """0 from the start of each row, one more at each token that begins a document."""


class RowCounts(NamedTuple):
    """What became of the tokens of a cache."""

    num_tokens: int
    num_lost_tokens: int
    """Tokens that are in no row, neither as input nor as target, by the packing's policy."""
    num_padding: int
    """Positions of rows that hold no token of the cache."""


class Rows(Protocol):
    """Rows by number."""

    @property
    def num_rows(self) -> int: ...

    @property
    def counts(self) -> RowCounts: ...

    def read(self, row_B: Int64[np.ndarray, " B"]) -> Batch:
        """The rows with these numbers, each in `range(num_rows)`."""
        ...

    def documents(self, row: int) -> tuple[int, int]:
        """The first and the last document of the cache, counted from 0, of which a row has tokens."""
        ...


class ConcatenatedRows:
    """The cache as one stream, cut into windows of T + 1 tokens at stride T.

    Each token but the first is a target once; at the end of the cache fewer than T tokens are left over and lost. The
    last token of one row is the first of the next.

    Args:
        bos_id: the token that begins a document; None gives each row a single segment.
    Raises:
        ConfigError: the cache is shorter than one window.
    """

    def __init__(self, cache: TokenCache, context_length: int, bos_id: int | None, mask: TokenCache | None = None):
        check_context_length(context_length)
        if len(cache) < context_length + 1:
            raise ConfigError(
                f"the token cache {cache.path} has {len(cache)} tokens, but one row of `context_length` "
                f"{context_length} needs {context_length + 1}: use a shorter context or more documents"
            )
        check_mask(cache, mask)
        self._cache, self._mask = cache, mask
        self._context_length, self._bos_id = context_length, bos_id
        self.num_rows = (len(cache) - 1) // context_length

    @property
    def counts(self) -> RowCounts:
        return RowCounts(len(self._cache), len(self._cache) - 1 - self.num_rows * self._context_length, 0)

    def documents(self, row: int) -> tuple[int, int]:
        ends = [row * self._context_length, (row + 1) * self._context_length]
        first, last = np.searchsorted(self._cache.document_offsets, ends, side="right") - 1
        return int(first), min(int(last), self._cache.num_documents - 1)

    def read(self, row_B: Int64[np.ndarray, " B"]) -> Batch:
        starts_B = row_B * self._context_length
        window_BT1 = self._cache.windows(starts_B, self._context_length + 1)
        tokens_BT = np.ascontiguousarray(window_BT1[:, :-1])
        targets_BT = np.ascontiguousarray(window_BT1[:, 1:])
        weight_BT = np.ones(tokens_BT.shape, np.float32)
        if self._mask is not None:
            mask_BT1 = self._mask.windows(starts_B, self._context_length + 1)
            ends_BT = targets_BT == self._bos_id
            weight_BT = np.where(ends_BT, mask_BT1[:, :-1] == 1, mask_BT1[:, 1:] != 0).astype(np.float32)
        begins_BT = np.zeros(tokens_BT.shape, bool) if self._bos_id is None else tokens_BT == self._bos_id
        return Batch(tokens_BT, targets_BT, weight_BT, segment_ids(begins_BT))


def segment_ids(begins_BT: Bool[np.ndarray, "B T"]) -> Int32[np.ndarray, "B T"]:
    """0 from the start of each row, one more at each position after the first where a document begins."""
    inside_BT = begins_BT.copy()
    inside_BT[:, 0] = False
    return np.cumsum(inside_BT, axis=1, dtype=np.int32)


def check_context_length(context_length: int) -> None:
    """Raises:
    ConfigError: no row can have this length.
    """
    if context_length < 1:
        raise ConfigError(f"`context_length` is {context_length}: use at least 1")


def check_mask(cache: TokenCache, mask: TokenCache | None) -> None:
    """Raises:
    CacheError: the mask is that of other documents.
    """
    if mask is not None and not np.array_equal(mask.document_offsets, cache.document_offsets):
        raise CacheError(
            f"the loss mask {mask.path} has {len(mask)} entries in {mask.num_documents} documents, the cache {cache.path} "
            f"{len(cache)} tokens in {cache.num_documents}: remove both and run the step that writes them again"
        )
