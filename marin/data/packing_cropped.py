"""Rows without padding, by cutting documents: the packing of nanochat's loader.

Documents pass in order through a buffer. A row takes the longest of them that fits, again and again; where none fits it takes
the shortest, cut at the row's end. What is cut off is lost: 5 % where documents have 400 tokens on average and rows 2,048,
44 % where they have 1,360 (lengths drawn log-normal); nanochat states 35 % for its data. Every row begins with the beginning of a document, and no position is padding, but in the last
row.

The plan needs lengths only. It is made one document after another, a few microseconds each.
"""

import bisect

import numpy as np
from jaxtyping import Int64

BUFFER = 1000


def fill_rows(
    lengths_N: Int64[np.ndarray, " N"], capacity: int, buffer: int = BUFFER
) -> tuple[Int64[np.ndarray, " N"], Int64[np.ndarray, " N"], Int64[np.ndarray, " N"]]:
    """The documents in the order in which rows take them, how many tokens each gives, and to which row.

    Of documents of one length the first is taken.

    Args:
        lengths_N: of the documents, at least 1.
        capacity: tokens of a row.
        buffer: documents that are chosen among.
    """
    count = len(lengths_N)
    document_N, taken_N, row_N = (np.empty(count, np.int64) for _ in range(3))
    lengths = lengths_N.tolist()
    waiting = sorted((lengths[number], number) for number in range(min(buffer, count)))
    row, space = 0, capacity
    for place in range(count):
        fitting = bisect.bisect_right(waiting, (space, count))
        longest = waiting[fitting - 1][0] if fitting else 0
        length, number = waiting.pop(bisect.bisect_left(waiting, (longest, -1)))
        taken = min(length, space)
        document_N[place], taken_N[place], row_N[place] = number, taken, row
        space -= taken
        if not space:
            row, space = row + 1, capacity
        if place + buffer < count:
            bisect.insort(waiting, (lengths[place + buffer], place + buffer))
    return document_N, taken_N, row_N
