"""A large run's training step as XLA compiles it for TPUs that are not there: what each chip holds, its kernels, what is sent.

    python -m benchmarks.absent_tpu                                       # the 8B run on 256 chips: its plan, and what XLA makes of it
    python -m benchmarks.absent_tpu --topology v5p:2x2x1 --layers 2 --batch 64
    python -m benchmarks.absent_tpu --experiment experiments.marin_32b --topology v5p:8x8x4

Needs Linux and the packages of the extra `tpu`, and no TPU: `libtpu` has XLA's compiler, and takes the name of a topology. The step
is the one that `python -m experiments.marin_8b` plans, with its shardings, over the described chips. Prints one JSON line, of figures
that are computed, not measured:

  planned_gib, compiled_gib   memory of a chip, by our estimate and by XLA's own assignment; peak_gib is what is in use at once
  attention                   how often the program calls Splash attention's kernels
  sent                        collectives by kind; over many chips libtpu gathers a matrix of few rows a chip as the sum of padded parts,
                              an all-reduce
  compile_seconds             of this machine
"""

import argparse
import collections
import dataclasses
import importlib
import json
import os
import re
import sys
import time
import unittest.mock
from typing import Any

# Before JAX is imported: libtpu must not ask for the machine that it is on, and JAX not for chips.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_ID", "0")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from jax.experimental import topologies

from marin import hardware
from marin.errors import HardwareError
from marin.flags import Parser
from marin.parallel.mesh import make_mesh
from marin.resources import TpuPodConfig
from marin.training.memory_plan import MemoryPlan, lower_step, plan_memory, plan_step

_GIB = 2**30
_CALL = re.compile(r'custom_call_target="tpu_custom_call"')
_SENT = re.compile(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
_SCATTER = re.compile(r"^%?all-reduce-scatter[\w.]* \(", re.MULTILINE)  # XLA's name for the fused form on TPUs


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--experiment", default="experiments.marin_8b", help="a module of the form of marin_8b")
    parser.add_argument("--topology", default="v5p:4x8x8", help="as libtpu names them; default: %(default)s, 256 chips")
    parser.add_argument("--layers", type=int, help="so many in place of the model's")
    parser.add_argument("--batch", type=int, help="sequences a step in place of the largest of the config")
    parser.add_argument("--hlo", metavar="FILE", help="write the compiled program's text here")
    args = parser.parse_args()
    devices = absent_devices(args.topology)
    experiment = importlib.import_module(args.experiment)
    model = getattr(experiment, args.experiment.rpartition(".")[2])
    model = model if args.layers is None else dataclasses.replace(model, num_layers=args.layers)
    train = experiment.train_config.replace(resources=TpuPodConfig(slice_type(args.topology, len(devices))))
    if args.batch is not None:
        train = train.replace(train_batch_size=args.batch)
    plan = plan_memory(model, experiment.VOCAB_SIZE, train)
    begin = time.perf_counter()
    compiled = compile_step(model, experiment.VOCAB_SIZE, train, devices)
    show(args, plan, compiled, time.perf_counter() - begin)
    if args.hlo:
        with open(args.hlo, "w") as text:
            text.write(compiled.as_text())


def absent_devices(topology: str) -> Any:
    """Chips that programs can be compiled for, and not run on."""
    # A v4's two cores are one device, as JAX has them on a real one.
    options = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        sys.exit(
            f"error: no topology {topology!r} ({str(error).splitlines()[0][:200]}): `uv sync --all-packages --extra=tpu` brings XLA's compiler"
            " for TPUs; topologies are such as v5p:2x2x1, v6e:4x4"
        )


def slice_type(topology: str, num_chips: int) -> str:
    """What a slice of so many chips is called, such as "v5p-512" of 256: some names count cores."""
    kind = topology.partition(":")[0]
    for count in (num_chips, 2 * num_chips):
        name = f"{kind}-{count}"
        try:
            if hardware.tpu_chips(name) == num_chips:
                return name
        except HardwareError:
            continue
    sys.exit(f"error: no slice type of {kind!r} has {num_chips} chips: use v4, v5e, v5p or v6e")


def compile_step(model: Any, vocab_size: int, train: Any, devices: Any) -> Any:
    """The run's largest step, compiled for chips that need not be there."""
    chip = unittest.mock.Mock(platform="tpu", device_kind=devices[0].device_kind)
    # What chooses between kernels sees these chips.
    with (
        unittest.mock.patch.object(jax, "default_backend", return_value="tpu"),
        unittest.mock.patch.object(jax, "local_devices", return_value=[chip]),
    ):
        planned = plan_step(model, vocab_size, train)
        return lower_step(planned, make_mesh(planned.sizes, devices), "tpu").compile()


def show(args: argparse.Namespace, plan: MemoryPlan, compiled: Any, seconds: float) -> None:
    memory, text = compiled.memory_analysis(), compiled.as_text()
    sent = collections.Counter(_SENT.findall(text))
    scattered = len(_SCATTER.findall(text))
    sent["reduce-scatter"] += scattered
    sent["all-reduce"] -= scattered
    needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    parts = {"parameters": plan.parameters, "optimizer": plan.optimizer_state, "gradients": plan.gradients}
    line = {
        "name": f"absent_tpu_{args.experiment.rpartition('.')[2]}",
        "topology": args.topology,
        "chips": plan.mesh.size,
        "parameters": plan.num_parameters,
        "planned_gib": round(plan.total / _GIB, 2),
        "compiled_gib": round((needed - memory.alias_size_in_bytes) / _GIB, 2),
        "peak_gib": round(memory.peak_memory_in_bytes / _GIB, 2),
        "of_gib": None if plan.device is None else round(plan.device.memory_bytes / _GIB, 1),
        "state_gib": round(memory.argument_size_in_bytes / _GIB, 3),
        "planned_state_gib": round((plan.parameters + plan.optimizer_state) / _GIB, 3),
        "planned": {name: round(size / _GIB, 3) for name, size in parts.items()},
        "attention": len(_CALL.findall(text)),
        "sent": {kind: number for kind, number in sorted(sent.items()) if number > 0},
        "compile_seconds": round(seconds, 1),
        "context": {"layers": args.layers, "batch": args.batch, "jax": jax.__version__},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
