"""The Pareto frontier of cost and quality, and how it came to be.

Points are (cost, quality) with less being better in both; a metric of which more is better is given with its sign turned. An
unknown value (`None`) is on no frontier and dominates nothing.
"""

import bisect
import dataclasses
import itertools
import operator
from collections.abc import Sequence

Point = tuple[float | None, float | None]


def pareto_frontier(points: Sequence[Point]) -> list[bool]:
    """For each point: whether nothing dominates it. Equal points share the fate."""
    known = sorted({(cost, quality) for cost, quality in points if cost is not None and quality is not None})
    frontier: set[Point] = set()
    best = float("inf")
    for cost, quality in known:  # by cost, then by quality: only a strictly better quality earns a place
        if quality < best:
            frontier.add((cost, quality))
            best = quality
    return [point in frontier for point in points]


@dataclasses.dataclass(frozen=True)
class FrontierChange:
    """One date at which the frontier changed: who came onto it, who was pushed off, and who was on it then, by cost."""

    date: str
    joined: tuple[str, ...]
    left: tuple[str, ...]
    members: tuple[str, ...]


def frontier_history(points: Sequence[tuple[str, str, float, float]]) -> tuple[FrontierChange, ...]:
    """The frontier after each date that changed it, oldest first, from (date, key, cost, quality)."""
    corners: list[tuple[float, float]] = []  # by cost; quality falls
    keys: dict[tuple[float, float], list[str]] = {}
    changes = []
    before: set[str] = set()
    for date, group in itertools.groupby(sorted(points), key=operator.itemgetter(0)):
        if not any([_add_corner(corners, keys, (cost, quality), key) for _, key, cost, quality in group]):
            continue
        members = tuple(key for corner in corners for key in sorted(keys[corner]))
        joined, left = sorted(set(members) - before), sorted(before - set(members))
        if joined or left:
            changes.append(FrontierChange(date, tuple(joined), tuple(left), members))
        before = set(members)
    return tuple(changes)


def _add_corner(
    corners: list[tuple[float, float]], keys: dict[tuple[float, float], list[str]], point: tuple[float, float], key: str
) -> bool:
    """Whether the point came onto the frontier."""
    at = bisect.bisect_left(corners, point)
    if at < len(corners) and corners[at] == point:
        keys[point].append(key)
        return True
    if at > 0 and corners[at - 1][1] <= point[1]:
        return False
    end = at
    while end < len(corners) and corners[end][1] >= point[1]:
        end += 1
    corners[at:end] = [point]
    keys[point] = [key]
    return True
