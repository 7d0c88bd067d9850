"""Meshes: how many devices each axis has, and which device stands where.

What the axes mean is said in `marin.nn.axes`. A run says what it wants with `Parallelism`; left out, the rows of a batch are
divided over all devices, and on accelerators the parameters too.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin.errors import ConfigError
from marin.nn.axes import AXES, BATCH_AXES, SEQUENCE
from marin.resources import Resources

_REST = -1


@dataclasses.dataclass(frozen=True)
class Parallelism:
    """How many devices each way of dividing the work takes; at most one of them -1, for all that are left.

    Args:
        data: copies of the model, each with its part of the batch's rows.
        fsdp: devices that share one copy, parameters and optimizer state divided between them, and have their part of the rows.
        tensor: devices that share the heads and features of each layer; keep it within one machine.
        sequence: devices that share the positions of each row, for contexts whose activations are too large for one.
    """

    data: int = _REST
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1

    def __post_init__(self) -> None:
        for name, value in self._given.items():
            if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and value != _REST):
                raise ConfigError(
                    f"`parallelism.{name}` is {value!r}: use a number of devices, or -1 for all that are left"
                )
        rest = [name for name, value in self._given.items() if value == _REST]
        if len(rest) > 1:
            raise ConfigError(
                f"`parallelism` has -1 for {' and '.join(rest)}: only one of them can have the devices that are left"
            )

    @property
    def _given(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in AXES}

    @property
    def min_devices(self) -> int:
        """The fewest devices that these sizes can have."""
        return math.prod(size for size in self._given.values() if size != _REST)

    @property
    def takes_all(self) -> bool:
        """Whether one of the sizes is for all devices that are left."""
        return _REST in self._given.values()

    def sizes(self, num_devices: int) -> dict[str, int]:
        """The devices of each axis, of so many in all.

        Raises:
            ConfigError: if the sizes do not multiply to that number.
        """
        given = self._given
        if num_devices % self.min_devices or (not self.takes_all and num_devices != self.min_devices):
            product = " x ".join(f"{name} {size}" for name, size in given.items() if size not in (1, _REST))
            wanted = "a multiple of it" if self.takes_all else "as many"
            raise ConfigError(
                f"`parallelism` ({product or 'data 1'}) needs {self.min_devices} devices or {wanted}, and there are {num_devices}:"
                " change one of its sizes or the number of devices"
            )
        left = num_devices // self.min_devices
        return {name: left if size == _REST else size for name, size in given.items()}

    def num_batch_shards(self, num_devices: int) -> int:
        """Into how many parts the rows of a batch are divided."""
        sizes = self.sizes(num_devices)
        return math.prod(sizes[axis] for axis in BATCH_AXES)


def default_parallelism(platform: str) -> Parallelism:
    """Parameters divided over all accelerators, so that what fits into their memory together can be trained; on CPUs,
    which share one memory, copies of them."""
    return Parallelism() if platform == "cpu" else Parallelism(data=1, fsdp=_REST)


def run_mesh(resources: Resources, parallelism: Parallelism | None) -> Mesh:
    """The mesh of a run: on GPUs as many devices as the config asks for, on TPUs all, on CPUs what `parallelism` needs.

    A processor is one device, but for processes of a multi-host run, which bring one each, and where
    `--xla_force_host_platform_device_count` makes more.

    Raises:
        ConfigError: if there are fewer devices, or the sizes do not fit them.
    """
    devices: Sequence[Any] = jax.devices()
    count = len(devices)
    chosen = parallelism or default_parallelism(resources.platform)
    if resources.platform == "gpu":
        count = resources.num_devices
    elif resources.platform == "cpu" and jax.process_count() == 1:
        count = 1 if parallelism is None else count if chosen.takes_all else chosen.min_devices
    if count > len(devices):
        raise ConfigError(
            f"{count} devices are asked for, JAX sees {len(devices)}: ask for fewer, or start more processes"
        )
    if count < len(devices) and jax.process_count() > 1:
        raise ConfigError(
            f"the config asks for {count} devices, the {jax.process_count()} processes have {len(devices)}: ask for all of them"
        )
    return make_mesh(chosen.sizes(count), devices[:count])


def make_mesh(sizes: dict[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of the given sizes; axes that are not named have one device."""
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    devices = jax.devices()[: math.prod(shape)] if devices is None else devices
    if devices[0].platform == "tpu":
        from jax.experimental import mesh_utils

        # On the wires of a TPU slice neighbours in the list need not be neighbours.
        return Mesh(mesh_utils.create_device_mesh(shape, devices), AXES)
    return Mesh(np.asarray(devices).reshape(shape), AXES)


def ambient(mesh: Mesh) -> contextlib.AbstractContextManager[Any]:
    """Makes a mesh known to the functions of `marin.nn` that are traced inside; one device needs none."""
    return jax.set_mesh(mesh) if mesh.size > 1 else contextlib.nullcontext()


def batch_sharding(mesh: Any) -> NamedSharding:
    """Of arrays [B, T]."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES, SEQUENCE))


def replicated(mesh: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def num_batch_shards(mesh: Any) -> int:
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_rows(batch_size: int, shards: int) -> None:
    """Raises:
    ConfigError: if so many parts cannot share the rows of a batch evenly.
    """
    if batch_size % shards:
        raise ConfigError(
            f"config field `train_batch_size` is {batch_size}, which {shards} devices cannot divide: use a multiple of {shards}"
        )


def check_batch(batch_size: int, num_tokens: int, mesh: Any) -> None:
    """Raises:
    ConfigError: if the devices of the mesh cannot share a batch of so many rows of so many tokens evenly.
    """
    check_rows(batch_size, num_batch_shards(mesh))
    if num_tokens % mesh.shape[SEQUENCE]:
        raise ConfigError(
            f"the context is {num_tokens} tokens, which `parallelism.sequence` {mesh.shape[SEQUENCE]} does not divide: use a divisor"
        )


def describe_mesh(mesh: Any) -> str:
    """Such as "8 devices: fsdp 4, tensor 2"."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    return f"{mesh.size} devices: {sizes}" if sizes else "1 device"
