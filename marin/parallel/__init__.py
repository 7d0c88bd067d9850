"""How a run is divided between devices and machines: meshes, sharding rules, and the start of several processes."""

from marin.parallel.mesh import Parallelism, batch_sharding, make_mesh, replicated

__all__ = ["Parallelism", "batch_sharding", "make_mesh", "replicated"]
