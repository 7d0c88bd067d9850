"""Data parallelism: parameters on every device, the rows of a batch split between them.

The mesh has one axis, `data`. XLA's partitioner inserts the gradient's all-reduce.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin.errors import ConfigError

DATA_AXIS = "data"


def data_mesh(num_devices: int | None = None) -> Mesh:
    """The first `num_devices` devices (all, if None) in a row.

    Raises:
        ConfigError: if the machine has fewer.
    """
    devices = jax.devices()
    if num_devices is not None and num_devices > len(devices):
        raise ConfigError(f"{num_devices} devices are asked for, this process sees {len(devices)}: ask for fewer")
    return Mesh(np.array(devices[:num_devices]), (DATA_AXIS,))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def check_batch_size(batch_size: int, mesh: Mesh, field: str = "train_batch_size") -> None:
    """Raises:
    ConfigError: if the devices of the mesh cannot share a batch of this size evenly.
    """
    num_devices = mesh.size
    if batch_size % num_devices:
        raise ConfigError(
            f"config field `{field}` is {batch_size}, which {num_devices} devices cannot divide: use a multiple of {num_devices}"
        )
