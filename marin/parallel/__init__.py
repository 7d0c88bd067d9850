"""How arrays lie on devices: one named mesh and the shardings on it."""

from marin.parallel.mesh import batch_sharding, data_mesh, replicated

__all__ = ["batch_sharding", "data_mesh", "replicated"]
