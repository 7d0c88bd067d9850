"""Where the names of points go in a chart: as many as fit, none over another, over a point or over a line."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from marin.site import wording
from marin.site.leaderboard.drawing import CHARACTER_WIDTH, WIDE
from marin.site.leaderboard.frame import Frame

_MOST_TRIED = 40
_DROPS = (0.5, 1.0, 1.6)  # how far below its point a label ends, in parts of how far beside it
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclasses.dataclass(frozen=True)
class Named:
    """A point of the frontier, in pixels, and the name that it asks for."""

    name: str
    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Label:
    text: str
    align: str  # the end of the text that is nearest to its point: "right" or "left"
    point: tuple[float, float]  # in pixels, as all that follows
    end: tuple[float, float]
    box: Box


def place(
    frontier: Sequence[Named], points: Sequence[tuple[float, float]], taken: Sequence[Box], frame: Frame
) -> list[Label]:
    """Labels below and to the left of their point, where by definition of a frontier no point is, or to the right.

    The ends come first, then the others in turns over the whole range, so that the names spread. A name without room is
    left out: the table has it.

    Args:
        frontier: in the order of its line, which no label crosses.
        points: all points, in pixels.
        taken: room that other text has.
    """
    import numpy as np  # where a chart is drawn; most builds draw none

    filled = [*taken, *(_around(x, y, 5) for x, y in points)]
    for one, after in itertools.pairwise(frontier):
        low, high = sorted((one.y, after.y))
        filled += [(one.x + 6, one.y - 1, after.x, one.y + 1), (after.x - 1, low, after.x + 1, high - 6)]
    filled_N4 = np.asarray(filled, float).reshape(-1, 4)
    labels: list[Label] = []
    for one in _spread(frontier)[:_MOST_TRIED]:
        if len(labels) == frame.shape.max_labels:
            break
        label = _fit(one, frame, filled_N4)
        if label is not None:
            labels.append(label)
            filled_N4 = np.concatenate([filled_N4, [label.box, *_along(label)]])
    return labels


def _spread(points: Sequence[Named]) -> list[Named]:
    order = [points[-1], points[0]] if len(points) > 1 else list(points)
    stride = max(1, len(points) // 2)
    while len(order) < len(points):
        order += [one for one in points[stride::stride] if all(one is not other for other in order)]
        stride = max(1, stride // 2)
    return order


def _fit(one: Named, frame: Frame, taken_N4: Any) -> Label | None:
    import numpy as np

    text = wording.short_name(one.name, 34 if frame.shape is WIDE else 24)
    width = CHARACTER_WIDTH * len(text)
    farthest = max(frame.shape.label_distances) * max(_DROPS)
    reach = (one.x - farthest - width - 5, one.y - 9, one.x + farthest + width + 5, one.y + farthest + 8)
    near_N4 = taken_N4[_overlaps(np.asarray([reach]), taken_N4)[0]]  # of thousands of points some dozens
    for distance, drop in itertools.product(frame.shape.label_distances, _DROPS):
        for align in ("right", "left"):
            sign = -1 if align == "right" else 1
            end = (one.x + sign * distance, one.y + distance * drop)
            left = end[0] - width if align == "right" else end[0]
            label = Label(text, align, (one.x, one.y), end, (left - 5, end[1] - 8, left + width + 5, end[1] + 8))
            inside = left >= 0 and left + width <= frame.shape.width and label.box[3] <= frame.shape.height
            # Most places fail by the text itself, which is one box where its line is a dozen.
            if inside and not any(
                boxes and _overlaps(np.asarray(boxes), near_N4).any() for boxes in ([label.box], _along(label))
            ):
                return label
    return None


def _along(label: Label) -> list[Box]:
    """Small boxes along the line from a label to its point, past the point's own mark."""
    (x, y), (x2, y2) = label.point, label.end
    steps = range(1, max(2, int(abs(x2 - x) / 4)))
    boxes = [_around(x + (x2 - x) * k / steps.stop, y + (y2 - y) * k / steps.stop, 1) for k in steps]
    return [box for box in boxes if not _overlap(box, _around(x, y, 6))]


def _overlaps(boxes_M4: Any, taken_N4: Any) -> Any:
    """Which of M boxes meet which of N, as an array of M x N; far too many for a loop in Python."""
    return ((boxes_M4[:, None, :2] < taken_N4[:, 2:]) & (taken_N4[:, :2] < boxes_M4[:, None, 2:])).all(axis=2)


def _around(x: float, y: float, radius: float) -> Box:
    return x - radius, y - radius, x + radius, y + radius


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
