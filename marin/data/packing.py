"""Rows that begin with the beginning of a document, by best fit: documents stay whole as far as rows are long enough.

Best-fit decreasing (Johnson, 1973; for language models Ding et al., "Fewer Truncations Improve Language Modeling", 2024,
arXiv:2404.10830): the longest piece first, each into the row with the least space that still holds it, else into an empty
row. Every segment of a row begins with the token that begins documents, and what no piece fills is padding, which counts
nothing in the loss and is a segment of its own.

    best_fit            a document longer than a row goes on in a piece of its own, which begins with that token again
    best_fit_truncate   a document longer than a row loses what does not fit; the lost tokens are counted
    best_fit_crop       documents in order, cut at the end of each row, so that none has padding (`marin.data.packing_cropped`)

With `best_fit` no token is lost: each token of a document is a target with weight 1 exactly once, and so is the end of
each document. The plan (which piece lies in which row) needs the lengths only; it takes 24 bytes of memory a piece.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int64

from marin.data.cache import TokenCache
from marin.data.packing_cropped import fill_rows
from marin.data.rows import Batch, ConcatenatedRows, RowCounts, Rows, check_context_length, check_mask
from marin.errors import CacheError, ConfigError

Packing = Literal["concatenate", "best_fit", "best_fit_truncate", "best_fit_crop"]


def check_packing(packing: str) -> None:
    """Raises:
    ConfigError: there is no such packing.
    """
    if packing not in get_args(Packing):
        raise ConfigError(f"`packing` is {packing!r}: use one of {', '.join(map(repr, get_args(Packing)))}")


def pack(
    cache: TokenCache, context_length: int, bos_id: int | None, packing: Packing, mask: TokenCache | None = None
) -> Rows:
    """The rows of a cache under a packing.

    Raises:
        ConfigError: the packing is unknown, or the cache or the context is too short for it.
    """
    check_packing(packing)
    if packing == "concatenate":
        return ConcatenatedRows(cache, context_length, bos_id, mask)
    if bos_id is None:
        raise ConfigError(f"`packing` is {packing!r}, which needs the token that begins documents: use 'concatenate'")
    return BestFitRows(cache, context_length, bos_id, mask, packing=packing)


@dataclass(frozen=True)
class _Pieces:
    """Parts of documents: `tokens[start : start + size]`; whether it continues one, and whether tokens follow in it."""

    start: Int64[np.ndarray, " P"]
    size: Int64[np.ndarray, " P"]
    """Without the beginning token that a continuation gets."""
    continues: np.ndarray
    goes_on: np.ndarray

    def chosen(self, which_P: np.ndarray) -> "_Pieces":
        """Those of these numbers or flags."""
        return _Pieces(self.start[which_P], self.size[which_P], self.continues[which_P], self.goes_on[which_P])


class BestFitRows:
    """Rows by best fit.

    Args:
        bos_id: the token with which every document of the cache must begin; also what fills padding.
        packing: any of those by best fit.
    Raises:
        ConfigError: the context is shorter than 2, or the cache has no tokens.
    """

    def __init__(
        self, cache: TokenCache, context_length: int, bos_id: int, mask: TokenCache | None = None, *, packing: Packing
    ):
        check_context_length(context_length)
        if context_length < 2:
            raise ConfigError("`context_length` is 1: rows by best fit need at least 2, or use packing 'concatenate'")
        check_mask(cache, mask)
        self._cache, self._mask = cache, mask
        self._context_length, self._bos_id, self._keeps_all = context_length, bos_id, packing == "best_fit"
        if packing == "best_fit_crop":
            self._pieces, row_of_piece = _cropped(cache.document_offsets, context_length)
        else:
            self._pieces, row_of_piece = _whole(cache.document_offsets, context_length, truncate=not self._keeps_all)
        self.num_rows = int(row_of_piece.max(initial=-1)) + 1
        if not self.num_rows:
            raise ConfigError(f"the token cache {cache.path} has no tokens, so no row can be made of it: leave it out")
        self._first_of_row = np.searchsorted(row_of_piece, np.arange(self.num_rows + 1))

    @functools.cached_property
    def counts(self) -> RowCounts:
        inputs, begun = int(self._pieces.size.sum()), int(self._pieces.continues.sum())
        # Of a document that is cut off, one token more is in its row, as the last target.
        held = inputs + (0 if self._keeps_all else int(self._pieces.goes_on.sum()))
        padding = self.num_rows * self._context_length - inputs - begun
        return RowCounts(len(self._cache), len(self._cache) - held, padding)

    def documents(self, row: int) -> tuple[int, int]:
        starts = self._pieces.start[self._first_of_row[row] : self._first_of_row[row + 1]]
        found = np.searchsorted(self._cache.document_offsets, starts, side="right") - 1
        return int(np.min(found)), int(np.max(found))

    def read(self, row_B: Int64[np.ndarray, " B"]) -> Batch:
        shape = len(row_B), self._context_length
        tokens_BT, targets_BT = np.full(shape, self._bos_id, np.int32), np.full(shape, self._bos_id, np.int32)
        weight_BT, segment_ids_BT = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        first_B, stop_B = self._first_of_row[row_B], self._first_of_row[row_B + 1]
        chosen = np.concatenate([np.arange(first, stop) for first, stop in zip(first_B, stop_B, strict=True)])
        texts = iter(self._texts(chosen))
        for row, (first, stop) in enumerate(zip(first_B, stop_B, strict=True)):
            column = 0
            for segment, piece in enumerate(range(first, stop)):
                text, mask = next(texts)
                size, continues = int(self._pieces.size[piece]), int(self._pieces.continues[piece])
                here = slice(column + continues, column + continues + size)
                tokens_BT[row, here] = text[:size]
                # What follows a document is the beginning of another; it counts where the last token does.
                following = text[1:] if self._pieces.goes_on[piece] else np.append(text[1:], self._bos_id)
                targets_BT[row, here] = following
                if mask is None:
                    weight_BT[row, here] = 1
                else:
                    learned = mask[1:] != 0
                    weight_BT[row, here] = learned if self._pieces.goes_on[piece] else np.append(learned, mask[-1] == 1)
                if continues:  # its target was that of the last position of the piece before, so it counts nothing
                    targets_BT[row, column] = text[0]
                segment_ids_BT[row, column:] = segment
                column += continues + size
            if column < shape[1]:
                segment_ids_BT[row, column:] = stop - first
        return Batch(tokens_BT, targets_BT, weight_BT, segment_ids_BT)

    def _texts(self, chosen: Int64[np.ndarray, " P"]) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """Tokens and mask of each piece, and of the one token after it where its document goes on."""
        start_P, size_P = self._pieces.start[chosen], self._pieces.size[chosen] + self._pieces.goes_on[chosen]
        tokens = _read_ranges(self._cache, start_P, size_P)
        for piece, text in zip(chosen, tokens, strict=True):
            if text[0] != self._bos_id and not self._pieces.continues[piece]:
                start = int(self._pieces.start[piece])
                document = int(np.searchsorted(self._cache.document_offsets, start, side="right")) - 1
                raise CacheError(
                    f"{self._cache.path}: document {document} begins with token {int(text[0])}, packing by best fit needs "
                    f"{self._bos_id} there: use packing 'concatenate', or tokenize again so that each document begins with it"
                )
        masks = [None] * len(tokens) if self._mask is None else _read_ranges(self._mask, start_P, size_P)
        return list(zip(tokens, masks, strict=True))


def best_fit(lengths: Int64[np.ndarray, " P"], capacity: int) -> tuple[Int64[np.ndarray, " P"], int]:
    """Which row each piece goes into under best-fit decreasing, and the number of rows.

    Pieces of one length and rows of one remaining space are handled together, so the time grows with the number of
    pieces for the sort and with `capacity` for the rest. Ties go to the piece that comes first.

    Args:
        lengths: of the pieces, each from 1 to `capacity`.
    """
    assert not len(lengths) or (lengths.min() >= 1 and lengths.max() <= capacity)
    row_of_piece = np.empty(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order], prepend=-1, append=-1))
    # rows_with[space]: rows that have exactly so much space left; bit `space` of `spaces` says that there are any.
    rows_with: list[list[np.ndarray]] = [[] for _ in range(capacity + 1)]
    spaces = num_rows = 0
    for begin, end in itertools.pairwise(bounds):
        length = int(lengths[order[begin]])
        waiting = order[begin:end]
        while len(waiting):
            at_least = spaces >> length
            if at_least:
                space = length + (at_least & -at_least).bit_length() - 1
                rows = np.concatenate(rows_with[space])
                rows_with[space] = []
                spaces &= ~(1 << space)
            else:
                space = capacity
                opened = -(-len(waiting) // (capacity // length))
                rows = np.arange(num_rows, num_rows + opened)
                num_rows += opened
            # The row with the least space stays so until it holds no more of this length: it takes all that fit.
            each = space // length
            used = min(-(-len(waiting) // each), len(rows))
            placed, waiting = waiting[: used * each], waiting[used * each :]
            row_of_piece[placed] = np.repeat(rows[:used], each)[: len(placed)]
            in_last = len(placed) - (used - 1) * each
            for part, left in (
                (rows[: used - 1], space - each * length),
                (rows[used - 1 : used], space - in_last * length),
                (rows[used:], space),
            ):
                if len(part) and left:
                    rows_with[left].append(part)
                    spaces |= 1 << left
    return row_of_piece, num_rows


def _whole(
    offsets: Int64[np.ndarray, " N+1"], context_length: int, *, truncate: bool
) -> tuple[_Pieces, Int64[np.ndarray, " P"]]:
    """Documents whole as far as a row is long enough, by rows, and the row of each piece."""
    pieces = _cut(offsets, context_length, truncate=truncate)
    row_of_piece, _ = best_fit(pieces.size + pieces.continues, context_length)
    # Stable: within a row, pieces keep the order in which they lie in the cache.
    order = np.argsort(row_of_piece, kind="stable")
    return pieces.chosen(order), row_of_piece[order]


def _cropped(offsets: Int64[np.ndarray, " N+1"], context_length: int) -> tuple[_Pieces, Int64[np.ndarray, " P"]]:
    """Documents cut at the ends of rows, by rows, and the row of each piece."""
    size_N = np.diff(offsets)
    start_N, size_N = offsets[:-1][size_N > 0], size_N[size_N > 0]
    # A row holds one token more than it has positions, as its last target.
    document_P, size_P, row_P = fill_rows(size_N, context_length + 1)
    filled_R = np.bincount(row_P, weights=size_P) if len(row_P) else np.zeros(0)
    is_last_P = np.diff(row_P, append=-1) != 0
    gives_last_target_P = is_last_P & (filled_R[row_P] > context_length)
    pieces = _Pieces(
        start=start_N[document_P],
        size=size_P - gives_last_target_P,
        continues=np.zeros(len(row_P), bool),
        goes_on=gives_last_target_P,
    )
    # Of a document that gives nothing but that target, which begins documents, nothing is an input.
    has_inputs_P = pieces.size > 0
    return pieces.chosen(has_inputs_P), row_P[has_inputs_P]


def _cut(offsets: Int64[np.ndarray, " N+1"], capacity: int, *, truncate: bool) -> _Pieces:
    """The pieces of documents that are longer than a row, and all others as they are; empty documents have none."""
    size = np.diff(offsets)
    start, size = offsets[:-1][size > 0], size[size > 0]
    # A continuation holds one token less, as it begins with the token that begins documents.
    extra = np.maximum(0, -(-(size - capacity) // (capacity - 1)))
    if truncate:
        extra = np.zeros_like(extra)
    number = np.arange(int((extra + 1).sum())) - np.repeat(np.cumsum(extra + 1) - (extra + 1), extra + 1)
    skipped = np.where(number > 0, capacity + (number - 1) * (capacity - 1), 0)
    left = np.repeat(size, extra + 1) - skipped
    room = np.where(number > 0, capacity - 1, capacity)
    return _Pieces(
        start=np.repeat(start, extra + 1) + skipped,
        size=np.minimum(left, room),
        continues=number > 0,
        goes_on=left > room,
    )


def _read_ranges(
    cache: TokenCache, start_P: Int64[np.ndarray, " P"], size_P: Int64[np.ndarray, " P"]
) -> list[np.ndarray]:
    """`tokens[start : start + size]` for each piece; those of similar sizes are read together."""
    found: list[np.ndarray] = [np.empty(0, np.int32)] * len(start_P)
    group_P = np.ceil(np.log2(np.maximum(size_P, 1))).astype(np.int64)
    for group in np.unique(group_P):
        members = np.flatnonzero(group_P == group)
        width = min(1 << int(group), len(cache))
        # A window that would leave the cache begins earlier.
        begin = np.minimum(start_P[members], len(cache) - width)
        for member, window, skip in zip(members, cache.windows(begin, width), start_P[members] - begin, strict=True):
            found[member] = window[skip : skip + size_P[member]]
    return found
