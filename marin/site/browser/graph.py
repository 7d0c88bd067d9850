"""An experiment's steps as a drawing: layers from left to right, each step in the layer after the last one that it reads.

An edge that passes over a layer takes a place in it, so that it runs between the steps and not through them. Within a
layer the places are ordered by the mean place of their neighbours, a few times forth and back (Sugiyama, Tagawa and Toda
1981). The same steps give the same drawing. Colours come from the style sheet by class.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import markupsafe

MOST_NODES = 400

_WIDTH, _HEIGHT = 188, 60
_GAP_X, _GAP_Y = 44, 16
_THIN = 10  # what an edge that passes through takes in a layer
_MARGIN = 6
_ROUNDS = 6
_NAME, _GROUP = 22, 27  # characters that fit into a box


@dataclasses.dataclass(frozen=True)
class Node:
    """A step: `reads` are indices of other nodes; `css` colours it and `state` says the same in words."""

    name: str
    url: str
    state: str
    css: str
    reads: tuple[int, ...]


@dataclasses.dataclass
class _Place:
    node: int | None  # None for a part of an edge that passes through
    layer: int
    height: int
    y: float = 0.0

    @property
    def x(self) -> int:
        return _MARGIN + self.layer * (_WIDTH + _GAP_X)


def draw(nodes: Sequence[Node]) -> markupsafe.Markup:
    """The drawing as inline SVG at its natural size."""
    layers = layers_of([node.reads for node in nodes])
    places = [_Place(index, layer, _HEIGHT) for index, layer in enumerate(layers)]
    lines = _edges(nodes, places)
    width, height = _arrange(places, lines)
    implied = _implied([node.reads for node in nodes], layers)
    # Those that others imply come first, so that they lie below.
    lines.sort(key=lambda line: (line[0], line[-1]) not in implied)
    edges = [_path([places[i] for i in line], (line[0], line[-1]) in implied) for line in lines]
    boxes = [_box(node, places[index]) for index, node in enumerate(nodes)]
    return markupsafe.Markup(
        '<svg class="graph" xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="group" '
        'aria-label="{label}"><g aria-hidden="true">{edges}</g>{boxes}</svg>'
    ).format(
        w=width,
        h=height,
        label=f"{len(nodes)} steps, each after the steps that it reads",
        edges=markupsafe.Markup("").join(edges),
        boxes=markupsafe.Markup("").join(boxes),
    )


def layers_of(reads: Sequence[Sequence[int]]) -> list[int]:
    """For each node one more than the largest layer that it reads; edges that close a circle are left out."""
    left = [len(set(row)) for row in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for index, row in enumerate(reads):
        for source in set(row):
            readers[source].append(index)
    layers = [0] * len(reads)
    ready = [index for index, count in enumerate(left) if count == 0]
    for index in ready:
        for reader in readers[index]:
            layers[reader] = max(layers[reader], layers[index] + 1)
            left[reader] -= 1
            if left[reader] == 0:
                ready.append(reader)
    return layers


def _implied(reads: Sequence[Sequence[int]], layers: Sequence[int]) -> set[tuple[int, int]]:
    """The edges whose source the reader reaches by a longer way too; they are drawn fainter."""
    above: list[set[int]] = [set() for _ in reads]
    for index in sorted(range(len(reads)), key=lambda index: layers[index]):
        for source in reads[index]:
            if layers[source] < layers[index]:
                above[index] |= {source} | above[source]
    return {
        (source, index)
        for index, row in enumerate(reads)
        for source in row
        if any(source in above[other] for other in row if layers[other] < layers[index])
    }


def _edges(nodes: Sequence[Node], places: list[_Place]) -> list[list[int]]:
    """Each edge as indices of places, one in every layer from its source to its reader."""
    lines = []
    for index, node in enumerate(nodes):
        for source in dict.fromkeys(node.reads):
            if places[source].layer >= places[index].layer:
                continue
            line = [source]
            for layer in range(places[source].layer + 1, places[index].layer):
                line.append(len(places))
                places.append(_Place(None, layer, _THIN))
            lines.append([*line, index])
    return lines


def _arrange(places: list[_Place], lines: list[list[int]]) -> tuple[int, int]:
    """Gives every place its `y`, and returns the size of the whole."""
    layers: list[list[int]] = [[] for _ in range(max((place.layer for place in places), default=0) + 1)]
    for index, place in enumerate(places):
        layers[place.layer].append(index)
    before: list[list[int]] = [[] for _ in places]
    after: list[list[int]] = [[] for _ in places]
    for line in lines:
        for source, reader in itertools.pairwise(line):
            before[reader].append(source)
            after[source].append(reader)
    _stack(places, layers)
    for turn in range(_ROUNDS):
        neighbours = before if turn % 2 == 0 else after
        for layer in layers if turn % 2 == 0 else layers[::-1]:
            layer.sort(key=lambda index: _mean([_middle(places[i]) for i in neighbours[index]], _middle(places[index])))
            _stack(places, [layer])
    height = max((_extent(places, layer) for layer in layers), default=0)
    for layer in layers:
        shift = (height - _extent(places, layer)) / 2 + _MARGIN
        for index in layer:
            places[index].y += shift
    return 2 * _MARGIN + len(layers) * (_WIDTH + _GAP_X) - _GAP_X, int(height + 2 * _MARGIN)


def _stack(places: list[_Place], layers: list[list[int]]) -> None:
    for layer in layers:
        y = 0.0
        for index in layer:
            places[index].y = y
            y += places[index].height + _GAP_Y


def _extent(places: list[_Place], layer: list[int]) -> float:
    return sum(places[index].height + _GAP_Y for index in layer) - _GAP_Y


def _middle(place: _Place) -> float:
    return place.y + place.height / 2


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _path(line: list[_Place], is_implied: bool) -> markupsafe.Markup:
    x, y = line[0].x + _WIDTH, _middle(line[0])
    parts = [f"M{x} {y:.0f}"]
    for place in line[1:]:
        bend = _GAP_X / 2
        parts.append(
            f"C{x + bend:.0f} {y:.0f} {place.x - bend:.0f} {_middle(place):.0f} {place.x} {_middle(place):.0f}"
        )
        x, y = place.x, _middle(place)
        if place.node is None:
            x = place.x + _WIDTH
            parts.append(f"H{x}")
    return markupsafe.Markup('<path class="edge{}" d="{}"/>').format(" implied" if is_implied else "", " ".join(parts))


def _box(node: Node, place: _Place) -> markupsafe.Markup:
    group, _, leaf = node.name.rpartition("/")
    return markupsafe.Markup(
        '<a href="{url}" class="node {css}"><title>{full}: {state}</title>'
        '<rect class="box" x="{x}" y="{y}" width="{w}" height="{h}" rx="7"/>'
        '<rect class="bar" x="{x}" y="{bar_y}" width="4" height="{bar_h}" rx="2"/>'
        '<text class="group" x="{tx}" y="{gy}">{group}</text><text class="name" x="{tx}" y="{ny}">{name}</text>'
        '<text class="state" x="{tx}" y="{sy}">{state}</text></a>'
    ).format(
        url=node.url,
        css=node.css,
        full=node.name,
        state=node.state,
        x=place.x,
        y=int(place.y),
        w=_WIDTH,
        h=_HEIGHT,
        bar_y=int(place.y) + 8,
        bar_h=_HEIGHT - 16,
        tx=place.x + 14,
        gy=int(place.y) + 17,
        ny=int(place.y) + 34,
        sy=int(place.y) + 50,
        group=_cut(group + "/" if group else "", _GROUP),
        name=_cut(leaf, _NAME),
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length // 2 - 1] + "…" + text[-(length - length // 2) :]
