"""Batches of sequences to be scored: which go together, and the few shapes that they are padded to.

Sequences are sorted by length and cut into batches of about one number of tokens, each padded to the next of a ladder of
lengths. The more there is to compute, the finer the ladder: eight lengths to an octave leave at most an eighth of padding, but
each is a program, which takes as long to compile as a batch or ten take to run.

A batch of shared prefixes holds whole groups of one number of rows: the prefixes, padded at the end, and each group's rows.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

# A prefix of fewer tokens is not worth a second pass over the weights.
_SHORT_PREFIX = 32
_SHORTEST = 16
# From so many batches on, so many lengths to an octave.
_LADDERS = ((128, 8), (32, 4), (0, 2))


@dataclasses.dataclass(frozen=True)
class Limits:
    """`tokens`: the most that a batch computes, if one sequence alone is not longer; `longest`: the most positions of a row."""

    tokens: int
    share: bool = True
    longest: int | None = None


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a program is given: row r belongs to prefix r // (R / G); S is 0 where nothing is shared.

    `row_N`, `position_N` and `target_N` say which positions are scored, and for which token. `members` says whose they are:
    (group, row of the group, first, stop) with results first..stop.
    """

    prefix_GS: Int32[np.ndarray, "G S"]
    prefix_lengths_G: Int32[np.ndarray, " G"]
    tokens_RT: Int32[np.ndarray, "R T"]
    row_N: Int32[np.ndarray, " N"]
    position_N: Int32[np.ndarray, " N"]
    target_N: Int32[np.ndarray, " N"]
    members: tuple[tuple[int, int, int, int], ...]


def ladder(num_tokens: int, limits: Limits) -> int:
    """Lengths to an octave for this much work."""
    return next(steps for batches, steps in _LADDERS if num_tokens >= batches * limits.tokens)


def rung(length: int, steps: int) -> int:
    """The shortest length of a ladder of `steps` to an octave that holds `length`."""
    if length <= _SHORTEST:
        return _SHORTEST
    step = max(1, 2 ** (length - 1).bit_length() // (2 * steps))
    return -(-length // step) * step


def plan(groups: Sequence[Any], limits: Limits) -> Iterator[Batch]:
    """The batches of all groups, the longest first: what needs most memory is found out at once."""
    shared, single = [], []
    for number, group in enumerate(groups):
        if limits.share and len(group.rows) > 1 and len(group.prefix) >= _SHORT_PREFIX:
            shared.append(number)
        else:
            single += [(number, row) for row in range(len(group.rows))]
    yield from _of_prefixes(groups, shared, limits)
    yield from _of_sequences(groups, single, limits)


def _of_sequences(groups: Sequence[Any], rows: list[tuple[int, int]], limits: Limits) -> Iterator[Batch]:
    def length(place: tuple[int, int]) -> int:
        group = groups[place[0]]
        return len(group.prefix) + len(group.rows[place[1]])

    rows = sorted(rows, key=length, reverse=True)
    steps = ladder(sum(map(length, rows)), limits)
    while rows:
        width = min(rung(length(rows[0]), steps), limits.longest or sys.maxsize)
        num_rows = _power_below(limits.tokens // width)
        taken, rows = rows[:num_rows], rows[num_rows:]
        # The last of a few: as many rows as it needs.
        num_rows = _power_above(len(taken))
        tokens = np.zeros((num_rows, width), np.int32)
        scored = _Scored()
        for r, (number, row) in enumerate(taken):
            group = groups[number]
            whole = np.concatenate([group.prefix, group.rows[row]])
            tokens[r, : len(whole)] = whole[:width]  # a last token that is too many is only predicted
            scored.add(number, row, r, whole, len(group.prefix) + group.starts[row])
        yield scored.batch(np.zeros((num_rows, 0), np.int32), np.zeros(num_rows, np.int32), tokens)


def _of_prefixes(groups: Sequence[Any], numbers: list[int], limits: Limits) -> Iterator[Batch]:
    def shape(number: int) -> tuple[int, int, int]:
        group = groups[number]
        return _num_rows(group), _power_above(max(map(len, group.rows)), least=8), len(group.prefix)

    numbers = sorted(numbers, key=shape, reverse=True)
    steps = ladder(sum(len(groups[number].prefix) for number in numbers), limits)
    while numbers:
        rows_each, width, longest = shape(numbers[0])
        length = rung(longest, steps)
        most = _power_below(limits.tokens // (length + rows_each * width))
        taken = [number for number in numbers[:most] if shape(number)[:2] == (rows_each, width)]
        numbers = numbers[len(taken) :]
        num_groups = _power_above(len(taken))
        prefixes, lengths = np.zeros((num_groups, length), np.int32), np.zeros(num_groups, np.int32)
        tokens = np.zeros((num_groups * rows_each, width), np.int32)
        scored = _Scored()
        for g, number in enumerate(taken):
            group = groups[number]
            lengths[g] = len(group.prefix)
            prefixes[g, : len(group.prefix)] = group.prefix
            for row, (part, start) in enumerate(zip(group.rows, group.starts, strict=True)):
                r = g * rows_each + row
                tokens[r, : len(part)] = part
                scored.add(number, row, r, part, start)
        yield scored.batch(prefixes, lengths, tokens)


class _Scored:
    """The positions of a batch that are scored, as they come together."""

    def __init__(self) -> None:
        self._rows: list[Int32[np.ndarray, " n"]] = []
        self._positions: list[Int32[np.ndarray, " n"]] = []
        self._targets: list[Int32[np.ndarray, " n"]] = []
        self._members: list[tuple[int, int, int, int]] = []
        self._count = 0

    def add(self, number: int, row: int, place: int, tokens: Int32[np.ndarray, " t"], start: int) -> None:
        targets = tokens[start:]
        self._rows.append(np.full(len(targets), place, np.int32))
        self._positions.append(np.arange(start - 1, len(tokens) - 1, dtype=np.int32))
        self._targets.append(targets)
        self._members.append((number, row, self._count, self._count + len(targets)))
        self._count += len(targets)

    def batch(
        self,
        prefix_GS: Int32[np.ndarray, "G S"],
        lengths_G: Int32[np.ndarray, " G"],
        tokens_RT: Int32[np.ndarray, "R T"],
    ) -> Batch:
        padding = min(_power_above(self._count, least=64), max(tokens_RT.size, self._count)) - self._count
        row, position, target = (
            np.pad(np.concatenate(parts), (0, padding)) for parts in (self._rows, self._positions, self._targets)
        )
        return Batch(prefix_GS, lengths_G, tokens_RT, row, position, target, tuple(self._members))


def _num_rows(group: Any) -> int:
    """Three rows are padded to four, which are more frequent; other numbers stand for themselves."""
    return 4 if len(group.rows) == 3 else len(group.rows)


def _power_below(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


def _power_above(value: int, *, least: int = 1) -> int:
    return 1 << (max(least, value) - 1).bit_length()
