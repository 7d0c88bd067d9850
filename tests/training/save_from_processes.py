"""One of several processes of `jax.distributed`, on one device each, that save a checkpoint together.

python tests/training/save_from_processes.py DIRECTORY PORT PROCESS PROCESSES
"""

import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin.training.checkpoint_writer import CheckpointWriter


def main(directory: str, port: str, process: str, processes: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", int(processes), int(process))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)
    split = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    with CheckpointWriter(Path(directory), keep_every=100) as writer:
        for step in (1, 2, 3):
            state = {
                "rows": jax.make_array_from_callback(rows.shape, split, lambda index, step=step: rows[index] * step),
                "step": jax.make_array_from_callback((), whole, lambda index, step=step: np.asarray(step, np.int32)),
            }
            assert len(state["rows"].addressable_shards) == 1
            writer.save(state, step)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
