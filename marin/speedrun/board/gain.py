"""How much cheaper an entry is than what else is as good: what an idea that makes training cheaper is about.

The other entries' frontier is taken as straight between two neighbours, in quality over the logarithm of cost. A frontier that bends
towards the origin is somewhat better than that in between, so that a gain across a wide gap is somewhat too large.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from marin.speedrun.board.entries import Entry
from marin.speedrun.board.pareto import pareto_frontier
from marin.speedrun.tracks import COST_NAMES, Track
from marin.speedrun.verdict import Rung

_ASKS_FOR_MORE = 2.0  # times as cheap, where the frontiers of public contests move by a few percent to a half
_LONGEST = 80  # of a name
_SEEN_BY_OTHERS: tuple[Rung, ...] = ("re-evaluated", "re-run")


@dataclasses.dataclass(frozen=True)
class Gain:
    """The cost at which the frontier of the other entries is as good, in units of one's own.

    `dearer` is the cheapest other entry of at least the same quality, and `cheaper` the best of those that cost less than it. Without
    the one there is no factor; without the other the factor is `dearer`'s own.
    """

    cheaper: Entry | None
    dearer: Entry | None
    factor: float | None


class Rival(NamedTuple):
    """An entry with its cost, which is positive, and what it is ranked by."""

    cost: float
    quality: float
    entry: Entry


def rivals_of(track: Track, entries: Sequence[Entry]) -> list[Rival]:
    """The entries of a track that another can be measured by: the frontier, and what would be on it if one of these were not there."""
    on = [entry for entry in entries if entry.on_frontier]
    rest = [entry for entry in entries if entry.rank is not None and not entry.on_frontier]
    points = [(entry.values[track.cost], track.standing(entry.values)[0]) for entry in rest]
    on += [entry for entry, is_next in zip(rest, pareto_frontier(points), strict=True) if is_next]
    return [
        Rival(cost, track.standing(entry.values)[0], entry)
        for entry in on
        if (cost := entry.values[track.cost]) is not None and cost > 0
    ]


def gain_of(track: Track, rivals: Sequence[Rival], entry: Entry) -> Gain | None:
    """What an entry gains; None without a rank or a cost, and on tracks whose cost is bounded or is the rank itself.

    Args:
        rivals: see `rivals_of`; the entry may be among them.
    """
    own_cost = entry.values[track.cost]
    if track.objective != "pareto" or entry.rank is None or own_cost is None or own_cost <= 0:
        return None
    own = track.standing(entry.values)[0]
    others = [rival for rival in rivals if rival.entry.key != entry.key]
    as_good = [rival for rival in others if rival.quality <= own]
    if not as_good:
        return Gain(None, None, None)
    cost, quality, dearer = min(as_good, key=lambda rival: rival[:2])
    below = [rival for rival in others if rival.cost < cost]
    if not below:
        return Gain(None, dearer, cost / own_cost)
    lower_cost, worse, cheaper = min(below, key=lambda rival: (rival.quality, rival.cost))
    part = (worse - own) / (worse - quality)
    return Gain(cheaper, dearer, lower_cost * math.exp(part * math.log(cost / lower_cost)) / own_cost)


def gain_text(track: Track, entry: Entry, gain: Gain) -> str:
    """A sentence or two. Names in it are their authors' text."""
    cost = COST_NAMES[track.cost]
    if gain.dearer is None or gain.factor is None:
        return "No other entry is as good, at any cost."
    times = f"{gain.factor:{'.2f' if 0.1 <= gain.factor < 10 else '.3g'}} times its {cost}"
    if gain.cheaper is None:
        text = f"The cheapest other entry that is as good, {gain.dearer.name[:_LONGEST]}, cost {times}."
    else:
        text = f"The frontier of the other entries, between {gain.cheaper.name[:_LONGEST]} and {gain.dearer.name[:_LONGEST]}, is as good at about {times}."
    if gain.factor < _ASKS_FOR_MORE or any(entry.verdict[rung].outcome == "passed" for rung in _SEEN_BY_OTHERS):
        return text
    return f"{text} So large a gain is its author's word until somebody else has scored or trained it again."
