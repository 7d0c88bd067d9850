"""Batch sizes that change during training: which size a step has, and which sample it begins with.

A schedule is one size, or a list of (first step, size) that begins at step 0. Sizes hold until the next entry. The samples
of a step follow those of the step before without a gap, whatever the sizes, so the data order is that of a run with
one size, cut up differently.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from marin.errors import ConfigError
from marin.number_checks import is_whole


@dataclass(frozen=True)
class BatchSchedule:
    """Args:
    entries: (first step, rows a step), in rising order of steps, the first at 0.
    """

    entries: tuple[tuple[int, int], ...]

    @staticmethod
    def of(value: object, field: str = "train_batch_size") -> "BatchSchedule":
        """The schedule that a config field states.

        Args:
            value: a number of rows, or a list of (first step, rows).
        Raises:
            ConfigError: it is neither, naming `field`.
        """
        if not isinstance(value, Sequence) or isinstance(value, str):
            if not is_whole(value, 1):
                raise ConfigError(
                    f"config field `{field}` is {value!r}: use a whole number of at least 1, or a list of "
                    "(first step, size) such as [(0, 64), (1000, 128)]"
                )
            return BatchSchedule(((0, int(value)),))
        entries = [tuple(entry) if isinstance(entry, Sequence) else (entry,) for entry in value]
        for entry in entries:
            if len(entry) != 2 or not is_whole(entry[0], 0) or not is_whole(entry[1], 1):
                raise ConfigError(
                    f"config field `{field}` has the entry {entry!r}: use (first step, size), whole numbers, such as (1000, 128)"
                )
        if not entries or entries[0][0] != 0:
            raise ConfigError(f"config field `{field}` is {value!r}: its first entry must begin at step 0")
        for before, after in itertools.pairwise(entries):
            if after[0] <= before[0]:
                raise ConfigError(
                    f"config field `{field}` has step {after[0]} after step {before[0]}: give its steps in rising order"
                )
        return BatchSchedule(tuple((first, size) for first, size in entries))

    def size_at(self, step: int) -> int:
        """Rows in the batch of `step`."""
        return next(size for first, size in reversed(self.entries) if first <= step)

    def offset_at(self, step: int) -> int:
        """Rows in all batches before `step`: the number of its first sample."""
        ends = [first for first, _ in self.entries[1:]] + [step]
        return sum(
            size * (min(end, step) - first)
            for (first, size), end in zip(self.entries, ends, strict=True)
            if first < step
        )

    def sizes(self, first_step: int, last_step: int) -> list[int]:
        """The different sizes of steps `first_step` to `last_step - 1`, in the order in which they come."""
        starts = [first_step, *(first for first, _ in self.entries if first_step < first < last_step)]
        return list(dict.fromkeys(self.size_at(step) for step in starts))
