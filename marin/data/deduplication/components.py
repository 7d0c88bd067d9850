"""Connected components of a graph that arrives edge by edge: union-find in a file.

The parent of each node is its own position at first; a root is the smallest position of its component, so it does not
matter in which order the edges come. The file is mapped: 8 bytes a node on the disk, and the system may write its
pages out when memory is short.
"""

import pathlib

import numpy as np
from jaxtyping import Int64

_BLOCK = 1 << 20


class Components:
    """The components of the nodes `range(num_nodes)`; each is alone at first."""

    def __init__(self, path: pathlib.Path, num_nodes: int):
        self._parents = np.lib.format.open_memmap(path, "w+", np.int64, (max(num_nodes, 1),))
        for start in range(0, num_nodes, _BLOCK):
            stop = min(start + _BLOCK, num_nodes)
            self._parents[start:stop] = np.arange(start, stop)

    def root(self, node: int) -> int:
        """The smallest node of the component."""
        parents = self._parents
        while (parent := int(parents[node])) != node:
            parents[node] = parents[parent]  # halves the path for the next time
            node = int(parents[node])
        return node

    def join(self, one: int, other: int) -> None:
        """Makes one component of those of both nodes."""
        first, second = sorted((self.root(one), self.root(other)))
        self._parents[second] = first

    def roots(self, nodes: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """`root` of each node."""
        found = self._parents[nodes]
        while True:
            above = self._parents[found]
            if np.array_equal(above, found):
                return np.asarray(found)
            found = above
