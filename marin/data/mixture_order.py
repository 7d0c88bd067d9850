"""Which row of which component each sample is: a pure function of (seed, sample), with no state and no tables.

Samples come in blocks of 2,048. In every block each component has its weight's share, rounded up or down: it is within
one row of the exact share. Which way is rounded changes from block to block (systematic sampling: the boundaries between
components are shifted by a low-discrepancy sequence before rounding), so that in the long run too each component has its
share, also one that is due less than one row a block. How many rows a component has had before a block is a sum of
floors, which `_floor_sum` gives in closed form, so sample 10^12 costs what sample 0 does.

Within a block a permutation spreads the components. Each takes its own rows in order: ordinal k of a component with n rows
is row `permute(k mod n)` of its epoch `k // n`. That order depends on the seed and n only, so adding a component changes
when the rows of the others come but not in which order, and a mixture of one component is that component.

Weights may change at given samples (stages). A component whose epoch limit is reached leaves the mixture and the others
share its weight; when all have left, the data ends. Both begin a new stage, and the last block of a stage is cut short.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from marin.data.permutation import derive_seed, in_passes, permute
from marin.errors import ConfigError

BLOCK = 2048
"""Samples over which each component has its share within one row."""
# Boundaries between components lie on a grid of 1/2^32 row; the shift runs through it in steps of the golden ratio.
_UNIT = 1 << 32
_SHIFT = 2654435769


@dataclass(frozen=True)
class Stage:
    """Weights that hold from sample `start` until the next stage.

    Args:
        weights: of each component, 0 or more; only their ratios matter.
    """

    start: int
    weights: tuple[float, ...]


@dataclass(frozen=True)
class _Segment:
    """Samples under one set of weights."""

    start: int
    stop: int | None
    """None where it never ends."""
    boundaries: tuple[int, ...]
    """Between the components in a block, in units of 1/_UNIT row: 0, ..., BLOCK * _UNIT."""
    before: tuple[int, ...] = ()
    """Rows that each component had in earlier segments."""

    def counts(self, num_samples: int) -> list[int]:
        """Rows of each component in the first `num_samples` of this segment, if it ends there."""
        num_blocks, rest = divmod(num_samples, BLOCK)
        ends = [_sum_of_boundaries(boundary, num_blocks) for boundary in self.boundaries]
        ends = [end + last for end, last in zip(ends, self.block_boundaries(num_blocks, rest), strict=True)]
        return [end - begin for begin, end in itertools.pairwise(ends)]

    def block_boundaries(self, block: int, size: int) -> list[int]:
        """Where each component begins among the `size` slots of a block, and `size`."""
        shift = block * _SHIFT % _UNIT
        return [(boundary * size // BLOCK + shift) // _UNIT for boundary in self.boundaries]


class MixtureOrder:
    """The order of samples for components of given sizes.

    Args:
        num_rows: of each component.
        stages: the first starts at sample 0; each later one later.
        max_epochs: how often each component's rows may be seen, None for without end.
    Raises:
        ConfigError: stages or weights that make no order.
    """

    def __init__(
        self, num_rows: Sequence[int], stages: Sequence[Stage], max_epochs: Sequence[float | None] | None = None
    ):
        assert all(rows > 0 for rows in num_rows)
        max_epochs = max_epochs or [None] * len(num_rows)
        limits = [
            None if most is None else math.floor(Fraction(most) * rows)
            for most, rows in zip(max_epochs, num_rows, strict=True)
        ]
        _check_stages(stages, len(num_rows))
        self.num_rows = tuple(num_rows)
        self._segments = _segments(stages, limits)

    @property
    def num_samples(self) -> int | None:
        """Where the data ends because every component has reached its epoch limit; None if it never does."""
        return self._segments[-1].stop

    def drawn(self, num_samples: int) -> list[int]:
        """Rows that each component gives to the first `num_samples` samples; exact at ends of blocks, else by its share."""
        segment = self._segment_of(max(0, num_samples - 1))
        here = segment.counts(num_samples - segment.start)
        return [before + count for before, count in zip(segment.before, here, strict=True)]

    def locate(
        self, seed: int, sample_B: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, " B"], Int64[np.ndarray, " B"]]:
        """The component of each sample, and which of the component's rows it is.

        Raises:
            ConfigError: a sample lies beyond the end of the data.
        """
        component_B, row_B = np.empty(len(sample_B), np.int64), np.empty(len(sample_B), np.int64)
        done = 0
        while done < len(sample_B):
            segment = self._segment_of(int(sample_B[done]))
            block = (int(sample_B[done]) - segment.start) // BLOCK
            first = segment.start + block * BLOCK
            size = BLOCK if segment.stop is None else min(BLOCK, segment.stop - first)
            # Samples are in rising order, so those of one block stand together.
            inside = int(np.searchsorted(sample_B[done:], first + size))
            slot_B = sample_B[done : done + inside] - first
            components, ordinals = _block(seed, segment, block, size)
            component_B[done : done + inside] = components[slot_B]
            row_B[done : done + inside] = self._rows(seed, components[slot_B], ordinals[slot_B])
            done += inside
        return component_B, row_B

    def _rows(
        self, seed: int, component_B: Int64[np.ndarray, " B"], ordinal_B: Int64[np.ndarray, " B"]
    ) -> Int64[np.ndarray, " B"]:
        """Which row the ordinal of each component is: every epoch in an order of its own."""
        row_B = np.empty(len(ordinal_B), np.int64)
        for component in np.unique(component_B):
            chosen = component_B == component
            row_B[chosen] = in_passes(ordinal_B[chosen], self.num_rows[component], seed, "epoch")
        return row_B

    def _segment_of(self, sample: int) -> _Segment:
        if self.num_samples is not None and sample >= self.num_samples:
            raise ConfigError(
                f"sample {sample} lies beyond the end of the mixture, whose epoch limits allow {self.num_samples:,} rows: "
                "raise `max_epochs` or train fewer steps"
            )
        for segment in reversed(self._segments):
            if segment.start <= sample:
                return segment
        raise AssertionError("samples are 0 or more")


@functools.lru_cache(maxsize=8)
def _block(
    seed: int, segment: _Segment, block: int, size: int
) -> tuple[Int64[np.ndarray, " size"], Int64[np.ndarray, " size"]]:
    """The component and the ordinal within it of each sample of a block."""
    begins = segment.block_boundaries(block, size)[1:-1]
    slots = permute(np.arange(size), size, derive_seed(seed, "mixture block", segment.start + block * BLOCK))
    components = np.searchsorted(np.array(begins, np.int64), slots, side="right")
    before = [earlier + here for earlier, here in zip(segment.before, segment.counts(block * BLOCK), strict=True)]
    ordinals = np.empty(size, np.int64)
    for component in np.unique(components):
        chosen = components == component
        ordinals[chosen] = before[component] + np.arange(int(chosen.sum()))
    return components, ordinals


def _segments(stages: Sequence[Stage], limits: Sequence[int | None]) -> list[_Segment]:
    """The stages, cut again wherever a component reaches its limit."""
    segments: list[_Segment] = []
    drawn = [0] * len(limits)
    gone: set[int] = set()
    for number, stage in enumerate(stages):
        stop = stages[number + 1].start if number + 1 < len(stages) else None
        position = stage.start
        while stop is None or position < stop:
            weights = [0.0 if component in gone else weight for component, weight in enumerate(stage.weights)]
            if not any(weights):
                break
            segment = _Segment(position, stop, _boundaries(weights), tuple(drawn))
            room = {c: limit - drawn[c] for c, limit in enumerate(limits) if limit is not None and c not in gone}
            length, full = _longest(segment, room)
            if length is None:
                return [*segments, segment]
            gone |= full
            if length:
                segments.append(_Segment(position, position + length, segment.boundaries, segment.before))
                drawn = [earlier + here for earlier, here in zip(drawn, segment.counts(length), strict=True)]
            position += length
        if stop is None or position < stop:
            break
    if not segments:
        raise ConfigError("`max_epochs` leaves no rows at all: raise it")
    return segments


def _longest(segment: _Segment, room: dict[int, int]) -> tuple[int | None, set[int]]:
    """How long the segment can be before a component would exceed its room, and which would; None for without end."""
    ends = [None if segment.stop is None else segment.stop - segment.start]
    ends += [_samples_until(segment, component, rows) for component, rows in room.items()]
    length = min((end for end in ends if end is not None), default=None)
    if length is None:
        return None, set()

    def too_many(num_samples: int) -> set[int]:
        counts = segment.counts(num_samples)
        return {component for component, rows in room.items() if counts[component] > rows}

    # A block that is cut short may round up what the whole block rounds down.
    while too_many(length):
        length -= 1
    return length, set() if length == ends[0] else too_many(length + 1)


def _samples_until(segment: _Segment, component: int, room: int) -> int | None:
    """The most samples of the segment in which the component has at most `room` rows; None where it has none ever."""
    if segment.boundaries[component] == segment.boundaries[component + 1]:
        return None
    above = 1
    while segment.counts(above * BLOCK)[component] <= room:
        above *= 2
    block = bisect.bisect_right(range(above), room, key=lambda blocks: segment.counts(blocks * BLOCK)[component]) - 1
    left = room - segment.counts(block * BLOCK)[component]
    for size in range(1, BLOCK):
        boundaries = segment.block_boundaries(block, size)
        if boundaries[component + 1] - boundaries[component] > left:
            return block * BLOCK + size - 1
    return (block + 1) * BLOCK - 1


def _boundaries(weights: Sequence[float]) -> tuple[int, ...]:
    total = sum(map(Fraction, weights))
    running = itertools.accumulate(map(Fraction, weights), initial=Fraction(0))
    return tuple(round(value / total * BLOCK * _UNIT) for value in running)


def _sum_of_boundaries(boundary: int, num_blocks: int) -> int:
    """The sum over the first blocks of `block_boundaries` for one boundary of whole blocks."""
    whole, part = divmod(boundary, _UNIT)
    # (part + b * S mod U) // U is 1 exactly where (part + b * S) // U exceeds (b * S) // U.
    return num_blocks * whole + _floor_sum(num_blocks, part) - _floor_sum(num_blocks, 0)


def _floor_sum(count: int, offset: int) -> int:
    """The sum of `(b * _SHIFT + offset) // _UNIT` over b < count, in logarithmic time (as Euclid's algorithm)."""
    total, slope, unit = 0, _SHIFT, _UNIT
    while count > 0:
        total += (count - 1) * count // 2 * (slope // unit) + count * (offset // unit)
        slope, offset = slope % unit, offset % unit
        count, offset = divmod(slope * count + offset, unit)
        slope, unit = unit, slope
    return total


def _check_stages(stages: Sequence[Stage], num_components: int) -> None:
    if not stages or stages[0].start != 0:
        raise ConfigError("the first stage of a mixture's weights must start at 0: add one that does")
    for before, after in itertools.pairwise(stages):
        if after.start <= before.start:
            raise ConfigError(f"a stage starts at {after.start} after one at {before.start}: give them in rising order")
    for stage in stages:
        assert len(stage.weights) == num_components
        if not all(math.isfinite(weight) and weight >= 0 for weight in stage.weights) or not any(stage.weights):
            raise ConfigError(
                f"the weights {list(stage.weights)} make no mixture: use finite numbers of 0 or more, one above 0"
            )
