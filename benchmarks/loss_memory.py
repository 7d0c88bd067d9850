"""What the block-wise loss costs beside all logits at once: peak memory and time of the loss with its gradients.

    python -m benchmarks.loss_memory                 # vocabulary 128,256, T = 4,096, width 512: needs 8 GB of memory
    python -m benchmarks.loss_memory --tokens 1024   # smaller, faster

Prints one JSON line a figure: name, value, unit, n (repetitions), context. Memory is what a process of its own holds at
most while it computes, less what it held before with the inputs there and the program compiled: Linux's own count, so the
gradients count and the inputs do not. `planned_mb` is what XLA's plan says for the same, temporaries and results. Times
are of interleaved repetitions in one process; the ratio is that of their medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from marin.flags import HelpFormatter
from marin.nn import Precision, weighted_cross_entropy
from marin.training.state import StepConfig, loss_block

_REPETITIONS = 3
_MEGABYTE = 1e6


def full_loss(x_BTD: Any, head_DV: Any, target_BT: Any, weight_BT: Any) -> Any:
    """The plain way: all logits in float32, differentiated by JAX."""
    logits = jnp.einsum("btd,dv->btv", x_BTD, head_DV, preferred_element_type=jnp.float32)
    picked = jnp.take_along_axis(logits, target_BT[..., None], axis=-1)[..., 0]
    return jnp.sum(weight_BT * (jax.nn.logsumexp(logits, axis=-1) - picked))


def block_loss(x_BTD: Any, head_DV: Any, target_BT: Any, weight_BT: Any) -> Any:
    block = loss_block(StepConfig(Precision("f32")))
    return weighted_cross_entropy(x_BTD, head_DV, target_BT, weight_BT, block)[0]


PROGRAMS = {"full": full_loss, "blocks": block_loss}


def make_inputs(args: argparse.Namespace) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 3)
    x_BTD = jax.random.normal(keys[0], (1, args.tokens, args.width))
    head_DV = jax.random.normal(keys[1], (args.width, args.vocabulary)) * args.width**-0.5
    target_BT = jax.random.randint(keys[2], (1, args.tokens), 0, args.vocabulary)
    return x_BTD, head_DV, target_BT, jnp.full((1, args.tokens), 1.0 / args.tokens)


def compiled(loss: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*inputs).compile()


def measure_memory(name: str, args: argparse.Namespace) -> dict[str, float]:
    inputs = jax.block_until_ready(make_inputs(args))
    program = compiled(PROGRAMS[name], inputs)
    plan = program.memory_analysis()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the count of the most memory held starts again
    before = _status_bytes("VmRSS")
    jax.block_until_ready(program(*inputs))
    return {
        "peak": _status_bytes("VmHWM") - before,
        "planned": plan.temp_size_in_bytes + plan.output_size_in_bytes,
    }


def measure_times(args: argparse.Namespace) -> dict[str, list[float]]:
    inputs = jax.block_until_ready(make_inputs(args))
    programs = {name: compiled(loss, inputs) for name, loss in PROGRAMS.items()}
    losses = {name: float(program(*inputs)[0]) for name, program in programs.items()}
    assert abs(losses["full"] - losses["blocks"]) < 1e-4 * losses["full"], losses
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(_REPETITIONS):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*inputs))
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _in_a_new_process(what: str, args: argparse.Namespace) -> dict[str, Any]:
    sizes = [f"--{name}={getattr(args, name)}" for name in ("tokens", "width", "vocabulary")]
    command = [sys.executable, "-m", "benchmarks.loss_memory", "--measure", what, *sizes]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) * 1024


def _print_figure(name: str, value: float, unit: str, n: int, **context: Any) -> None:
    figure = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "n": n, "context": context}
    print(json.dumps(figure), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure_times(args) if args.measure == "times" else measure_memory(args.measure, args)))
        return
    sizes = {name: getattr(args, name) for name in ("tokens", "width", "vocabulary")}
    machine = {**sizes, "device": jax.devices()[0].device_kind, "cpus": os.cpu_count(), "jax": jax.__version__}
    memory = {name: _in_a_new_process(name, args) for name in PROGRAMS}
    for name, found in memory.items():
        planned = round(found["planned"] / _MEGABYTE)
        _print_figure(f"loss_{name}_peak_memory", found["peak"] / _MEGABYTE, "MB", 1, planned_mb=planned, **machine)
    ratio = memory["blocks"]["peak"] / memory["full"]["peak"]
    _print_figure("loss_peak_memory_of_blocks_to_full", ratio, "ratio", 1, target=0.125, **machine)
    seconds = _in_a_new_process("times", args)
    ratio = statistics.median(seconds["blocks"]) / statistics.median(seconds["full"])
    each = {name: [round(value, 2) for value in values] for name, values in seconds.items()}
    _print_figure("loss_time_of_blocks_to_full", ratio, "ratio", _REPETITIONS, target=1.1, seconds=each, **machine)


if __name__ == "__main__":
    main()
